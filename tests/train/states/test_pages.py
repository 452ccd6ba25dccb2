"""Pages of a document: every row of its passes has one, also those that fill the last tile."""

from hypothesis import given
from hypothesis import strategies as st

from eyas.model.making.presets import PRESETS
from eyas.train.states.pages import PAGE_SIZE, cache_pages, whole_tiles


@given(st.integers(1, 5000), st.integers(1, 40))
def test_rows_of_every_pass_have_pages(longest, tiles):
    chunk_rows = 64 * tiles
    pages = cache_pages(PRESETS["tiny"], longest=longest, chunk_rows=chunk_rows)
    last_begin = (longest - 1) // chunk_rows * chunk_rows
    end = last_begin + whole_tiles(longest - last_begin)
    assert longest <= end <= pages.full * PAGE_SIZE
    assert min(end, chunk_rows + PRESETS["tiny"].sliding_window) <= pages.sliding * PAGE_SIZE

"""Sizes as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.base.errors import UserError
from eyas.base.sizes import parse_size

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("90GiB", 90 * GIB),
        (" 90 gib ", 90 * GIB),
        ("1.5 MiB", 3 << 19),
        ("96GB", 96 * 10**9),
        ("2 TB", 2 * 10**12),
        ("512 KiB", 512 << 10),
        ("7B", 7),
        ("80%", 80),
        ("12.5 %", 12),
    ],
)
def test_what_is_read(text, num_bytes):
    assert parse_size(text, 100) == num_bytes


@pytest.mark.parametrize(
    "text", ["", "90", "90G", "GiB", "-1GiB", "1e3 GiB", "nan%", "inf GiB", "1,5GiB", "9 iB", "1GiBs"]
)
def test_what_is_refused(text):
    with pytest.raises(UserError, match="a size with its unit"):
        parse_size(text, 100)


@given(st.text(max_size=12))
def test_anything_is_a_size_or_one_error(text):
    try:
        assert parse_size(text, 100) >= 0
    except UserError as error:
        assert str(error).startswith("wants a size")


@given(st.integers(0, 10**15))
def test_bytes_are_exact(num_bytes):
    assert parse_size(f"{num_bytes}B", 0) == num_bytes

"""With how many sequences captured rounds are computed."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from eyas.engine.round.stages import buckets


@given(st.integers(1, 2000), st.sampled_from([1, 2, 64]))
def test_sizes_are_powers_of_two_and_then_a_quarter_apart(most, fine_from):
    sizes = buckets(most, fine_from)
    assert sizes == sorted(set(sizes)) and sizes[-1] == most
    coarse = [size for size in sizes[:-1] if size <= fine_from]
    assert coarse == [2**number for number in range(len(coarse))]
    for smaller, larger in pairwise(sizes):
        assert larger - smaller <= (max(1, smaller // 4) if smaller >= fine_from else smaller)

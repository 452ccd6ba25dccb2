"""With how many sequences captured rounds are computed."""

from hypothesis import given
from hypothesis import strategies as st

from eyas.engine.round.stages import buckets


@given(st.integers(1, 300))
def test_buckets_are_powers_of_two_and_the_most(most):
    sizes = buckets(most)
    assert sizes == sorted(set(sizes)) and sizes[-1] == most
    assert sizes[:-1] == [2**number for number in range(len(sizes) - 1)] and 2 ** (len(sizes) - 1) >= most

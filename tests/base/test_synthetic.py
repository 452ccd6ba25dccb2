"""Chances that an acceptance length means."""

from hypothesis import given
from hypothesis import strategies as st

from eyas.base.synthetic import chance_of, parse_acceptance


@given(num_drafts=st.integers(1, 16), chance=st.floats(0.01, 0.99))
def test_chance_of_a_length(num_drafts, chance):
    length = sum(chance**i for i in range(num_drafts + 1))
    assert abs(chance_of(length, num_drafts) - chance) < 1e-6


def test_forms():
    assert parse_acceptance("0.9/0.1").chances(3) == (0.9, 0.1)
    assert parse_acceptance("0.7").chances(1) == (0.7,)
    (chance,) = parse_acceptance("2.6").chances(3)
    assert round(1 + chance + chance**2 + chance**3, 6) == 2.6

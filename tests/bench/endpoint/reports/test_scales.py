"""Axes hold their data, and their ticks are round and few."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.bench.endpoint.reports.plots.elements import shortened
from eyas.bench.endpoint.reports.plots.frame import Plot
from eyas.bench.endpoint.reports.plots.scales import levels, linear, logarithmic, number

POSITIVE = st.floats(1e-6, 1e9)


def is_round(value):
    digits = abs(value) / 10 ** math.floor(math.log10(abs(value)) + 1e-9)
    return any(math.isclose(digits, step, rel_tol=1e-6) for step in (1, 2, 5))


@given(st.lists(POSITIVE, min_size=1, max_size=20))
def test_linear_axes(values):
    axis = linear("x", values)
    assert axis.low == 0 and axis.high >= max(values) * (1 - 1e-9)
    ticks = [value for value, _ in axis.ticks]
    assert 2 <= len(ticks) <= 11 and ticks == sorted(ticks) and is_round(ticks[1] - ticks[0])
    assert (ticks[0], ticks[-1]) == (axis.low, axis.high)
    for value, text in axis.ticks:
        assert float(text.replace(",", "")) == pytest.approx(value, rel=1e-6, abs=1e-12)
    assert all(0 <= axis.share(value) <= 1 for value in values)
    assert axis.share(axis.high / 2) == pytest.approx(0.5)


@given(POSITIVE, POSITIVE)
def test_logarithmic_axes(one, other):
    low, high = sorted((one, other))
    axis = logarithmic("x", low, high)
    assert 10**axis.low <= low * (1 + 1e-6) and 10**axis.high >= high * (1 - 1e-6)
    assert 2 <= len(axis.ticks) <= 18 and all(is_round(value) for value, _ in axis.ticks)
    assert axis.share(10**axis.low) == pytest.approx(0, abs=1e-9) and axis.share(10**axis.high) == pytest.approx(1)
    assert axis.share(0.0) == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1234.5, "1,234"),
        (56.78, "56.8"),
        (0.125, "0.125"),
        (5.0, "5"),
        (0.00012345, "0.000123"),
        (1e6, "1,000,000"),
    ],
)
def test_numbers_for_people(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("text", "size", "expected"),
    [("short", 8, "short"), ("a very long name", 9, "a ve\u2026name"), ("abcdef", 3, "a\u2026f")],
)
def test_long_names_keep_both_ends(text, size, expected):
    assert shortened(text, size) == expected


def test_labels_never_stand_on_one_another():
    plot = Plot("t", linear("x", [10.0]), linear("y", [10.0]))
    for i in range(60):
        plot.label(i % 10, (i * 7) % 10, f"label {i}")
    texts = [one for one in plot.svg().iter("text") if one.get("class", "").startswith("label")]
    assert 5 < len(texts) < 60
    boxes = [(float(t.get("x")), float(t.get("y")), 0.58 * 11 * len(t.text)) for t in texts]
    for i, (x, y, width) in enumerate(boxes):
        for other_x, other_y, other_width in boxes[:i]:
            assert x + width <= other_x + 0.02 or other_x + other_width <= x + 0.02 or abs(y - other_y) >= 12.9


def test_levels_leave_room_at_both_ends():
    axis = levels("load", ["1", "2", "4"])
    assert [axis.share(place) for place in (0, 1, 2)] == pytest.approx([1 / 6, 1 / 2, 5 / 6])

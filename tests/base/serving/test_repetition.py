"""The detector of loops: good answers pass however they are cut, loops are told in time, and every loop told is one."""

import random
import sysconfig
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.base.support.benign_texts import BENIGN
from tests.base.support.looping import chunks, looping_answers

from eyas.base.serving.repetition import Detector, Loop, kind_of, longest_loop, span_of

PROSE = "It was a bright cold day in April, and the clocks were striking thirteen; nobody looked up any more. "
LATE = 1.2  # spans after the loop's start until it must have been told

# Texts of pieces, each repeated as often as it takes to be suspected, told, or neither.
UNITS = st.one_of(st.text(min_size=1, max_size=90), st.sampled_from(["!", "=", "ab ", "0, ", "<unk>", "```\n", "|x|y"]))
PIECES = st.tuples(UNITS, st.sampled_from([1, 40, 300, 1500]))
TEXTS = st.lists(PIECES, max_size=6).map(
    lambda pieces: "".join(unit * (1 + size // len(unit)) for unit, size in pieces)
)


def first_loop(parts, patience=None):
    """The first loop in the joined `parts`, and how many code points had been read when it was told."""
    detector, read = Detector(patience), 0
    for part in parts:
        read += len(part)
        if (loop := detector.feed(part)) is not None:
            return loop, read
    return None, read


def minimal(unit):
    return next(unit[:p] for p in range(1, len(unit) + 1) if (unit + unit)[p:].startswith(unit))


def test_there_are_enough_good_answers():
    assert len(BENIGN) >= 40


@pytest.mark.parametrize("name", BENIGN)
def test_good_answers_pass_however_they_are_cut(name):
    text = BENIGN[name].text
    rng = random.Random(name)
    for most in (1, 6, 100, len(text)):
        assert first_loop(chunks(text, rng, most))[0] is None


def test_good_answers_pass_one_after_the_other():
    texts = [answer.text for answer in BENIGN.values()]
    random.Random(5).shuffle(texts)
    assert first_loop(["\n\n".join(texts)])[0] is None


@pytest.mark.slow
def test_the_standard_library_passes():
    texts = [path.read_text(errors="replace") for path in Path(sysconfig.get_path("stdlib")).glob("[a-r]*/*.py")]
    assert sum(map(len, texts)) > 5_000_000
    assert [loop for text in texts if (loop := Detector().feed(text))] == []


def test_five_hundred_loops_are_told_in_time():
    rng = random.Random(7)
    for looping in looping_answers(500, seed=3):
        unit = minimal(looping.unit)
        limit = LATE * span_of(unit) * (2 if looping.is_in_fence else 1)
        loop, read = first_loop(chunks(looping.text, rng, 8))
        assert loop is not None, looping
        assert loop.position - len(looping.before) <= limit, (loop, looping)
        assert read - loop.position < 8
        assert len(loop.unit) == len(unit) and loop.unit in unit * 2


@pytest.mark.parametrize(
    ("unit", "kind", "span"),
    [
        ("?", "symbol", 512),
        ("\u4e00", "symbol", 512),
        (" !", "symbol", 512),
        ("<unk>", "symbol", 512),
        ("nk><u", "symbol", 512),
        ("=", "ruler", 2048),
        ("\n", "ruler", 2048),
        ("0", "ruler", 2048),
        ("\u2500", "ruler", 2048),
        ("the ", "short", 768),
        ("ha", "short", 768),
        ("0, ", "grid", 2048),
        ("---|", "grid", 4096),
        ("0x00, " * 8 + "\n", "grid", 4096),
        ("alse, f", "grid", 2048),
        (" ".join(map(str, range(400))) + "\n", "grid", 5960),
        ("I cannot say. ", "line", 1024),
        ("x" * 64 + "y" * 64, "line", 1024),
        ("| a | free | free |\n", "line", 2048),
        ('{"a": "b", "word": "c"}, ', "line", 2048),
        ("assert it\\n", "line", 2048),
        ("nassert it\\", "line", 2048),
        ("<td></td>\n", "line", 2048),
        (PROSE * 2, "block", 2048),
        (PROSE * 8, "block", 3232),
    ],
)
def test_kinds_and_their_spans(unit, kind, span):
    assert kind_of(unit) == kind
    assert span_of(unit) == span
    text = PROSE + unit * (2 * span // len(unit))
    loop, read = first_loop([text[i : i + 4] for i in range(0, len(text), 4)])
    assert loop is not None and (loop.kind == kind or len(loop.unit) < len(unit))
    assert loop.is_symbol == (kind == "symbol")
    if loop.kind == kind:
        assert span <= loop.span <= loop.position <= read <= len(PROSE) + LATE * span


@given(st.text(st.sampled_from(' \n|<>/fatrulesnx0=!{}:"\\'), min_size=1, max_size=40), st.integers(0, 39))
@example("x = false, ", 8)
def test_the_kind_does_not_depend_on_where_a_unit_begins(unit, at):
    at %= len(unit)
    turned = unit[at:] + unit[:at]
    assert (kind_of(turned), span_of(turned)) == (kind_of(unit), span_of(unit))


@given(TEXTS, st.lists(st.integers(1, 200), min_size=1, max_size=20))
def test_the_loop_does_not_depend_on_chunks(text, sizes):
    parts, at = [], 0
    while at < len(text):
        size = sizes[len(parts) % len(sizes)]
        parts.append(text[at : at + size])
        at += size
    whole, _ = first_loop([text])
    loop, read = first_loop(parts)
    assert loop == whole
    if loop is not None:
        assert loop.position <= read < loop.position + len(parts[0]) + max(sizes)


@given(TEXTS)
def test_what_is_told_is_a_loop(text):
    loop, _ = first_loop([text])
    if loop is not None:
        period, repeated = len(loop.unit), text[loop.position - loop.span : loop.position]
        assert len(repeated) == loop.span and repeated.endswith(loop.unit)
        assert repeated[period:] == repeated[:-period]
        assert loop.kind == "fault" or loop.span >= span_of(loop.unit)


def test_a_loop_is_told_once():
    detector = Detector()
    assert len([loop for _ in range(3000) if (loop := detector.feed("no. "))]) == 1


def test_what_ends_before_its_span_passes():
    rng = random.Random(1)
    for _ in range(20):
        text = "".join(PROSE[: rng.randrange(90)] + "!" * rng.randrange(440) + "\n" for _ in range(30))
        assert first_loop([text])[0] is None


@pytest.mark.parametrize("symbol", ["!", "\0", "\ufffd"])
def test_nothing_but_a_fault_from_the_start(symbol):
    loop, _ = first_loop([symbol] * 200)
    assert loop == Loop(kind="fault", unit=symbol, span=96, position=96) and loop.is_symbol
    assert first_loop(["W" + symbol * 500])[0] is None
    assert first_loop([symbol * 500], patience=lambda unit: 2)[0] is None


@pytest.mark.parametrize("period", [401, 1000, 3000, 7900])
def test_long_periods(period):
    unit = "".join(random.Random(period).choices("abcdefghij ", k=period))
    loop, _ = first_loop([PROSE + unit * 7])
    assert loop is not None and len(loop.unit) == period
    assert loop.position <= len(PROSE) + LATE * max(2048, 4 * period)


def test_patience_is_asked_once_and_multiplies():
    asked = []
    loop, _ = first_loop(["Now: " + "never " * 2000], patience=lambda unit: asked.append(unit) or 4)
    assert len(asked) == 1 and asked[0] in "never never "
    assert 4 * 768 <= loop.span < 4 * 768 + 64


def test_code_fences_double_the_span():
    loop, _ = first_loop(["So:\n\n```text\n" + "never " * 2000])
    assert 2 * 768 <= loop.span < 2 * 768 + 64
    loop, _ = first_loop(["So:\n\n  ```text\nx\n  ```\n" + "never " * 2000])
    assert 768 <= loop.span < 768 + 64
    loop, _ = first_loop(["Write ``` to begin: " + "never " * 2000])
    assert 768 <= loop.span < 768 + 64


def test_a_loop_of_code_fences_has_no_doubled_span():
    loop, _ = first_loop(["```python\nprint(1)\n```\n\nOr else:\n\n" * 200])
    assert 1024 <= loop.span < 1024 + 64


def test_a_loop_says_its_length_and_not_its_text():
    text = str(Loop(kind="line", unit="my secret", span=1024, position=2000))
    assert "1024" in text and "9" in text and "secret" not in text


def test_memory_is_bounded():
    rng = random.Random(2)
    parts = ["".join(rng.choices("abcdefgh", k=1000)) for _ in range(100)]
    detector = Detector()
    tracemalloc.start()
    try:
        for part in parts * 3:
            assert detector.feed(part[:500] + str(rng.random()) + part[500:]) is None
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@given(st.text("ab\n", max_size=60), st.integers(1, 5), st.integers(2, 4))
def test_longest_loop(text, max_period, min_copies):
    def is_loop(span, period, start):
        part = text[start : start + span]
        return len(part) == span and part[period:] == part[:-period]

    spans = [
        (span, -period)
        for period in range(1, max_period + 1)
        for span in range(max(period + 1, min_copies * period), len(text) + 1)
        if any(is_loop(span, period, start) for start in range(len(text)))
    ]
    loop = longest_loop(text, max_period=max_period, min_copies=min_copies)
    if not spans:
        assert loop is None
        return
    assert (loop.span, -len(loop.unit)) == max(spans)
    part = text[loop.position - loop.span : loop.position]
    assert is_loop(loop.span, len(loop.unit), loop.position - loop.span) and part.startswith(loop.unit)

"""What holds for every box, every order of arrivals and sizes that are declared up to 30 % wrong."""

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.router.support.memory_runs import GIB, TICK_S, Box, Engine, Request

from eyas.router.memory.events import Event, Fails, Load
from eyas.router.memory.member import FIRST_REQUEST_S
from eyas.router.settings.schema import MemorySettings

NAMES = "abcdef"
EMERGENCY = MemorySettings().emergency
DRAIN_S = MemorySettings().drain_s
BACK_S = 10.0  # more than memory takes to come back here


@st.composite
def boxes(draw, *, most=35, num_requests=st.integers(1, 40)):  # noqa: B008 - a strategy is a constant
    """Six backends of up to `most` percent of the box, which may be exclusive; the first may be pinned."""
    engines = [
        Engine(
            name,
            draw(st.integers(2, most)) * GIB,
            peak=draw(st.floats(1.0, 1.25)),
            declared=draw(st.floats(0.7, 1.3)),
            load_s=draw(st.floats(1.0, 20.0)),
            stop_s=draw(st.floats(0.2, 3.0)),
            back_s=draw(st.floats(0.0, 2.0)),
            priority=draw(st.sampled_from(["critical", "normal", "low"])),
            is_exclusive=draw(st.booleans()),
            is_pinned=name == "a" and draw(st.booleans()),
        )
        for name in NAMES
    ]
    if engines[0].is_pinned:
        engines[0].is_exclusive = False
    at, requests = 1001.0, []
    for _ in range(draw(num_requests)):
        at += draw(st.sampled_from([0.0, 0.0, 0.5, 3.0, 30.0]))
        requests.append(Request(draw(st.sampled_from(NAMES)), at, seconds=draw(st.floats(0.5, 12.0))))
    return Box(engines, foreign=draw(st.integers(0, 8)) * GIB, requests=requests)


def watched(box):
    """Run a box to its end; what must hold at each moment."""
    pinned = [one for one in box.engines if one.is_pinned]
    above = 0
    end = box.now + 4 * 3600
    while any(one.done is None and one.refused is None for one in box.requests):
        assert box.now < end, "requests wait without end"
        was = [one.state for one in pinned]
        box.step()
        exclusive = [one.name for one in box.engines if one.is_exclusive and one.state != "idle"]
        assert len(exclusive) <= 1, f"two exclusive ones: {exclusive}"
        assert not any(
            one.state in ("idle", "unloading") for one, old in zip(pinned, was, strict=True) if old == "ready"
        )
        above = above + 1 if box.shares[-1] > EMERGENCY else 0
        assert above * TICK_S <= 5.0, "above the emergency for more than 5 s"


@settings(max_examples=40, deadline=None)
@given(boxes())
def test_a_box_never_falls_over(box):
    watched(box)


@settings(max_examples=40, deadline=None)
@given(boxes())
def test_nothing_is_loaded_twice_without_a_request_between(box):
    watched(box)
    for name in NAMES:
        loads = [at for at, effect in box.effects if isinstance(effect, Load) and effect.backend == name]
        sent = [one.sent for one in box.requests if one.backend == name and one.sent is not None]
        cut = [at for at, effect in box.effects if isinstance(effect, Fails) and effect.backend == name]
        emergencies = [note for note in box.noted("unload") if note.text.startswith("emergency")]
        for first, second in itertools.pairwise(loads):
            served = any(first <= at <= second for at in (*sent, *cut))
            assert served or emergencies, f"{name} was loaded at {first} and {second} for nobody"


@settings(max_examples=40, deadline=None)
@given(boxes(most=30))
def test_nobody_starves(box):
    check_waits(box)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(boxes(most=30, num_requests=st.just(200)))
def test_nobody_starves_among_two_hundred(box):
    check_waits(box)


def check_waits(box):
    """A backend waits for those that were wanted before it, each at most once, and for its own load."""
    watched(box)
    step_s = max(one.load_s + one.stop_s for one in box.engines) + DRAIN_S + FIRST_REQUEST_S + BACK_S
    for one in box.requests:
        if one.sent is None:
            continue
        before = {
            other.backend for other in box.requests if other.at <= one.at and (other.sent or other.at) >= one.at
        } | {one.backend}
        served = sum(box_request.seconds for box_request in box.requests if box_request.backend == one.backend)
        assert one.sent - one.at <= (len(before) + 1) * step_s + served


@settings(max_examples=15, deadline=None)
@given(boxes())
def test_decisions_replay_from_their_log(box):
    """Also from the log as it is written."""
    watched(box)
    written = msgspec.json.encode([(event, now) for event, now in box.log])
    policy = box.new_policy()
    again = [
        (now, effect)
        for event, now in msgspec.json.decode(written, type=list[tuple[Event, float]])
        for effect in policy.decide(event, now)
    ]
    assert again == box.effects

"""What a supervisor does next, without processes: every path by name, and what must hold on all paths."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.fleet.running.policy import (
    Failed,
    Found,
    Limits,
    Look,
    Observe,
    Prepare,
    Rest,
    Seen,
    Shape,
    StartLaunch,
    State,
    StopAll,
    Stopped,
    Succeeded,
    act,
    advance,
    asked_down,
)

LIMITS = Limits(lost_s=10.0, hung_s=20.0, backoff_s=1.0, max_backoff_s=5.0, max_restarts=3, forget_s=100.0)
SHAPE = Shape(names=("once", "engine"), timeouts=(30.0, 60.0), is_once=(True, False), ready_s=300.0, num_nodes=2)
WELL = Seen(answers=None, canary=None, is_up=True)


class Run:
    """A state with a clock; remembers what was to be done."""

    def __init__(self, state=None):
        self.state = state or State()
        self.now = 0.0
        self.acts = []

    def __call__(self, *events, after=1.0):
        for event in events:
            self.acts.append(act(self.state, LIMITS))
            self.now += after
            self.state = advance(self.state, event, self.now, SHAPE, LIMITS)
        return self.state

    def start(self):
        once = Seen(ended=((0, 0),))
        return self(Found(0, 0), Succeeded(), Succeeded(), once, Succeeded(), WELL, WELL, WELL)


def test_a_start_from_nothing():
    run = Run()
    assert run.start().phase == "ready" and run.state.status == "ready" and run.state.was_ready
    assert run.acts == [
        *(Look(), Prepare(), StartLaunch(0), Observe(pause_s=0.1, index=0), StartLaunch(1)),
        *(Observe(pause_s=0.1, index=1), Observe(pause_s=0.1, probe=True), Observe(pause_s=0.1, canary=True)),
    ]
    assert act(run.state, LIMITS) == Observe(pause_s=1.0, is_loading=False, probe=True)


@pytest.mark.parametrize(
    ("found", "phase"),
    [(Found(0, 0), "preparing"), (Found(2, 2), "probing"), (Found(2, 1), "stopping"), (Found(1, 1), "stopping")],
)
def test_what_is_found_decides(found, phase):
    run = Run(State(was_ready=True))
    assert run(found).phase == phase
    if phase == "stopping":
        assert run(Stopped()).phase == "preparing", "an interrupted start costs no attempt"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (3, "ended with exit code 3"),
        (137, "SIGKILL"),
        (134, "SIGABRT"),
        (None, "left no trace"),
        (250, "exit code 250"),
    ],
)
def test_how_a_launch_ended_is_said(code, text):
    run = Run()
    run.start()
    assert text in run(Seen(ended=((1, code),), answers=None)).note


def test_a_once_launch_must_end_well():
    run = Run()
    run(Found(0, 0), Succeeded(), Succeeded())
    assert run(Seen(ended=((0, 1),))).phase == "stopping"
    assert run.state.goal == "failed" and "once ended with exit code 1" in run.state.note
    run = Run()
    run(Found(0, 0), Succeeded(), Succeeded())
    assert run(Seen(is_up=True)).phase == "watching", "being started is not enough"


@pytest.mark.parametrize("phase", ["preparing", "launching", "watching", "probing", "checking"])
def test_the_first_failure_of_a_first_start_is_the_end(phase):
    why = {
        "preparing": [Failed("port 1 is in use")],
        "launching": [Succeeded(), Failed("no such image")],
        "watching": [Succeeded(), Succeeded(), Seen(ended=((0, 9),))],
        "probing": [Succeeded(), Succeeded(), Seen(ended=((0, 0),)), Succeeded(), WELL, Seen(ended=((1, 9),))],
        "checking": [
            *(Succeeded(), Succeeded(), Seen(ended=((0, 0),)), Succeeded(), WELL, WELL),
            Seen(canary="garbage came back"),
        ],
    }[phase]
    run = Run()
    assert run(Found(0, 0), *why).phase == "stopping"
    note = run.state.note
    assert isinstance(act(run.state, LIMITS), StopAll)
    assert run(Stopped()).status == "failed" and run.state.note == note and act(run.state, LIMITS) is None


def test_patience_ends():
    run = Run()
    run(Found(0, 0), Succeeded(), Succeeded(), Seen(), after=20.0)
    assert "once was not up after 30 s" in run(Seen(), after=20.0).note
    run = Run()
    run.start()
    run(
        Seen(ended=((1, 1),)),
        Stopped(),
        Succeeded(),
        Succeeded(),
        Succeeded(),
        Seen(ended=((0, 0),)),
        Succeeded(),
        WELL,
    )
    assert run.state.phase == "probing"
    run(Seen(answers="HTTP status 503"), after=200.0)
    assert "not ready after 300 s: HTTP status 503" in run(Seen(answers="HTTP status 503"), after=200.0).note


def test_back_off_doubles_up_to_a_bound_and_ends():
    run = Run()
    run.start()
    pauses = []
    for _ in range(LIMITS.max_restarts):
        run(Seen(ended=((1, 1),), answers=None), Stopped())
        rest = act(run.state, LIMITS)
        assert isinstance(rest, Rest) and run.state.status == "restarting"
        pauses.append(rest.until - run.now)
        run(Succeeded())
        assert run.state.note.endswith(f"attempt {len(pauses)} of 3")
        run(Succeeded(), Succeeded(), Seen(ended=((0, 0),)), Succeeded(), WELL, WELL, WELL)
    assert pauses == [1.0, 2.0, 4.0]
    assert run(Seen(ended=((1, 1),))).goal == "failed"
    assert "gave up after 3 restarts" in run(Stopped()).note and run.state.status == "failed"


def test_being_ready_for_long_forgets_failures():
    run = Run()
    run.start()
    for _ in range(10):
        run(Seen(answers=None), Seen(ended=((1, 1),), answers=None), after=60.0)
        run(Stopped(), Succeeded(), Succeeded(), Succeeded(), Seen(ended=((0, 0),)), Succeeded(), WELL, WELL, WELL)
        assert run.state.phase == "ready" and run.state.failures == 1


def test_a_machine_that_is_silent_for_a_moment_is_waited_for():
    run = Run()
    run.start()
    silent = Seen(silent=("node-b does not answer",))
    assert run(silent).status == "unreachable" and run.state.note == "node-b does not answer"
    assert run(silent, after=5.0).status == "unreachable"
    assert run(Seen(answers=None)).status == "ready" and "answers again" in run.state.note
    run(silent)
    assert run(silent, after=11.0).phase == "stopping" and run.state.goal == "restart"


@pytest.mark.parametrize("phase", ["ready", "probing"])
def test_a_group_of_which_nothing_is_heard_is_left_alone(phase):
    """One machine, or all of them: the link has gone, or this machine's own network."""
    run = Run()
    if phase == "ready":
        run.start()
        run(Seen(answers="late"))
    else:
        run = Run(State(was_ready=True))
        run(Found(2, 2, ("a does not answer", "b does not answer")))
    silent = Seen(silent=("a does not answer", "b does not answer"))
    run(silent)
    for _ in range(5):
        assert run(silent, after=1000.0).status == "unreachable" and run.state.phase == phase
    assert run.state.failures == 0
    after = run(Seen(answers="late"))
    assert after.phase == phase, "the time of silence is nobody's patience"
    run(WELL)
    assert run(WELL, WELL).status == "ready"


def test_a_first_start_does_not_wait_for_ever_for_a_machine():
    run = Run()
    run(Found(0, 0), Succeeded(), Succeeded())
    silent = Seen(silent=("a", "b"))
    run(silent)
    assert run(silent, after=11.0).phase == "stopping" and run.state.goal == "failed"


def test_a_server_that_is_taken_over_may_be_slow_to_answer():
    run = Run(State(was_ready=True))
    late = Seen(canary="no answer within 180 s")
    assert run(Found(2, 2), WELL, late).status == "ready" and "no answer within 180 s" in run.state.note
    run(Seen(ended=((1, 1),), answers=None), Stopped(), Succeeded(), Succeeded(), Succeeded(), Seen(ended=((0, 0),)))
    assert run(Succeeded(), WELL, WELL, late).phase == "stopping", "one that was started anew may not"


def test_a_server_that_hangs():
    run = Run()
    run.start()
    bad = Seen(answers="/health does not answer")
    assert run(bad).status == "hung" and "does not answer" in run.state.note
    assert run(Seen(answers=None)).note == "ready"
    run(bad)
    assert run(bad, after=21.0).phase == "stopping"


def test_what_could_not_be_stopped_is_stopped_before_a_new_start():
    run = Run()
    run.start()
    run(Seen(ended=((1, 1),)), Stopped(("engine (no route)",)))
    assert run.state.phase == "waiting" and "still to be stopped: engine (no route)" in run.state.note
    assert run(Succeeded()).phase == "stopping"
    assert run(Stopped(), Succeeded()).phase == "preparing"
    run = Run()
    run.start()
    run(Seen(ended=((1, 1),)))
    for _ in range(10 * LIMITS.max_restarts):
        assert run(Stopped(("engine (no route)",))).phase == "waiting"
        run(Succeeded())
    assert run(Stopped(), Succeeded()).phase == "preparing" and run.state.failures == 1, "waiting is no attempt"


def test_down():
    run = Run()
    run.start()
    state = asked_down(run.state, 9.0)
    assert state.status == "stopping" and asked_down(state, 10.0) == state
    assert advance(state, Stopped(), 10.0, SHAPE, LIMITS).status == "stopped"
    left = advance(state, Stopped(("engine (no route)",)), 10.0, SHAPE, LIMITS)
    assert left.status == "failed" and "engine (no route)" in left.note


def test_an_event_at_the_wrong_time_is_an_error():
    with pytest.raises(ValueError, match="looking"):
        advance(State(), Stopped(), 0.0, SHAPE, LIMITS)


EVENTS = {
    Look: st.builds(lambda n, m: Found(n, min(n, m)), st.integers(0, 2), st.integers(0, 2)),
    Prepare: st.sampled_from([Succeeded(), Failed("x")]),
    StartLaunch: st.sampled_from([Succeeded(), Failed("x")]),
    Rest: st.just(Succeeded()),
    StopAll: st.sampled_from([Stopped(), Stopped(("y",))]),
    Observe: st.builds(
        Seen,
        ended=st.sampled_from([(), ((0, 0),), ((1, 1),), ((0, 5),)]),
        silent=st.sampled_from([(), ("z",)]),
        is_up=st.booleans(),
        answers=st.sampled_from([None, "bad"]),
        canary=st.sampled_from([None, "", "bad"]),
    ),
}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_on_every_path(data):
    """Nothing is prepared while something runs; restarts are bounded unless it was ready for long; down ends it."""
    state, now, running, attempts = State(), 0.0, False, 0
    for _ in range(data.draw(st.integers(1, 60))):
        what = act(state, LIMITS)
        if what is None:
            break
        event = data.draw(EVENTS[type(what)])
        now += data.draw(st.sampled_from([0.0, 1.0, 15.0]))
        if isinstance(what, Look):
            running = event.num_recorded > 0
        elif isinstance(what, Prepare):
            assert not running
            attempts += 1
        elif isinstance(what, StartLaunch):
            running = True
        elif isinstance(what, StopAll):
            running = bool(event.left)
        before, state = state, advance(state, event, now, SHAPE, LIMITS)
        assert state.failures <= LIMITS.max_restarts + 1
        if state.was_ready and state.failures == 1 and before.failures != 1:
            attempts = 0
        assert state.status != "ready" or before.phase in ("checking", "ready")
        if state.phase == "ended" and running:
            assert "still to be stopped" in state.note
    assert attempts <= LIMITS.max_restarts + 2
    state = asked_down(state, now)
    if state.phase != "ended":
        state = advance(state, Stopped(), now, SHAPE, LIMITS)
        assert state.status == "stopped"

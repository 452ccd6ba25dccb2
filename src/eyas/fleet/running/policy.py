"""Decides what a supervisor does next: a pure function of its state, its observations and the time.

looking -> preparing -> launching and watching each launch -> probing -> checking (canary) -> ready
any failure -> stopping the whole group -> waiting (back-off) -> preparing again, or the end
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from eyas.recipes.plan import Plan

__all__ = [
    "Act",
    "Event",
    "Failed",
    "Found",
    "Limits",
    "Look",
    "Observe",
    "Prepare",
    "Rest",
    "Seen",
    "Shape",
    "StartLaunch",
    "State",
    "Status",
    "StopAll",
    "Stopped",
    "Succeeded",
    "act",
    "advance",
    "asked_down",
]

Phase = Literal[
    "looking", "preparing", "launching", "watching", "probing", "checking", "ready", "stopping", "waiting", "ended"
]
Status = Literal["starting", "ready", "hung", "unreachable", "restarting", "stopping", "stopped", "failed"]


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time-outs, sizes and numbers of attempts of a supervisor, in seconds, bytes and attempts."""

    poll_s: float = 1.0  # between two looks at everything
    start_poll_s: float = 0.1  # the same while it starts, which others may wait for
    answer_s: float = 2.5  # that a machine may take for one look
    lost_s: float = 20.0  # without an answer of one machine of several, until the group is restarted
    health_s: float = 5.0  # between two questions to a server that is well
    probe_s: float = 10.0  # that it may take to say how it is
    hung_s: float = 120.0  # without a good answer of a server that was ready, until the group is restarted
    canary_s: float = 180.0  # for a short answer, of a server that may still compile kernels
    cache_s: float = 2.0  # between two looks at what is free while it loads, where memory is unified
    grace_s: float = 20.0  # between TERM and KILL
    stop_s: float = 30.0  # that stopping a launch may take beyond that
    backoff_s: float = 2.0  # before the first restart; doubles each time
    max_backoff_s: float = 60.0
    max_restarts: int = 5
    forget_s: float = 600.0  # of being ready, after which earlier failures count no more
    log_bytes: int = 64 << 20


class Shape(Struct, frozen=True):
    """The facts of a plan that the policy needs, launch by launch."""

    names: tuple[str, ...]
    timeouts: tuple[float, ...]
    is_once: tuple[bool, ...]
    ready_s: float
    num_nodes: int = 1

    @staticmethod
    def of(plan: Plan) -> Shape:
        launches = plan.emission.launches
        return Shape(
            names=tuple(launch.name for launch in launches),
            timeouts=tuple(launch.wait.timeout_s for launch in launches),
            is_once=tuple(launch.is_once for launch in launches),
            ready_s=plan.emission.readiness.timeout_s,
            num_nodes=len({launch.node for launch in launches}),
        )


class State(Struct, frozen=True, kw_only=True):
    """State of a deployment. `note` is for people and changes only when there is something new to say."""

    phase: Phase = "looking"
    index: int = 0  # of the launch that is being started
    since: float = 0.0  # when the phase began, moved on by the time in which nothing could be observed
    note: str = ""
    goal: Literal["restart", "stopped", "failed"] = "restart"  # of stopping
    was_ready: bool = False
    failures: int = 0  # since it last was ready for long
    silent_since: float | None = None  # a machine
    hung_since: float | None = None  # the server, while ready
    is_left: bool = False  # something could not be stopped yet

    @property
    def status(self) -> Status:
        if self.silent_since is not None and self.was_ready:
            return "unreachable"
        if self.phase == "ready":
            return "ready" if self.hung_since is None else "hung"
        if self.phase == "ended":
            return "stopped" if self.goal == "stopped" else "failed"
        if self.phase == "stopping" and self.goal != "restart":
            return "stopping"
        return "restarting" if self.failures else "starting"


# -- what was seen -----------------------------------------------------------------------------------------------------


class Found(Struct, frozen=True):
    """Event: what runs of an earlier start: `num_recorded` launches were started, `num_alive` of them live; those on
    machines that do not answer, `silent`, are taken to live."""

    num_recorded: int
    num_alive: int
    silent: tuple[str, ...] = ()


class Succeeded(Struct, frozen=True):
    """Event: preparing or starting a launch went well, or a pause is over."""


class Failed(Struct, frozen=True):
    """Event: preparing or starting a launch failed."""

    why: str


class Seen(Struct, frozen=True, kw_only=True):
    """Event: an observation of launches that ended, machines that do not answer, and what else was asked for."""

    ended: tuple[tuple[int, int | None], ...] = ()  # index of the launch, its exit code where it is known
    silent: tuple[str, ...] = ()  # what is wrong with each machine that does not answer
    is_up: bool = False  # the condition of the launch that is watched
    answers: str | None = ""  # what is wrong with the endpoint; None: nothing
    canary: str | None = ""  # what is wrong with the canary's answer; None: nothing; "": none yet


class Stopped(Struct, frozen=True):
    """Event: the group was stopped, except `left`: what could not be, and why."""

    left: tuple[str, ...] = ()


Event = Found | Succeeded | Failed | Seen | Stopped


# -- what to do --------------------------------------------------------------------------------------------------------


class Look(Struct, frozen=True):
    """Action: find what runs of an earlier start."""


class Prepare(Struct, frozen=True):
    """Action: write the files, check that the port is free."""


class StartLaunch(Struct, frozen=True):
    index: int


class Observe(Struct, frozen=True, kw_only=True):
    """Action: observe every machine, `pause_s` after the last time; also the condition of launch `index`, the endpoint
    and the canary where wanted. `is_loading`: from the first launch until it is ready."""

    pause_s: float
    is_loading: bool = True
    index: int | None = None
    probe: bool = False
    canary: bool = False


class StopAll(Struct, frozen=True):
    """Action: stop everything, the last launch first."""


class Rest(Struct, frozen=True):
    until: float


Act = Look | Prepare | StartLaunch | Observe | StopAll | Rest


def act(state: State, limits: Limits) -> Act | None:
    """Return the action that `state` asks for; None at the end."""
    match state.phase:
        case "looking":
            return Look()
        case "preparing":
            return Prepare()
        case "launching":
            return StartLaunch(state.index)
        case "watching":
            return Observe(pause_s=limits.start_poll_s, index=state.index)
        case "probing":
            return Observe(pause_s=limits.start_poll_s, probe=True)
        case "checking":
            return Observe(pause_s=limits.start_poll_s, canary=True)
        case "ready":
            return Observe(pause_s=limits.poll_s, is_loading=False, probe=True)
        case "stopping":
            return StopAll()
        case "waiting":
            pause = min(limits.max_backoff_s, limits.backoff_s * 2.0 ** min(state.failures - 1, 30))
            return Rest(until=state.since + pause)
        case "ended":
            return None


def advance(state: State, event: Event, now: float, shape: Shape, limits: Limits) -> State:
    """Return the state after `event`. An event that the phase does not wait for is an error of the caller."""
    match state.phase, event:
        case "looking", Found():
            return _found(state, event, now, shape)
        case "preparing", Succeeded():
            return _launch(state, 0, now, shape)
        case "launching", Succeeded():
            return _to(state, "watching", now)
        case "waiting", Succeeded() if state.is_left:
            return _to(state, "stopping", now)
        case "waiting", Succeeded():
            return _to(state, "preparing", now, f"starting again, attempt {state.failures} of {limits.max_restarts}")
        case (("preparing" | "launching"), Failed()):
            return _fail(state, event.why, now, limits)
        case (("watching" | "probing" | "checking" | "ready"), Seen()):
            return _seen(state, event, now, shape, limits)
        case "stopping", Stopped():
            return _stopped(state, event, now, limits)
    raise ValueError(f"{event} while {state.phase}")


def asked_down(state: State, now: float) -> State:
    """Return the state after a request to stop everything for good."""
    if state.phase == "ended" or (state.phase == "stopping" and state.goal == "stopped"):
        return state
    return replace(_to(state, "stopping", now, "stopping"), goal="stopped")


# -- transitions -------------------------------------------------------------------------------------------------------


def _to(state: State, phase: Phase, now: float, note: str | None = None) -> State:
    return replace(
        state,
        phase=phase,
        since=now,
        note=state.note if note is None else note,
        silent_since=None,
        hung_since=None,
    )


def _found(state: State, event: Found, now: float, shape: Shape) -> State:
    if event.num_recorded == 0:
        return _to(state, "preparing", now, "starting")
    if event.num_alive == event.num_recorded == len(shape.names):
        return _to(state, "probing", now, "taking over what runs")
    return replace(_to(state, "stopping", now, "part of it has ended; restarting"), goal="restart")


def _launch(state: State, index: int, now: float, shape: Shape) -> State:
    if index == len(shape.names):
        return _to(state, "probing", now, "waiting for the server to be ready")
    return replace(_to(state, "launching", now, f"starting {shape.names[index]}"), index=index)


def _seen(state: State, event: Seen, now: float, shape: Shape, limits: Limits) -> State:
    watched = state.index if state.phase == "watching" else None
    for index, code in event.ended:
        is_done = shape.is_once[index] and (index != watched or code == 0)
        if not is_done:
            return _fail(state, f"{shape.names[index]} {_ending(code)}", now, limits)
    if event.silent:
        return _silent(state, event.silent, now, shape, limits)
    if state.silent_since is not None:
        since = state.since + now - state.silent_since
        state = replace(state, since=since, silent_since=None, note="every machine answers again")
    match state.phase:
        case "watching":
            return _watched(state, event, now, shape, limits)
        case "probing":
            if event.answers is None:
                return _to(state, "checking", now, "the server says that it is ready; asking it something")
            if now - state.since > shape.ready_s:
                return _fail(state, f"not ready after {shape.ready_s:g} s: {event.answers}", now, limits)
            return state
        case "checking":
            if event.canary is None:
                return replace(_to(state, "ready", now, "ready"), was_ready=True)
            if event.canary and state.was_ready and not state.failures:  # taken over: it may have a long queue
                return _to(state, "ready", now, f"ready, but for a short question: {event.canary}")
            if event.canary:
                return _fail(state, f"the server is up, its answer is not: {event.canary}", now, limits)
            return state
    return _ready(state, event, now, limits)


def _watched(state: State, event: Seen, now: float, shape: Shape, limits: Limits) -> State:
    has_ended = any(index == state.index for index, _ in event.ended)  # and well, or it would have failed
    if has_ended or (event.is_up and not shape.is_once[state.index]):
        return _launch(state, state.index + 1, now, shape)
    if now - state.since > shape.timeouts[state.index]:
        name, timeout_s = shape.names[state.index], shape.timeouts[state.index]
        return _fail(state, f"{name} was not up after {timeout_s:g} s", now, limits)
    return state


def _ready(state: State, event: Seen, now: float, limits: Limits) -> State:
    if event.answers is None:
        return state if state.hung_since is None else replace(state, hung_since=None, note="ready")
    if state.hung_since is None:
        return replace(state, hung_since=now, note=f"the server does not answer: {event.answers}")
    if now - state.hung_since > limits.hung_s:
        return _fail(state, f"the server did not answer for {limits.hung_s:g} s: {event.answers}", now, limits)
    return state


def _silent(state: State, silent: Sequence[str], now: float, shape: Shape, limits: Limits) -> State:
    """Handle machines that do not answer. A group that was ready is taken to go on, and is looked for again until
    it answers. One machine of several that is lost is no group any more."""
    if state.silent_since is None:
        return replace(state, silent_since=now, hung_since=None, note="; ".join(silent))
    is_unheard = state.was_ready and len(silent) == shape.num_nodes
    if now - state.silent_since > limits.lost_s and not is_unheard:
        return _fail(state, "; ".join(silent), now, limits)
    return state


def _fail(state: State, why: str, now: float, limits: Limits) -> State:
    """Report the first failure of a new start at once; restart what was ready before."""
    has_lasted = state.phase == "ready" and now - state.since >= limits.forget_s
    failures = 1 if has_lasted else state.failures + 1
    if not state.was_ready:
        goal, note = "failed", why
    elif failures > limits.max_restarts:
        goal, note = "failed", f"{why}; gave up after {limits.max_restarts} restarts"
    else:
        goal, note = "restart", why
    return replace(_to(state, "stopping", now, note), goal=goal, failures=failures)


def _stopped(state: State, event: Stopped, now: float, limits: Limits) -> State:
    state = replace(state, is_left=bool(event.left))
    if not event.left:
        if state.goal != "restart":
            return _to(state, "ended", now, "stopped" if state.goal == "stopped" else None)
        return _to(state, "waiting" if state.failures else "preparing", now)
    left = "still to be stopped: " + "; ".join(event.left)
    if state.goal == "restart":
        return _to(state, "waiting", now, left)
    why = f"{state.note}; " if state.goal == "failed" else ""
    return replace(_to(state, "ended", now, f"{why}{left}; run eyas down again"), goal="failed")


def _ending(code: int | None) -> str:
    if code is None:
        return "has ended; what killed it left no trace"
    if code == 128 + signal.SIGKILL:
        return "was killed by SIGKILL: by a user, or because memory ran out (see dmesg)"
    if code > 128 and code - 128 in set(signal.Signals):
        return f"was killed by {signal.Signals(code - 128).name}"
    return f"ended with exit code {code}"

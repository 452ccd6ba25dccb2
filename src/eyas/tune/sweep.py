"""Carries out the schedule: brings arms up, measures them, keeps every window, until nothing is left or no time is.

What starts engines and what measures them is handed in, and so is the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log
from statistics import mean
from typing import Protocol

from msgspec import Struct

from eyas.base.errors import UserError
from eyas.bench.endpoint.records import Window
from eyas.bench.endpoint.verdict import total_speed
from eyas.tune.schedule import TURNS, Arm, Cell, Contest, Done, Progress, Step, next_step

__all__ = ["Durations", "Hands", "Kept", "Outcome", "arm_and_context", "progress_of", "sweep", "window_name"]

MAX_FAILURES = 2  # of pairs in a row, after which the base is to blame
MAX_VOID = 3  # of an arm's windows in a row

Say = Callable[[str], None]


class Hands(Protocol):
    """Starts and stops arms by their names, and measures those that are up; neither takes longer than `within_s`."""

    def start(self, name: str, *, within_s: float) -> None:
        """Bring an arm up. Raises UserError."""

    def stop(self, name: str) -> None:
        """Take an arm down."""

    def windows(self, names: Sequence[str], cell: Cell, turn: int, *, within_s: float) -> list[Window]:
        """Measure a window of each arm, under its own name, as far as the time goes. Raises UserError."""


class Kept(Protocol):
    """Keeps a window, named by `window_name`."""

    def add(self, window: Window) -> None: ...


class Outcome(Struct, frozen=True, kw_only=True):
    """End of a contest: why it ended, and the arms that were given up, with the reason."""

    reason: str
    failed: dict[str, str]


def window_name(arm: str, context: int) -> str:
    """Return the name of an arm's windows after prompts of a length: windows of one name are compared."""
    return f"{arm} after {context}"


def arm_and_context(name: str) -> tuple[str, int]:
    """Return what `window_name` was made of."""
    arm, _, context = name.rpartition(" after ")
    return arm, int(context)


def progress_of(
    contest: Contest,
    windows: Sequence[Window],
    *,
    window_s: Mapping[Cell, float],
    up: frozenset[str] = frozenset(),
    left_s: float = 0.0,
) -> Progress:
    """Return the state of a contest from its windows; void ones and those of other contests count for nothing."""
    speeds: dict[tuple[str, Cell, int], float] = {}
    for window in windows:
        arm, context = arm_and_context(window.arm)
        turn = window.turn - contest.first_turn
        speed = None if window.void or not 0 <= turn < TURNS else total_speed(window)
        if speed:
            speeds[arm, Cell(context, window.load.concurrency or 0), turn] = speed
    ratios: dict[tuple[str, Cell], list[float]] = {}
    base_turns: dict[Cell, int] = {}
    for (arm, cell, turn), speed in sorted(speeds.items()):
        base = speeds.get((contest.base, cell, turn))
        if arm == contest.base:
            base_turns[cell] = max(base_turns.get(cell, 0), turn + 1)
        elif base is not None:
            ratios.setdefault((arm, cell), []).append(log(speed / base))
    return Progress(ratios=ratios, base_turns=base_turns, window_s=window_s, up=up, left_s=left_s)


def sweep(
    contest: Contest,
    hands: Hands,
    kept: Kept,
    *,
    windows: list[Window],
    overhead_s: float,
    answers_s: Mapping[Cell, float],
    deadline: float,
    end: float,
    clock: Callable[[], float],
    say: Say,
) -> Outcome:
    """Run a contest until `deadline` on `clock`; `windows` are those of before, and get the new ones.

    A step begins if it is expected to be over by the deadline. What is not over at `end` is cut off.
    Before any was measured, a window is expected to take `overhead_s`, and `answers_s` times as much longer as those of
    other loads took. All arms are stopped at the end.
    """
    run = _Sweep(contest, hands, kept, windows, Durations(overhead_s, answers_s), end, clock, say)
    try:
        while True:
            step = next_step(run.contest, run.progress(deadline - clock()))
            if isinstance(step, Done):
                return Outcome(reason=step.reason, failed=run.failed)
            if (reason := run.take(step)) is not None:
                return Outcome(reason=reason, failed=run.failed)
    finally:
        run.keep_up(frozenset())


class Durations:
    """Seconds that windows take: measured ones, else the model's, corrected by how wrong it was at other loads."""

    def __init__(self, overhead_s: float, answers_s: Mapping[Cell, float]) -> None:
        self._overhead_s, self._answers_s = overhead_s, answers_s
        self._took_s: dict[Cell, list[float]] = {}

    def add(self, cell: Cell, seconds: float) -> None:
        """Take note of a window."""
        self._took_s.setdefault(cell, []).append(seconds)

    def expected(self, cell: Cell) -> float:
        """Return what the next window of a load takes."""
        if cell in self._took_s:
            return mean(self._took_s[cell][-3:])
        factors = [
            max(mean(took) - self._overhead_s, 0.0) / self._answers_s[other] for other, took in self._took_s.items()
        ]
        return self._overhead_s + max([1.0, *factors]) * self._answers_s[cell]


class _Sweep:
    """State of a contest that is being run."""

    def __init__(
        self,
        contest: Contest,
        hands: Hands,
        kept: Kept,
        windows: list[Window],
        durations: Durations,
        end: float,
        clock: Callable[[], float],
        say: Say,
    ) -> None:
        self.contest, self.failed = contest, dict[str, str]()
        self._hands, self._kept, self._windows, self._durations = hands, kept, windows, durations
        self._end, self._clock, self._say = end, clock, say
        self._up: set[str] = set()
        self._num_void: dict[str, int] = {}
        self._failed_pairs = 0  # in a row

    def progress(self, left_s: float) -> Progress:
        """Return what the schedule wants to know."""
        window_s = {cell: self._durations.expected(cell) for cell in self.contest.weights}
        return progress_of(self.contest, self._windows, window_s=window_s, up=frozenset(self._up), left_s=left_s)

    def take(self, step: Step) -> str | None:
        """Take a step. Returns why the contest cannot go on; None if it can."""
        arm = step.arms[-1]
        self.keep_up(frozenset({self.contest.base, arm} if self.contest.is_shared else {arm}))
        for name in step.arms:
            if name not in self._up and (why := self._start(name)) is not None:
                return self._give_up(name, why)
        began = self._clock()
        try:
            turn = self.contest.first_turn + step.turn
            measured = self._hands.windows(step.arms, step.cell, turn, within_s=self._end - began)
        except UserError as error:
            self._failed_pairs += len(step.arms) > 1
            blamed = step.arms[0] if self._failed_pairs >= MAX_FAILURES else arm  # the base was beside each of them
            return self._give_up(blamed, str(error))
        self._failed_pairs = 0
        if len(measured) < len(step.arms):
            self._say(f"{step.arms[len(measured)]} with {step.cell.concurrency} at once is cut off: the time is over")
        self._durations.add(step.cell, (self._clock() - began) / max(len(measured), 1))
        return self._keep(step, measured)

    def keep_up(self, names: frozenset[str]) -> None:
        """Stop all other arms."""
        for name in sorted(self._up - names):
            self._up.discard(name)
            self._hands.stop(name)

    def _start(self, name: str) -> str | None:
        self._say(f"starts {name}")
        began = self._clock()
        try:
            self._hands.start(name, within_s=self._end - began)
        except UserError as error:
            return str(error)
        self._up.add(name)
        self._learn_start(self._clock() - began)
        return None

    def _learn_start(self, seconds: float) -> None:
        """Expect of all arms what the last start took."""
        arms = tuple(Arm(name=arm.name, start_s=seconds, prior=arm.prior) for arm in self.contest.arms)
        self._replace(arms, seconds)

    def _keep(self, step: Step, measured: Sequence[Window]) -> str | None:
        for window in measured:
            self._windows.append(window)
            self._kept.add(window)
            speed = total_speed(window)
            said = f"{speed:,.1f} tok/s" if speed else "no speed"
            void = f"  VOID: {window.void}" if window.void else ""
            self._say(f"{window.arm:<28} {step.cell.concurrency:>3} at once  turn {step.turn + 1}: {said}{void}")
            arm, _ = arm_and_context(window.arm)
            self._num_void[arm] = 0 if speed and not window.void else self._num_void.get(arm, 0) + 1
            if self._num_void[arm] >= MAX_VOID:
                return self._give_up(arm, window.void or "its endpoint does not say how many tokens it sends")
        return None

    def _give_up(self, name: str, why: str) -> str | None:
        self.failed[name] = why
        self._say(f"{name} is left out: {why}")
        if name == self.contest.base:
            return f"{name}: {why}"
        if name in self._up:
            self._up.discard(name)
            self._hands.stop(name)
        arms = tuple(arm for arm in self.contest.arms if arm.name != name)
        self._replace(arms, self.contest.base_start_s)
        return None

    def _replace(self, arms: tuple[Arm, ...], base_start_s: float) -> None:
        self.contest = Contest(
            base=self.contest.base,
            base_start_s=base_start_s,
            arms=arms,
            weights=self.contest.weights,
            is_shared=self.contest.is_shared,
            first_turn=self.contest.first_turn,
        )

"""A sweep from its first start to its measurement file: an engine after the other, then their best arms together."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from eyas.base.errors import UserError
from eyas.base.serving.engines import EngineName
from eyas.bench.endpoint.journal import Header, Journal
from eyas.bench.endpoint.records import Window
from eyas.bench.endpoint.verdict import total_speed, verdict
from eyas.bench.report import print_json
from eyas.fleet.machines.measurements import read, write
from eyas.recipes.measured import Measurements
from eyas.recipes.plan import Measured, Plan
from eyas.recipes.planning.ask import Ask
from eyas.tune.advice import Advice, advise, lines, rows
from eyas.tune.arms import Candidate, answers_s, candidates, contest_of, is_shared, main_cell, served
from eyas.tune.measure import Measurer
from eyas.tune.schedule import TURNS, Cell, Contest
from eyas.tune.servers import Servers, free_port
from eyas.tune.sweep import Outcome, sweep, window_name

__all__ = ["Session", "Setup"]

FOLDER = "tune"
STEADY_S = (1.5, 5.0)  # the shortest and the longest steady part of a window
WARM_UP_S = 2.5  # two stretches of a second, in which it can be seen to be warm
WINDOWS = 200  # that a budget should have time for
START_S = 10.0  # of an engine, before one was started
DUEL_SHARE = 0.12  # of the budget, for the best arms of two engines
END_S = 12.0  # for stopping the last engines and the plan, on a busy machine
GRACE_SHARE = 0.05  # of the budget, that an engine's last windows may take from what comes after it


class Setup(Struct, frozen=True, kw_only=True):
    """Settings of a sweep: what is measured, for how long, where it is kept. `plan` makes plans for this machine."""

    ask: Ask
    native_context: int
    engines: tuple[EngineName, ...]
    cells: dict[Cell, float]
    budget_s: float
    max_tokens: int
    is_resumed: bool
    home: Path
    measurements: Path
    header: Header
    plan: Callable[[Ask], Plan]


class Session:
    """One call of the command, whose budget counts from `began` on `clock`.

    `run` measures, `save` writes the measurement file, `report` says what was found.
    """

    def __init__(self, setup: Setup, *, began: float, clock: Callable[[], float], say: Callable[[str], None]) -> None:
        self._setup, self._clock, self._say = setup, clock, say
        self._deadline = began + setup.budget_s - END_S
        self._windows: list[Window] = []
        self._engines: list[list[Candidate]] = []
        self._ended: list[str] = []
        self._duel: list[str] = []
        self._header = setup.header
        self._ports: set[int] = set()
        self._cells = setup.cells

    def run(self) -> None:
        """Measure until the time is over or nothing is left to learn. Raises UserError if no engine could be had."""
        setup = self._setup
        steady_s = min(max(setup.budget_s / WINDOWS, STEADY_S[0]), STEADY_S[1])
        self._plan()
        journal = Journal(setup.home / FOLDER / f"{setup.measurements.stem}.jsonl")
        try:
            self._begin(journal)
            self._say("\n".join(self._method(steady_s)))
            measurer = Measurer(
                run=self._header.run + self._header.stamp.date,
                steady_s=steady_s,
                warm_up_s=max(steady_s, WARM_UP_S),
                max_tokens=setup.max_tokens,
            )
            with Servers(setup.home, os.environ, self._say) as servers:
                hands = _Hands(servers, measurer, {one.name: one.plan for group in self._engines for one in group})
                for number, group in enumerate(self._engines):
                    self._sweep(number, group, hands, journal, steady_s)
                self._compare(hands, journal, steady_s)
        finally:
            journal.close()
        if not self._windows:
            why = "; ".join(self._ended)
            raise UserError(f"nothing could be measured within {setup.budget_s:.0f} s ({why}); give more with --budget")

    def save(self) -> tuple[Measured, ...]:
        """Write the measurement file, and return its rows: what else is in it of other engines stays."""
        setup, settings = self._setup, self._header.settings
        new = rows(self._engines, list(setup.cells), self._windows, self._header.stamp.date[:10])
        stamp = self._header.stamp
        same = {"machine": settings["machine"], "model": setup.ask.model, "weights": settings["weights"]}
        before = read(setup.measurements)
        kept: tuple[Measured, ...] = ()
        if before is not None and (before.machine, before.weights) == (same["machine"], same["weights"]):
            measured = {one.engine for one in new}
            kept = tuple(one for one in before.rows if one.engine not in measured)
        if not (*kept, *new):
            return ()
        found = Measurements(
            **same, simulated=stamp.simulated, eyas=f"{stamp.eyas} {stamp.commit}".strip(), rows=(*kept, *new)
        )
        write(setup.measurements, found)
        return found.rows

    def report(self) -> list[str]:
        """Return the advice for people."""
        stamp = self._header.stamp
        simulated = [stamp.simulated] if stamp.simulated else []
        head = ["advice", *simulated, f"measured on {stamp.hardware}, {stamp.date[:10]}, eyas {stamp.eyas}"]
        found = self._advice()
        return [*head, *lines(found), *self._ended, f"kept in {self._setup.measurements}, which eyas plan reads"]

    def print_json(self) -> None:
        """Print the figures as one line of JSON."""
        new = rows(self._engines, list(self._cells), self._windows, self._header.stamp.date[:10])
        print_json({"bench": "tune", **msgspec.to_builtins(self._header), "figures": msgspec.to_builtins(new)})

    def _advice(self) -> Advice:
        return replace(advise(self._engines, list(self._cells), self._windows), duel=tuple(self._duel))

    def _begin(self, journal: Journal) -> None:
        assert journal.path is not None
        journal.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._setup.is_resumed and journal.path.exists():
            found = journal.resume()
            wanted, had = self._setup.header.settings, found.header.settings
            if changed := sorted(name for name in wanted if wanted[name] != had.get(name)):
                raise UserError(f"{journal.path} was measured with another {', '.join(changed)}; leave out --resume")
            self._windows += found.windows
            self._header = Header(stamp=self._setup.header.stamp, settings=had, run=found.header.run)
            return
        journal.path.unlink(missing_ok=True)
        journal.begin(self._setup.header)

    def _plan(self) -> None:
        """Plan all arms; where no engine can hold the longest prompts, without those. Raises UserError."""
        while True:
            reasons = self._plan_all()
            if self._engines:
                self._ended += [f"not measured: {text}" for text in reasons]
                return
            longest = max(cell.context for cell in self._cells)
            self._cells = {cell: weight for cell, weight in self._cells.items() if cell.context < longest}
            if not self._cells:
                raise UserError("; ".join(reasons))
            self._ended.append(f"not measured: prompts of {longest} tokens: {'; '.join(reasons)}")

    def _plan_all(self) -> list[str]:
        """Plan the arms of all engines, and return why some cannot be had."""
        ask = served(self._setup.ask, self._cells, self._setup.max_tokens, self._setup.native_context)
        reasons = []
        for engine in self._setup.engines:
            try:
                found, declined = candidates(ask, engine, self._planned)
            except UserError as error:
                reasons.append(f"{engine}: {error}")
                continue
            self._engines.append(found)
            self._ended += [f"not measured: {text}" for text in declined]
        return reasons

    def _planned(self, ask: Ask) -> Plan:
        while (port := free_port()) in self._ports:
            pass
        self._ports.add(port)
        return self._setup.plan(replace(ask, port=port))

    def _sweep(self, number: int, group: Sequence[Candidate], hands: _Hands, journal: Journal, steady_s: float) -> None:
        left = len(self._engines) - number
        reserve_s = self._setup.budget_s * DUEL_SHARE if len(self._engines) > 1 else 0.0
        now = self._clock()
        contest = contest_of(
            group[0], group[1:], self._cells, start_s=START_S, shares=is_shared([one.plan for one in group])
        )
        outcome = self._contest(contest, hands, journal, steady_s, now + (self._deadline - reserve_s - now) / left)
        self._ended.append(f"{group[0].engine}: {outcome.reason}")
        self._ended += [f"left out: {name}: {why}" for name, why in outcome.failed.items()]

    def _compare(self, hands: _Hands, journal: Journal, steady_s: float) -> None:
        """Measure the best arms of two engines in turns, at the load that counts most."""
        cell = main_cell(self._cells)
        best = [choice.drafts for choice in self._advice().choices if choice.cell == cell]
        if len(best) < 2 or not is_shared([one.plan for one in best]):
            return
        first, *others = best
        contest = replace(contest_of(first, others, {cell: 1.0}, start_s=START_S, shares=True), first_turn=TURNS)
        outcome = self._contest(contest, hands, journal, steady_s, self._deadline)
        own = [window for window in self._windows if window.turn >= TURNS]
        for other in others:
            names = [window_name(one.name, cell.context) for one in (first, other)]
            found = verdict(own, base=names[0], arm=names[1], speed=total_speed)
            if found.findings:
                self._duel.append(f"against {first.name}: {found.sentence}")
        self._ended += [f"left out: {name}: {why}" for name, why in outcome.failed.items()]

    def _contest(self, contest: Contest, hands: _Hands, journal: Journal, steady_s: float, deadline: float) -> Outcome:
        base = next(one for group in self._engines for one in group if one.name == contest.base)
        return sweep(
            contest,
            hands,
            journal,
            windows=self._windows,
            overhead_s=steady_s + max(steady_s, WARM_UP_S),
            answers_s={cell: answers_s(base, cell, self._setup.max_tokens) for cell in contest.weights},
            deadline=deadline,
            end=min(deadline + GRACE_SHARE * self._setup.budget_s, self._deadline),
            clock=self._clock,
            say=self._said,
        )

    def _said(self, text: str) -> None:
        self._say(f"{max(self._deadline + END_S - self._clock(), 0.0):5.0f} s left  {text}")

    def _method(self, steady_s: float) -> list[str]:
        stamp, setup = self._header.stamp, self._setup
        cells = ", ".join(f"{cell.concurrency} x {cell.context}" for cell in self._cells)
        return [
            f"eyas tune {setup.ask.model}",
            *([stamp.simulated] if stamp.simulated else []),
            f"machine   {stamp.hardware}",
            f"engines   {'; '.join(', '.join(one.name for one in group) for group in self._engines)}",
            f"loads     {cells} (conversations x tokens of a prompt), answers of at most {setup.max_tokens} tokens",
            f"budget    {setup.budget_s:.0f} s; windows of {steady_s:.1f} s, each after a short warm-up",
            *([f"resumed   {len(self._windows)} windows are there"] if self._windows else []),
        ]


class _Hands:
    """Starts arms by their plans, and measures them by their addresses."""

    def __init__(self, servers: Servers, measurer: Measurer, plans: Mapping[str, Plan]) -> None:
        self._servers, self._measurer, self._plans = servers, measurer, plans
        self._urls: dict[str, str] = {}

    def start(self, name: str, *, within_s: float) -> None:
        self._urls[name] = self._servers.start(self._plans[name], within_s=within_s)

    def stop(self, name: str) -> None:
        self._urls.pop(name, None)
        self._servers.stop(self._plans[name].choice.name)

    def windows(self, names: Sequence[str], cell: Cell, turn: int, *, within_s: float) -> list[Window]:
        arms = [(window_name(name, cell.context), self._urls[name]) for name in names]
        return self._measurer.windows(arms, cell, turn, within_s=within_s)

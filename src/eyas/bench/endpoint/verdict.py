"""The verdict: whether an arm pays against another, under each load, from windows that took turns.

A speed-up is the geometric mean of pairs' ratios, with Student's t interval of their logarithms. Percentile and BCa
bootstraps over 5 pairs are too narrow: without any difference they find one in 16 % of runs, this verdict in 4 % (the
log has the table). "Pays" and "loses" also need six of seven pairs on their side: one odd window decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import Any, Literal

from msgspec import Struct, to_builtins

from eyas.bench.endpoint.figures import figures_of
from eyas.bench.endpoint.records import Load, Window
from eyas.bench.stats import Interval, geometric_mean, holm, p_value
from eyas.client.endpoint.acceptance.counts import total

__all__ = [
    "MIN_PAIRS",
    "Finding",
    "Says",
    "Verdict",
    "conversation_speed",
    "joules_per_token",
    "total_speed",
    "verdict",
]

MIN_PAIRS = 5
PAIRS_PER_EXCEPTION = 7  # one pair in seven may point the other way
Says = Literal["pays", "loses", "not shown"]
Speed = Callable[[Window], float | None]


class Finding(Struct, frozen=True, kw_only=True):
    """One load. `speed_up` is the arm's speed over the base's; None below two pairs.

    `break_even` is the acceptance length at which the arm would be as fast as the base: its own, `acceptance_length`,
    over the speed-up. `energy` is the arm's joules per token over the base's. `p` is that of no difference.
    """

    load: Load
    ratios: tuple[float, ...]
    num_void: int  # pairs of which a window is void
    says: Says
    why: str = ""  # nothing is shown
    speed_up: Interval | None = None
    p: float = 1.0
    acceptance_length: float | None = None
    break_even: Interval | None = None
    joules: float | None = None  # per token of the arm
    energy: Interval | None = None


class Verdict(Struct, frozen=True, kw_only=True):
    """An arm against a base, with a finding for each load, by concurrency and then by rate."""

    base: str
    arm: str
    findings: tuple[Finding, ...]

    @property
    def sentence(self) -> str:
        """One sentence for people: where the arm pays, where it loses, and where nothing is shown."""
        if not self.findings:
            return f"{self.arm}: nothing was measured"
        groups = [list(group) for _, group in groupby(self.findings, key=lambda one: (one.says, one.load.rate is None))]
        parts = [_part(group, self.arm, self.findings[-1]) for group in groups]
        return f"{self.arm}{':' if groups[0][0].says == 'not shown' else ''} {', '.join(parts)}"

    @property
    def together(self) -> str:
        """One sentence on several loads: each finding alone is wrong in 5 % of runs, one of many more often.

        "" for a single one. Holm's procedure keeps the chance of any error at 5 %.
        """
        tested = [one for one in self.findings if len(one.ratios) >= MIN_PAIRS]
        if len(tested) < 2:
            return ""
        kept = holm([one.p for one in tested])
        found = [_at(one.load) for one, holds in zip(tested, kept, strict=True) if holds and one.says != "not shown"]
        return (
            f"{len(tested)} loads, each at 95 %: one of them is wrong by chance in up to {1 - 0.95 ** len(tested):.0%} "
            f"of runs; at 95 % for all together (Holm) {'these hold: ' + ', '.join(found) if found else 'none holds'}"
        )

    def lines(self) -> list[str]:
        """Format for people: the sentence, what it takes to break even, energy, and the word on several loads."""
        lines = [self.sentence]
        for one in self.findings:
            if one.break_even is not None and one.acceptance_length is not None:
                where = f"at {_at(one.load)} it breaks even at an acceptance length of {one.break_even.text(2)}"
                lines.append(f"  {where}, and has {one.acceptance_length:.2f}")
            if one.energy is not None and one.joules is not None:
                lines.append(
                    f"  at {_at(one.load)} a token takes {one.joules:.3f} J, x{one.energy.text(3)} of {self.base}"
                )
        return [*lines, *(["  " + self.together] if self.together else [])]

    def json(self) -> dict[str, Any]:
        """Return it for scripts, with its sentence."""
        return {**to_builtins(self), "sentence": self.sentence, "together": self.together}


def verdicts_of(windows: Sequence[Window], arms: Sequence[str]) -> list[Verdict]:
    """Compare each arm with the first."""
    return [verdict(windows, base=arms[0], arm=arm) for arm in arms[1:]]


def verdict(
    windows: Iterable[Window], *, base: str, arm: str, speed: Speed | None = None, min_pairs: int = MIN_PAIRS
) -> Verdict:
    """Compare two arms under each load that both have. Windows of one turn are a pair, unless one of them is void.

    `speed` is in tokens a second, `conversation_speed` by default; `min_pairs` may not go below five.
    """
    assert min_pairs >= MIN_PAIRS
    pairs: dict[Load, dict[int, dict[str, Window]]] = {}
    for window in windows:
        if window.arm in (base, arm):
            pairs.setdefault(window.load, {}).setdefault(window.turn, {})[window.arm] = window
    findings = [
        _finding(load, turns, base, arm, speed or conversation_speed, min_pairs)
        for load, turns in sorted(pairs.items(), key=lambda item: _order(item[0]))
    ]
    return Verdict(base=base, arm=arm, findings=tuple(findings))


def conversation_speed(window: Window) -> float | None:
    """Return the tokens a second of a conversation after its first: 1 / median TPOT. None: tokens are not counted."""
    times = figures_of(window).tpot_s
    return 1 / median(times) if times and median(times) > 0 else None


def total_speed(window: Window) -> float | None:
    """Return the tokens a second of all conversations together; None: the endpoint does not count them."""
    return figures_of(window).tokens_per_s


def joules_per_token(window: Window) -> float | None:
    """Return the energy of a token in the steady part; None where the driver does not tell."""
    rate = figures_of(window).tokens_per_s
    seconds = window.ended_s - window.started_s
    return window.energy_j / (rate * seconds) if window.energy_j is not None and rate else None


def _finding(
    load: Load, turns: Mapping[int, Mapping[str, Window]], base: str, arm: str, speed: Speed, min_pairs: int
) -> Finding:
    whole = [(turn[base], turn[arm]) for _, turn in sorted(turns.items()) if turn.keys() >= {base, arm}]
    pairs = [pair for pair in whole if not pair[0].void and not pair[1].void]
    num_void = len(whole) - len(pairs)
    ratios = _ratios(pairs, speed)
    if len(ratios) < 2:
        why = f"{len(ratios)} of at least {min_pairs} pairs" + (", others are void" if num_void else "")
        if pairs and not ratios:
            why = "the endpoint does not say how many tokens it sends"
        return Finding(load=load, ratios=ratios, num_void=num_void, says="not shown", why=why)
    found = geometric_mean(ratios)
    says, why = _decide(ratios, found, min_pairs)
    length = None if (counts := total(w.counts for _, w in pairs if w.counts is not None)) is None else counts.length
    energy = _ratios(pairs, joules_per_token)
    return Finding(
        load=load,
        ratios=ratios,
        num_void=num_void,
        says=says,
        why=why,
        speed_up=found,
        p=p_value(ratios),
        acceptance_length=length,
        break_even=None if length is None else Interval(length / found.value, length / found.high, length / found.low),
        joules=median(j for _, w in pairs if (j := joules_per_token(w)) is not None) if energy else None,
        energy=geometric_mean(energy) if len(energy) > 1 else None,
    )


def _ratios(pairs: Sequence[tuple[Window, Window]], value: Speed) -> tuple[float, ...]:
    """Return the arm's value over the base's for each pair that has both."""
    both = [(value(base), value(arm)) for base, arm in pairs]
    return tuple(b / a for a, b in both if a and b)


def _decide(ratios: Sequence[float], found: Interval, min_pairs: int) -> tuple[Says, str]:
    if len(ratios) < min_pairs:
        return "not shown", f"{len(ratios)} of at least {min_pairs} pairs"
    if found.low <= 1 <= found.high:
        return "not shown", "the interval crosses 1"
    against = sum((ratio > 1) != (found.value > 1) for ratio in ratios)
    if against > len(ratios) // PAIRS_PER_EXCEPTION:
        return "not shown", f"{against} of {len(ratios)} pairs point the other way"
    return ("pays" if found.value > 1 else "loses"), ""


def _part(group: Sequence[Finding], arm: str, last: Finding) -> str:
    """Return the words for neighbouring loads with the same finding."""
    says, first, end = group[0].says, _number(group[0].load), _number(group[-1].load)
    unit, figures = _unit(group[-1].load), _figures(group)
    if says == "not shown":
        where = f"from {first} {unit} on" if group[-1] is last and first != end else f"at {_span(group)} {unit}"
        reasons = ", ".join(dict.fromkeys(one.why for one in group))
        return f"not shown {where} ({': '.join(filter(None, (figures, reasons)))})"
    verb = says if not _is_plural(arm) else says[:-1]
    return f"{verb} {'from' if first != end else 'at'} {_span(group)} {unit} ({figures})"


def _is_plural(arm: str) -> bool:
    """Return whether an arm is named by a number of drafts, such as `3-drafts`."""
    return re.fullmatch(r"\d+[ -]drafts", arm) is not None


def _span(group: Sequence[Finding]) -> str:
    first, end = _number(group[0].load), _number(group[-1].load)
    return first if first == end else f"{first} to {end}"


def _figures(group: Sequence[Finding]) -> str:
    """Return the speed-up, over several loads the geometric mean in each turn."""
    if any(one.speed_up is None for one in group):
        return ""
    turns = list(zip(*(one.ratios for one in group), strict=False))
    found = geometric_mean([_mean(turn) for turn in turns]) if len(turns) > 1 else group[0].speed_up
    assert found is not None
    return f"x{found.value:.2f}, {found.low:.2f}..{found.high:.2f}"


def _mean(ratios: Sequence[float]) -> float:
    return geometric_mean(ratios).value if len(ratios) > 1 else ratios[0]


def _at(load: Load) -> str:
    return f"{_number(load)} {_unit(load)}"


def _number(load: Load) -> str:
    return str(load.concurrency) if load.concurrency is not None else f"{load.rate:g}"


def _unit(load: Load) -> str:
    if load.concurrency is None:
        return "requests a second"
    return "conversation" if load.concurrency == 1 else "conversations"


def _order(load: Load) -> tuple[str, int, bool, float]:
    return load.mode, load.max_tokens, load.concurrency is None, load.concurrency or load.rate or 0.0

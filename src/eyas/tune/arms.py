"""The arms of a sweep: plans of one engine that differ in their drafts, and what the planner's model expects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import log, sqrt

from msgspec import Struct
from msgspec.structs import replace

from eyas.base.errors import UserError
from eyas.base.serving.engines import EngineName
from eyas.recipes.estimate import speed
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.measured import drafts_of
from eyas.recipes.plan import Drafts, Plan, Range
from eyas.recipes.planning.ask import Ask
from eyas.tune.schedule import Arm, Belief, Cell, Contest

__all__ = [
    "SLACK",
    "Candidate",
    "answers_s",
    "candidates",
    "contest_of",
    "expected",
    "is_shared",
    "main_cell",
    "served",
    "sweep_cells",
]

LENGTHS = (1, 2, 3, 4, 5, 7)  # drafts that are tried; 7 and a token of the target's own fill a tile of 8 rows
CONTEXTS = (128, 2048, 8192, 32_768)
CONCURRENCIES = (1, 4, 8)
MAIN_WEIGHT = 2.0
MIDDLE_80 = 1.2816  # deviations on each side of the mean that hold 80 %, as the model's ranges shall
LEAST_DEVIATION = 0.1
ROOM = 0.9  # of the memory, for two engines at once
SLACK = 256  # tokens of a context for what a template adds, and for a cut that is only about right

Planner = Callable[[Ask], Plan]


class Candidate(Struct, frozen=True, kw_only=True):
    """An arm that can be started. The base of its engine has no drafts."""

    name: str
    plan: Plan

    @property
    def engine(self) -> EngineName:
        return self.plan.choice.engine

    @property
    def drafts(self) -> Drafts:
        return drafts_of(self.plan.choice)


def sweep_cells(ask: Ask, contexts: Sequence[int], concurrencies: Sequence[int], room: int) -> dict[Cell, float]:
    """Return the loads with their weights: every concurrency with the shortest prompts, longer prompts at the main one.

    `room` is what the model's context leaves for a prompt. The concurrency of `ask` is the main one.
    """
    able = sorted(context for context in set(contexts) if context <= room)
    if not able:
        raise UserError(f"no context fits: the model leaves {room} tokens for a prompt; give --context 128")
    wanted = sorted({*concurrencies, *(() if ask.concurrency is None else (ask.concurrency,))})
    main = ask.concurrency or (4 if 4 in wanted else wanted[0])
    cells = {Cell(able[0], concurrency): 1.0 for concurrency in wanted}
    cells[Cell(able[0], main)] = MAIN_WEIGHT
    return {**cells, **{Cell(context, main): 1.0 for context in able[1:]}}


def served(ask: Ask, cells: Iterable[Cell], max_tokens: int, native_context: int) -> Ask:
    """Return the question for servers that take all loads, answers of `max_tokens` included."""
    contexts, concurrencies = zip(*((cell.context, cell.concurrency) for cell in cells), strict=True)
    room = max(contexts) + max(contexts) // 4 + max_tokens + SLACK
    return replace(ask, context=min(room, native_context), concurrency=max(concurrencies))


def main_cell(cells: dict[Cell, float]) -> Cell:
    """Return the load that counts most."""
    return max(cells, key=lambda cell: cells[cell])


def candidates(ask: Ask, engine: EngineName, make: Planner) -> tuple[list[Candidate], list[str]]:
    """Return an engine's arms, the one without drafts first, and what cannot be had, in words. `make` plans.

    Raises UserError if the engine cannot serve the model without drafts.
    """
    declined: list[str] = []
    found = [_candidate(ask, engine, make, spec="none")]
    drafting = [("auto", None)] if engine == "eyas" else []
    for name, number in (*drafting, *((str(number), number) for number in LENGTHS)):
        try:
            found.append(_candidate(ask, engine, make, spec="eagle3", number=number))
        except UserError as error:
            declined.append(f"{engine} with {name} drafts: {error}")
    return found, declined


def _candidate(ask: Ask, engine: EngineName, make: Planner, *, spec: str, number: int | None = None) -> Candidate:
    text = "no drafts" if spec == "none" else "auto" if number is None else f"{number} draft{'s' * (number != 1)}"
    part = "none" if spec == "none" else "auto" if number is None else str(number)
    kind = ask.model.rpartition("/")[2].replace(":", "-").lower()
    asked = replace(
        ask, engine=engine, spec=spec, draft_tokens=number, name=f"tune-{kind}-{engine}-{part}".replace(".", "-")[:63]
    )
    return Candidate(name=f"{engine} {text}", plan=make(asked))


def expected(candidate: Candidate, cell: Cell) -> Range:
    """Return the tokens per second that the planner's model expects at a load."""
    plan, known = candidate.plan, knowledge()
    choice = replace(plan.choice, concurrency=cell.concurrency)
    model, head = known.models[choice.model], None if choice.head is None else known.heads.get(choice.head)
    return speed.decoding(choice, plan.box, model, head, cell.context, [])


def answers_s(candidate: Candidate, cell: Cell, max_tokens: int) -> float:
    """Return the seconds that one answer of every conversation takes at a load, by the planner's model."""
    plan, rate = candidate.plan, expected(candidate, cell)
    first = speed.first_token(plan.choice, plan.box, knowledge().models[plan.choice.model], cell.context)
    seconds = cell.concurrency * max_tokens / sqrt(rate.low * rate.high)
    return cell.concurrency * sqrt(first.low * first.high) + seconds


def contest_of(
    base: Candidate, others: Sequence[Candidate], cells: dict[Cell, float], *, start_s: float, shares: bool
) -> Contest:
    """Return the contest of an engine's arms; the model's estimates are the beliefs before anything is measured."""
    return Contest(
        base=base.name,
        base_start_s=start_s,
        arms=tuple(
            Arm(name=one.name, start_s=start_s, prior={cell: _prior(base, one, cell) for cell in cells})
            for one in others
        ),
        weights=cells,
        is_shared=shares,
    )


def is_shared(plans: Sequence[Plan]) -> bool:
    """Whether any two of the plans fit on the machine together, by what each is expected to take, with a tenth free."""
    takes = sorted((max(plan.memory.needed, plan.memory.reserved) + plan.memory.host for plan in plans), reverse=True)
    hardware = plans[0].box.hardware
    return plans[0].box.num_gpus == 1 and sum(takes[:2]) <= ROOM * (hardware.usable_bytes - hardware.os_reserve_bytes)


def _prior(base: Candidate, one: Candidate, cell: Cell) -> Belief:
    """Return the model's belief about the logarithm of the speed-up."""
    of_base, of_one = expected(base, cell), expected(one, cell)
    middles = [sqrt(found.low * found.high) for found in (of_base, of_one)]
    deviation = log(of_one.high / of_one.low) / 2 / MIDDLE_80
    return Belief(log(middles[1] / middles[0]), max(deviation, LEAST_DEVIATION))

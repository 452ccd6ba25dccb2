"""Makes the plan: every engine, head and number of draft tokens becomes a candidate (`candidates.py`), candidates that
cannot work are rejected with a reason, and the rest are compared by expected speed.

Pure: the box is given, nothing is started or downloaded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from msgspec.structs import replace

from eyas.base.errors import UserError
from eyas.base.units import readable
from eyas.recipes.advice import guides, tuning
from eyas.recipes.advice.evidence import evidence
from eyas.recipes.advice.issues import Issue
from eyas.recipes.knowledge.tables import Knowledge, knowledge
from eyas.recipes.plan import Box, Measured, Note, Plan
from eyas.recipes.planning.ask import Ask, Target, settle
from eyas.recipes.planning.candidates import Candidate, Refusal, candidates
from eyas.recipes.planning.reasons import leaves_idle, reasons, refusals, warnings
from eyas.recipes.records import CPU

__all__ = ["Ask", "make_plan"]

MAX_LARGER = 4  # boxes that are named where this one is too small
SMALLER = 0.8  # of the memory: what may be offered instead of a model that is too large


def make_plan(
    ask: Ask,
    *,
    box: Box | None = None,
    features: tuple[str, ...] = (),
    ran_here: frozenset[tuple[str, str]] = frozenset(),
    here: Sequence[Measured] = (),
) -> Plan:
    """The best plan for `ask`. `box` is the probed machine where `ask.on` is "here", `features` what else it is like.

    `ran_here` names (model, engine) pairs that have already answered on this very machine, `here` are the speeds of the
    model that were measured on it. Raises UserError, with the reason of each engine, where nothing can work.
    """
    known = knowledge()
    target = settle(ask, known, box, features)
    found = list(candidates(target, known, here))
    able = [candidate for candidate in found if isinstance(candidate, Candidate)]
    refused = [refusal for refusal in found if isinstance(refusal, Refusal)]
    if not able:
        raise UserError(_nothing_works(target, refused, known))
    plain = {one.choice.engine for one in able if one.speed.measured is not None and one.choice.method == "none"}
    ranked = sorted(able, key=lambda one: (_holds(one, plain), one.score), reverse=True)
    best = ranked[0]
    return _plan(best, ranked[1:], refused, target, known, ran_here)


def _holds(one: Candidate, plain: Collection[str]) -> bool:
    """Whether nothing measured speaks against a plan: of engines that were measured without drafts (`plain`) only
    drafts that were found to pay are better than none."""
    is_open = one.choice.engine not in plain or one.choice.method == "none"
    return is_open or (one.speed.measured is not None and one.speed.measured.finding == "pays")


def _plan(
    best: Candidate,
    others: Sequence[Candidate],
    refused: Sequence[Refusal],
    target: Target,
    known: Knowledge,
    ran_here: frozenset[tuple[str, str]],
) -> Plan:
    return Plan(
        box=target.box,
        choice=best.choice,
        emission=best.emission,
        memory=best.memory,
        speed=best.speed,
        reasons=reasons(best, others, refused, target, known),
        refused=refusals(refused, known),
        warnings=(
            *warnings(best, [*others, *_of_other_engines(best, target, known)], target, known),
            *(_issue_note(issue) for issue in best.issues),
            *_left_out(best, refused, target),
        ),
        tuning=(*tuning.advice(best.facts), *_advice(best, target, known)),
        evidence=evidence(best.choice, target.box, ran_here),
        deviations=guides.deviations(best.choice, target.box, best.emission),
    )


def _advice(best: Candidate, target: Target, known: Knowledge) -> Iterator[Note]:
    for record in (known.engines[best.choice.engine], target.box.hardware):
        for text in record.advice:
            yield Note(text=text, source=record.sources[0])


def _issue_note(issue: Issue) -> Note:
    return Note(
        text=f"{issue.symptom} ({issue.trigger}): {issue.workaround}", source="; ".join(issue.sources), issue=issue.name
    )


def _of_other_engines(best: Candidate, target: Target, known: Knowledge) -> list[Candidate]:
    """Return plans of other engines than the one that was asked for, where it leaves GPUs idle."""
    if target.ask.engine == "auto" or not leaves_idle(best, target, known):
        return []
    ask = replace(target.ask, engine="auto", version=None, image=None, binary=None)
    found = candidates(replace(target, ask=ask), known)
    return [candidate for candidate in found if isinstance(candidate, Candidate)]


def _left_out(best: Candidate, refused: Sequence[Refusal], target: Target) -> Iterator[Note]:
    """Yield what forbids speculation on an engine that was asked for: who adds it by hand should know."""
    if target.ask.engine == "auto" or best.choice.method != "none":
        return
    forbidding = {refusal.issue.name: refusal.issue for refusal in refused if refusal.issue is not None}
    for issue in forbidding.values():
        yield Note(
            text=f"left out: {issue.trigger}, since {issue.symptom}; {issue.workaround}",
            source="; ".join(issue.sources),
            issue=issue.name,
        )


def _nothing_works(target: Target, refused: Sequence[Refusal], known: Knowledge) -> str:
    """Return one line on what speaks against each engine, and against heads where one was asked for."""
    model, box = target.model, target.box
    plain = [refusal for refusal in refused if refusal.head is None or target.is_speculation_asked] or list(refused)
    least = [refusal.least_bytes for refusal in plain if refusal.least_bytes is not None]
    if least and not any(refusal.fits_smaller for refusal in plain):
        if target.memory_cap is not None and min(least) <= box.hardware.usable_bytes - box.hardware.os_reserve_bytes:
            return (
                f"{model.name} takes at least {readable(min(least))} of {box.name}, and --memory allows "
                f"{readable(target.memory_cap)}; allow more, or take a smaller model"
            )
        served = {name for engine in known.engines.values() for name in engine.models}
        room = SMALLER * box.hardware.usable_bytes
        smaller = [
            other.name
            for other in known.models.values()
            if other.name in served
            and other.roles[0] == target.role
            and other.total_bytes < min(room, model.total_bytes)
        ]
        has = f"{'each GPU' if box.num_gpus > 1 else 'it'} has {readable(box.hardware.usable_bytes)}"
        larger = ", ".join(f"--on {name}" for name in _larger_boxes(target, known))
        advice = next((f". {text}" for text in box.hardware.advice if model.name in text), "")
        return (
            f"{model.name} is too large for {box.name}: it takes at least {readable(min(least))}, {has}; take "
            + f"a larger box ({larger})" * bool(larger)
            + " or " * bool(larger and smaller)
            + f"a smaller model ({', '.join(smaller)})" * bool(smaller)
            + advice.rstrip(".")
        )
    against = "; ".join(note.text for note in refusals(plain, known))
    return f"no plan for {model.name} on {box.name}: {against or 'no engine runs it'}"


def _larger_boxes(target: Target, known: Knowledge) -> list[str]:
    """Return boxes on which what was asked would fit, the smallest first."""
    found: list[tuple[int, str]] = []
    for hardware in known.hardware.values():
        for count in () if hardware.unplanned or hardware.compute_capability == CPU else sorted(hardware.counts):
            name = hardware.name if count == 1 else f"{count}x{hardware.name}"
            ask = replace(target.ask, on=name, nodes=(), memory=None)
            if any(isinstance(one, Candidate) for one in candidates(settle(ask, known, None), known)):
                found.append((count * hardware.usable_bytes, name))
                break
    return [name for _, name in sorted(found)[:MAX_LARGER]]

"""Makes the plan: every engine, head and number of draft tokens becomes a candidate (`candidates.py`), candidates that
cannot work are rejected with a reason, and the rest are compared by expected speed.

Pure: the box is given, nothing is started or downloaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eyas.base.errors import UserError
from eyas.base.units import readable
from eyas.recipes.advice import guides, tuning
from eyas.recipes.advice.evidence import evidence
from eyas.recipes.advice.issues import Issue
from eyas.recipes.knowledge.tables import Knowledge, knowledge
from eyas.recipes.plan import Box, Note, Plan
from eyas.recipes.planning.ask import Ask, Target, settle
from eyas.recipes.planning.candidates import Candidate, Refusal, candidates
from eyas.recipes.planning.reasons import reasons, refusals, warnings

__all__ = ["Ask", "make_plan"]

SMALLER = 0.8  # of the memory: what may be offered instead of a model that is too large


def make_plan(
    ask: Ask,
    *,
    box: Box | None = None,
    features: tuple[str, ...] = (),
    ran_here: frozenset[tuple[str, str]] = frozenset(),
) -> Plan:
    """The best plan for `ask`. `box` is the probed machine where `ask.on` is "here", `features` what else it is like.

    `ran_here` names (model, engine) pairs that have already answered on this very machine. Raises UserError, with the
    reason of each engine, where nothing can work.
    """
    known = knowledge()
    target = settle(ask, known, box, features)
    found = list(candidates(target, known))
    able = [candidate for candidate in found if isinstance(candidate, Candidate)]
    refused = [refusal for refusal in found if isinstance(refusal, Refusal)]
    if not able:
        raise UserError(_nothing_works(target, refused, known))
    ranked = sorted(able, key=lambda candidate: candidate.score, reverse=True)
    best = ranked[0]
    return _plan(best, ranked[1:], refused, target, known, ran_here)


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
        warnings=(*warnings(best, target, known), *(_issue_note(issue) for issue in best.issues)),
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


def _nothing_works(target: Target, refused: Sequence[Refusal], known: Knowledge) -> str:
    """Return one line on what speaks against each engine, and against heads where one was asked for."""
    model, box = target.model, target.box
    plain = [refusal for refusal in refused if refusal.head is None] or list(refused)
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
        return (
            f"{model.name} is too large for {box.name}: it takes at least {readable(min(least))}, {has}; take a larger "
            "box (--on spark) or a smaller model" + (f" ({', '.join(smaller)})" if smaller else "")
        )
    against = "; ".join(note.text for note in refusals(plain, known))
    return f"no plan for {model.name} on {box.name}: {against or 'no engine runs it'}"

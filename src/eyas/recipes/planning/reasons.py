"""Reasons for a plan, in sentences for people: the engine, the head, the draft tokens, and what was rejected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from eyas.base.units import readable
from eyas.recipes.estimate import speed
from eyas.recipes.knowledge.tables import Knowledge
from eyas.recipes.plan import Choice, Note, SpeedEstimate
from eyas.recipes.planning.ask import CLAUDE_CODE_CONTEXT, Target
from eyas.recipes.planning.candidates import Candidate, Refusal
from eyas.recipes.wording import pays_from, span

__all__ = ["reasons", "refusals", "warnings"]

MAX_OTHERS, MAX_PUBLISHED = 4, 3
USUAL_DRAFTS = 3  # what guides and engines take by default


def reasons(
    best: Candidate, others: Sequence[Candidate], refused: Sequence[Refusal], target: Target, known: Knowledge
) -> tuple[Note, ...]:
    losers = [refusal.loses for refusal in refused if refusal.loses is not None]
    return (
        *_engine(best, others, target, known),
        *_memory(best, known),
        *_speculation(best, others, losers, target, known),
    )


def refusals(refused: Sequence[Refusal], known: Knowledge) -> tuple[Note, ...]:
    """Return what speaks against engines, then against heads; one note for each reason, shared by engines."""
    engines: dict[tuple[str | None, str], list[str]] = {}
    for refusal in sorted(refused, key=lambda refusal: refusal.head is not None):
        engines.setdefault((refusal.head, refusal.reason), []).append(known.engines[refusal.engine].title)
    return tuple(
        Note(text=_refusal(known.heads[head].repo if head in known.heads else head, ", ".join(titles), reason))
        for (head, reason), titles in engines.items()
    )


def _refusal(head: str | None, titles: str, reason: str) -> str:
    if head is None:
        return f"{titles}: {reason}"
    return f"{head} {reason}" if reason.startswith("is ") else f"{head} with {titles}: {reason}"


def warnings(best: Candidate, target: Target, known: Knowledge) -> tuple[Note, ...]:
    """Return what a user should know before the start; the planner adds known issues."""
    return tuple(_warnings(best, target, known))


def _warnings(best: Candidate, target: Target, known: Knowledge) -> Iterator[Note]:
    choice, estimate = best.choice, best.speed
    if choice.purpose == "claude-code" and choice.context < CLAUDE_CODE_CONTEXT:
        yield Note(
            text=f"Claude Code's own prompt and tools take 10 to 18 thousand tokens, and it keeps as many free again: "
            f"{choice.context} tokens are few, give it --context 128k"
        )
    if not best.memory.fits:
        num_whole = best.memory.max_tokens // choice.context
        yield Note(
            text=f"only {num_whole} of {choice.concurrency} conversations of full length fit at once; when more are "
            "that long, some wait or are computed again"
        )
    if not target.model.num_experts and target.box.hardware.unified:
        yield from (Note(text=text, source=target.model.sources[0]) for text in target.model.advice)
    if choice.method != "none" and loses(estimate):
        yield Note(
            text=f"speculation is expected to cost time here ({span(estimate.speedup)}x); --spec none is faster",
            source="eyas.recipes.estimate.speed",
        )
    elif choice.method != "none" and estimate.speedup.low < 1:
        yield Note(text=f"whether speculation pays here is open ({span(estimate.speedup)}x expected): measure it")
    if target.box.nodes > 1 and not all("," in node for node in target.ask.nodes or ("",)):
        assumed = f"addresses {', '.join(node.address for node in choice.nodes)}"
        if choice.nodes[0].interfaces:
            assumed += f" and interfaces {', '.join(choice.nodes[0].interfaces)}"
        yield Note(text=f"{assumed} are assumed where no --node says otherwise: --node USER@HOST=ADDRESS,INTERFACE,...")
    if any(image.tag == choice.image and image.version is None for image in known.engines[choice.engine].images):
        yield Note(text=f"{choice.image} is a tag that moves: pin the digest that works for you")


def _engine(best: Candidate, others: Sequence[Candidate], target: Target, known: Knowledge) -> Iterator[Note]:
    choice = best.choice
    engine = known.engines[choice.engine]
    if target.ask.engine != "auto":
        yield Note(text=f"{engine.title}: asked for")
    elif choice.role == "embeddings":
        yield Note(text=f"{engine.title}: expected to be the fastest of those that are planned for embeddings")
    else:
        rivals: dict[str, Candidate] = {}
        for other in others:
            if other.choice.engine != choice.engine:
                rivals.setdefault(other.choice.engine, other)
        yield Note(
            text=f"{engine.title}: {span(best.speed.tokens_per_second)} tokens per second expected over "
            f"{choice.concurrency} at once, the best of what was weighed",
            source="eyas.recipes.estimate.speed",
        )
        shown = [(known.engines[name].title, rival) for name, rival in list(rivals.items())[:MAX_OTHERS]]
        if shown:
            rates = ", ".join(f"{title} {span(rival.speed.tokens_per_second)}" for title, rival in shown)
            yield Note(text=f"the others: {rates}")
        for title, rival in shown:
            if rival.expected > best.score:
                yield Note(text=f"not {title}: it {', and it '.join(rival.doubts)}")
    for published in best.speed.published[:MAX_PUBLISHED]:
        yield Note(text=f"published: {published.text}", source=f"{published.source}, {published.date}")


def _memory(best: Candidate, known: Knowledge) -> Iterator[Note]:
    choice, memory = best.choice, best.memory
    if memory.cap is None:
        return
    how = "it takes what it needs"
    if choice.memory_fraction is not None:
        how = f"its share of {choice.memory_fraction:g} keeps all that it takes below the cap"
    takes = readable(memory.reserved) + (f" and {readable(memory.host)} for its processes" if memory.host else "")
    yield Note(
        text=f"--memory {readable(memory.cap)}: {known.engines[choice.engine].title} takes {takes}; {how}",
        source="eyas.recipes.estimate.memory",
    )


def _speculation(
    best: Candidate, others: Sequence[Candidate], losers: Sequence[Choice], target: Target, known: Knowledge
) -> Iterator[Note]:
    choice, estimate = best.choice, best.speed
    if choice.head is None:
        yield from _without(best, others, losers, target, known)
        return
    head = target.head or known.heads[choice.head]
    yield Note(text=f"{head.repo}: {head.advice[0] if head.advice else head.title}", source=head.sources[0])
    yield Note(text=_pays(choice.draft_tokens, estimate), source="eyas.recipes.estimate.speed")
    most = head.max_draft_tokens or USUAL_DRAFTS
    if choice.draft_tokens < USUAL_DRAFTS <= most:
        longer = replace(choice, draft_tokens=USUAL_DRAFTS)
        yield Note(
            text=f"not more: {_pays(USUAL_DRAFTS, speed.estimate(longer, target.box, target.model, head))}",
            source="eyas.recipes.estimate.speed",
        )


def loses(estimate: SpeedEstimate) -> bool:
    """Whether even the best acceptance that is expected stays below what pays with experts drawn independently."""
    return estimate.acceptance is not None and estimate.acceptance.high < estimate.break_even_length


def _without(
    best: Candidate, others: Sequence[Candidate], losers: Sequence[Choice], target: Target, known: Knowledge
) -> Iterator[Note]:
    """Explain why there is no speculation: what the best head would do on this engine, else on another."""
    if target.ask.spec == "none":
        yield Note(text="no speculation: asked for")
        return
    engine = best.choice.engine
    drafting = [one.choice for one in others if one.choice.head] + list(losers)
    if not drafting:
        return
    choice = max(drafting, key=lambda one: (one.engine == engine, known.heads[one.head or ""].rank))
    head = known.heads[choice.head or ""]
    for num_drafts in (1, min(USUAL_DRAFTS, head.max_draft_tokens or USUAL_DRAFTS)):
        drafted = replace(choice, draft_tokens=num_drafts)
        estimate = speed.estimate(drafted, target.box, target.model, head)
        where = "" if choice.engine == engine else f" on {known.engines[choice.engine].title}"
        yield Note(
            text=f"no speculation: with {head.repo}{where} {_pays(num_drafts, estimate)}",
            source="eyas.recipes.estimate.speed",
        )
        if head.max_draft_tokens == 1:
            return


def _pays(num_drafts: int, estimate: SpeedEstimate) -> str:
    verdict = "may gain or lose"
    if loses(estimate):
        verdict = "loses" if estimate.speedup.high < 1 else "loses, unless neighbouring tokens share experts"
    elif estimate.speedup.low >= 1:
        verdict = "gains"
    drafts = f"{num_drafts} draft token{'s' * (num_drafts != 1)} a round"
    return f"{drafts} {verdict}, x{span(estimate.speedup)}: {pays_from(estimate)}"

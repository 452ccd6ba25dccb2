"""Reasons for a plan, in sentences for people: the engine, the head, the draft tokens, and what was rejected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt

from msgspec.structs import replace

from eyas.base.units import readable
from eyas.recipes.engines.front import router_port, why_front
from eyas.recipes.estimate import speed
from eyas.recipes.knowledge.images import inside, parse_image
from eyas.recipes.knowledge.tables import Knowledge
from eyas.recipes.measured import drafts_of
from eyas.recipes.plan import Choice, Drafts, Measured, Note, SpeedEstimate
from eyas.recipes.planning.ask import CLAUDE_CODE_CONTEXT, Target
from eyas.recipes.planning.candidates import Candidate, Refusal
from eyas.recipes.versions import compare
from eyas.recipes.wording import draft_tokens, pays_from, span

__all__ = ["against_model", "leaves_idle", "reasons", "refusals", "warnings"]

MAX_OTHERS, MAX_PUBLISHED = 4, 3
USUAL_DRAFTS = 3  # what guides and engines take by default


def reasons(
    best: Candidate, others: Sequence[Candidate], refused: Sequence[Refusal], target: Target, known: Knowledge
) -> tuple[Note, ...]:
    return (
        *_engine(best, others, target, known),
        *_memory(best, known),
        *_speculation(best, others, refused, target, known),
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
    says_of_what = reason.startswith(("is ", "cannot ", "wants "))  # such reasons name the engine, or hold of every one
    return f"{head} {reason}" if says_of_what else f"{head} with {titles}: {reason}"


def warnings(best: Candidate, others: Sequence[Candidate], target: Target, known: Knowledge) -> tuple[Note, ...]:
    """Return what a user should know before the start; the planner adds known issues."""
    return (*_idle(best, others, target, known), *_warnings(best, target, known))


def leaves_idle(best: Candidate, target: Target, known: Knowledge) -> bool:
    """Whether GPUs of the box have nothing to do; llama.cpp divides the layers among all."""
    engine = known.engines[best.choice.engine]
    return target.box.num_gpus > 1 and not engine.tensor_parallel and engine.runtime != "llama.cpp"


def _idle(best: Candidate, others: Sequence[Candidate], target: Target, known: Knowledge) -> Iterator[Note]:
    """Say that an engine for one GPU leaves the others idle, and what the best of those for all would give."""
    engine, num = known.engines[best.choice.engine], target.box.num_gpus
    if not leaves_idle(best, target, known):
        return
    text = f"{num - 1} of {num} GPUs stay idle: {engine.title} uses one"
    wide = [other for other in others if known.engines[other.choice.engine].tensor_parallel]
    if wide:
        other = max(wide, key=lambda one: one.score)
        name = known.engines[other.choice.engine].title
        text += (
            f"; {name} on all {num} is expected to give {span(other.speed.tokens_per_second)} tokens per second over "
            f"{best.choice.concurrency} at once (--engine {other.choice.engine})"
        )
    yield Note(text=text, source="eyas.recipes.estimate.speed")


def _warnings(best: Candidate, target: Target, known: Knowledge) -> Iterator[Note]:
    choice, estimate = best.choice, best.speed
    yield from _front(best, known)
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
    if choice.method != "none" and loses(estimate) and estimate.measured is None:
        yield Note(
            text=f"speculation is expected to cost time here ({span(estimate.speedup)}x); --spec none is faster",
            source="eyas.recipes.estimate.speed",
        )
    elif choice.method != "none" and estimate.speedup.low < 1 and estimate.measured is None:
        yield Note(text=f"whether speculation pays here is open ({span(estimate.speedup)}x expected): measure it")
    mark = "," if choice.nodes[0].interfaces else "="  # before what is given, and not assumed
    if target.box.nodes > 1 and not all(mark in node for node in target.ask.nodes or ("",)):
        assumed = f"addresses {', '.join(node.address for node in choice.nodes)}"
        if choice.nodes[0].interfaces:
            assumed += f" and interfaces {', '.join(choice.nodes[0].interfaces)}"
        yield Note(text=f"{assumed} are assumed where no --node says otherwise: --node USER@HOST=ADDRESS,INTERFACE,...")
    yield from _about_image(choice, target, known)
    if any(image.tag == choice.image and image.version is None for image in known.engines[choice.engine].images):
        yield Note(text=f"{choice.image} is a tag that moves: pin the digest that works for you")


def _front(best: Candidate, known: Knowledge) -> Iterator[Note]:
    """Say that clients talk to our router, and why not to the engine."""
    choice = best.choice
    why = why_front(choice)
    if why is None:
        return
    port, title = router_port(choice), known.engines[choice.engine].title
    if choice.purpose == "claude-code":
        text = f"Claude Code talks to eyas router on port {port}, which stands in front of {title}: {why.text} "
        text += f"(eyas claude --url http://127.0.0.1:{port})"
    else:
        text = f"clients talk to eyas router on port {port}, which asks them for the key: {title} {why.text}"
    yield Note(text=text, source=why.source)


def _about_image(choice: Choice, target: Target, known: Knowledge) -> Iterator[Note]:
    """Say which version an image of the user's holds, where nothing tells it or two things differ."""
    ask, engine = target.ask, known.engines[choice.engine]
    if ask.image is None:
        return
    found = inside(engine, parse_image(ask.image), ask.image_settings)
    if ask.version is not None and found.version is not None and compare(ask.version, found.version) != 0:
        yield Note(
            text=f"--engine-version {ask.version} is believed, although {ask.image} seems to hold {found.version}: "
            f"{found.how}"
        )
    elif not choice.is_version_known:
        yield Note(
            text=f"planned as {engine.title} {choice.version}, with options that newer ones have too: its version is "
            f"not known ({found.how}); name it with --engine-version. Known issues of other versions may apply to "
            f"{ask.image}, so eyas up asks it a question before it counts as ready"
        )


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
            text=f"{engine.title}: {_rate(best.speed)} over {choice.concurrency} at once, the best of what was weighed",
            source="eyas.recipes.estimate.speed" if best.speed.measured is None else "eyas tune",
        )
        if best.doubts:
            lowered = round(100 * (1 - best.score / best.expected))
            yield Note(
                text=f"weighed {lowered} % lower than that, as the others are: it {', and it '.join(best.doubts)}"
            )
        shown = [(known.engines[name].title, rival) for name, rival in list(rivals.items())[:MAX_OTHERS]]
        if shown:
            rates = ", ".join(f"{title} {_short_rate(rival.speed)}" for title, rival in shown)
            yield Note(text=f"the others: {rates}")
        for title, rival in shown:
            if rival.expected > best.score:
                yield Note(text=f"not {title}: it {', and it '.join(rival.doubts)}")
    if best.speed.measured is not None:
        yield Note(text=against_model(best.speed.measured), source="eyas tune")
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
    best: Candidate, others: Sequence[Candidate], refused: Sequence[Refusal], target: Target, known: Knowledge
) -> Iterator[Note]:
    choice, estimate = best.choice, best.speed
    if choice.head is None:
        yield from _without(best, others, refused, target, known)
        return
    head = target.head or known.heads[choice.head]
    yield Note(text=f"{head.repo}: {head.advice[0] if head.advice else head.title}", source=head.sources[0])
    if estimate.measured is not None:
        yield Note(text=_found(estimate.measured), source="eyas tune")
        return
    is_auto = drafts_of(choice) == "auto"
    chosen = f"{_drafts('auto')}: " if is_auto else ""
    yield Note(text=chosen + _pays(choice.draft_tokens, estimate), source="eyas.recipes.estimate.speed")
    most = head.max_draft_tokens or USUAL_DRAFTS
    if choice.draft_tokens < USUAL_DRAFTS <= most:
        longer = replace(choice, draft_tokens=USUAL_DRAFTS)
        more = _pays(USUAL_DRAFTS, speed.estimate(longer, target.box, target.model, head))
        yield Note(text=f"{'of more' if is_auto else 'not more'}: {more}", source="eyas.recipes.estimate.speed")


def loses(estimate: SpeedEstimate) -> bool:
    """Whether even the best acceptance that is expected stays below what pays with experts drawn independently."""
    return estimate.acceptance is not None and estimate.acceptance.high < estimate.break_even_length


def _without(
    best: Candidate, others: Sequence[Candidate], refused: Sequence[Refusal], target: Target, known: Knowledge
) -> Iterator[Note]:
    """Explain why there is no speculation: what the best head would do on this engine, else on another."""
    if target.ask.spec == "none":
        yield Note(text="no speculation: asked for")
        return
    engine = best.choice.engine
    tried = [one.speed.measured for one in others if one.choice.engine == engine and one.choice.head]
    measured = [one for one in tried if one is not None]
    if best.speed.measured is not None and measured:
        yield from (Note(text=f"no speculation: {_found(one)}", source="eyas tune") for one in measured[:MAX_OTHERS])
        return
    able = [one for one in others if one.choice.head]
    drafting = [one.choice for one in able] + [refusal.loses for refusal in refused if refusal.loses is not None]
    if not drafting:
        yield from _no_head(best, refused, target, known)
        return
    choice = max(drafting, key=lambda one: (one.engine == engine, known.heads[one.head or ""].rank))
    head = known.heads[choice.head or ""]
    doubts = next((one.doubts for one in able if one.choice == choice), {})
    against = [doubt for doubt in doubts if doubt not in best.doubts]
    for num_drafts in (1, min(USUAL_DRAFTS, head.max_draft_tokens or USUAL_DRAFTS)):
        drafted = replace(choice, draft_tokens=num_drafts)
        estimate = speed.estimate(drafted, target.box, target.model, head)
        where = "" if choice.engine == engine else f" on {known.engines[choice.engine].title}"
        but = f", weighed lower since it {' and '.join(against)}" if against else ""
        yield Note(
            text=f"no speculation: with {head.repo}{where} {_pays(num_drafts, estimate, but)}",
            source="eyas.recipes.estimate.speed",
        )
        if head.max_draft_tokens == 1:
            return


def _no_head(best: Candidate, refused: Sequence[Refusal], target: Target, known: Knowledge) -> Iterator[Note]:
    """Explain why the engine has nothing to draft with: what speaks against its most recommended head."""
    engine, heads = known.engines[best.choice.engine], known.heads_of(target.model)
    if target.role != "text" or not heads:
        return
    against = {refusal.head: refusal.reason for refusal in refused if refusal.engine == engine.name}
    head = next((head for head in heads if head.name in against), None)
    why = f"{engine.title} loads no draft head of {target.model.name}"
    if head is not None:
        why = _refusal(head.repo, engine.title, against[head.name])
    yield Note(text=f"no speculation: {why}")


def _rate(speed: SpeedEstimate) -> str:
    found = speed.measured
    if found is None:
        return f"{span(speed.tokens_per_second)} tokens per second expected"
    interval = f"{found.windows} window{'s' * (found.windows != 1)}" if found.interval is None else span(found.interval)
    expects = f"where the model expects {span(found.expected)},"
    return f"{found.tokens_per_second:.0f} tokens per second ({interval}) measured here on {found.date}, {expects}"


def _short_rate(speed: SpeedEstimate) -> str:
    found = speed.measured
    return span(speed.tokens_per_second) if found is None else f"{found.tokens_per_second:.0f} (measured)"


def against_model(found: Measured) -> str:
    """Return what was measured and how far the model's estimate was from it."""
    expected = sqrt(found.expected.low * found.expected.high)
    ratio = found.tokens_per_second / expected
    is_inside = found.expected.low <= found.tokens_per_second <= found.expected.high
    away = f"{max(ratio, 1 / ratio):.1f} times {'more' if ratio > 1 else 'less'}"
    return (
        f"measured here on {found.date}: {found.tokens_per_second:.0f} tokens per second over {found.concurrency} at "
        f"once after prompts of {found.context} tokens, {found.windows} windows; the model of speed expected "
        f"{span(found.expected)}: {'inside its range' if is_inside else away}"
    )


def _found(found: Measured) -> str:
    """Say whether drafts paid where they were measured."""
    number = _drafts(found.draft_tokens)
    if found.speedup is None:
        return f"{number}: measured here on {found.date}, not often enough to compare with none"
    return f"{number}: {found.finding} here on {found.date}, x{span(found.speedup)} of none"


def _drafts(number: Drafts) -> str:
    return f"{draft_tokens(number)} a round"


def _pays(num_drafts: int, estimate: SpeedEstimate, but: str = "") -> str:
    verdict = "may gain or lose"
    if loses(estimate):
        verdict = "loses" if estimate.speedup.high < 1 else "loses, unless neighbouring tokens share experts"
    elif estimate.speedup.low >= 1:
        verdict = "gains"
    return f"{_drafts(num_drafts)} {verdict}, x{span(estimate.speedup)}{but}: {pays_from(estimate)}"

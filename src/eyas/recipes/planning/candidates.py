"""Makes every candidate plan, engine x head x draft tokens, complete and judged, or refused with a reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from importlib import import_module
from math import prod
from types import ModuleType
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from eyas.base.errors import UserError
from eyas.base.serving.engines import EngineName
from eyas.base.units import readable
from eyas.recipes.advice import issues
from eyas.recipes.advice.facts import Facts, facts_of
from eyas.recipes.engines import eyas_image
from eyas.recipes.engines.front import behind, with_router
from eyas.recipes.estimate import memory, speed
from eyas.recipes.knowledge.images import inside, parse_image
from eyas.recipes.knowledge.tables import Knowledge
from eyas.recipes.measured import measured_for
from eyas.recipes.plan import Choice, Emission, Home, Measured, MemoryMap, SpeedEstimate
from eyas.recipes.planning.ask import Target
from eyas.recipes.records import CPU, METAL, Engine, Head, Image
from eyas.recipes.versions import satisfies
from eyas.recipes.wording import pays_from

__all__ = ["Candidate", "Refusal", "candidates", "emitter"]

TROUBLED = 0.7  # where an issue that is grave but not certain may apply
BEHIND = ("127.0.0.1", "localhost", "::1", "0.0.0.0", "::")  # hosts of a router whose engine is on this machine alone
UNPUBLISHED = 0.85  # of the expected speed, where no measurement of this engine on this hardware is published
FEWER_BITS = 0.8  # of the checkpoint's bytes: below it is another quantisation, not another layout
BEST_RANK, RANK_WEIGHT = 100, 1 / 400  # a head loses 25 % at most: estimates of acceptance are not better


class Candidate(Struct, frozen=True, kw_only=True):
    """A plan that would work. `expected` is its expected speed in tokens per second; `doubts` are factors below 1 that
    lower it, each with its reason in words that follow the engine's name."""

    choice: Choice
    emission: Emission
    memory: MemoryMap
    speed: SpeedEstimate
    facts: Facts
    issues: tuple[issues.Issue, ...]  # that apply
    expected: float
    doubts: dict[str, float]

    @property
    def score(self) -> float:
        return self.expected * prod(self.doubts.values())


class Refusal(Struct, frozen=True, kw_only=True):
    """Reason why a candidate would not work, in words that follow the engine's name."""

    engine: str
    head: str | None
    reason: str
    least_bytes: int | None = None  # of memory, where no context is short enough; with its processes under a cap
    fits_smaller: bool = False  # a shorter context or fewer requests would fit
    loses: Choice | None = None  # one draft token of this choice would cost time
    issue: issues.Issue | None = None  # that forbids it


def candidates(target: Target, known: Knowledge, here: Sequence[Measured] = ()) -> Iterator[Candidate | Refusal]:
    """Yield candidates in the order of the engines' table. With `--engine`, `--draft` or `--spec` only those.

    `here` was measured on the machine of the target: arms that it has are judged by it.
    """
    for engine in known.engines.values():
        if target.ask.engine in ("auto", engine.name):
            yield from _of_engine(engine, target, known, [one for one in here if one.engine == engine.name])


def _of_engine(
    engine: Engine, target: Target, known: Knowledge, here: Sequence[Measured]
) -> Iterator[Candidate | Refusal]:
    reason = _cannot_run(engine, target, has_run=bool(here))
    if reason:
        yield Refusal(engine=engine.name, head=None, reason=reason)
        return
    try:
        base = _base_choice(engine, target)
    except UserError as error:
        yield Refusal(engine=engine.name, head=None, reason=str(error))
        return
    for head in _heads(base, target, known):
        if isinstance(head, Refusal):
            yield head
            continue
        fixed = [] if head is None else _fixed_drafts(base, head, target, here)
        judged = _judged(base, head, target, known, here)
        if isinstance(judged, Candidate) or not fixed:
            yield judged
        for num_drafts in fixed:
            yield _judged(base, head, target, known, here, num_drafts)


def _fixed_drafts(base: Choice, head: Head, target: Target, here: Sequence[Measured]) -> list[int]:
    """List the numbers of drafts that were measured with a head; one that was asked for is planned anyway."""
    if target.ask.draft_tokens is not None:
        return []
    found = (
        one.draft_tokens
        for one in here
        if one.draft_tokens != "auto" and (one.version, one.head) == (base.version, head.name)
    )
    return sorted({number for number in found if number})


def _cannot_run(engine: Engine, target: Target, *, has_run: bool) -> str | None:
    box, model = target.box, target.model
    if target.has_random_weights and engine.name != "eyas":
        return "loads files, and random weights have none"
    capability = box.hardware.compute_capability
    if engine.models and model.name not in engine.models:
        return f"does not run {model.name} (it runs {', '.join(engine.models)})"
    if not engine.runs_on(capability):
        return "not planned on Macs" if capability == METAL else f"not planned on compute capability {capability}"
    if target.role not in engine.roles:
        return f"is not planned for {target.role}"
    is_ours = "/" not in model.repo and target.role == "text" and not has_run
    if is_ours and target.ask.engine == "auto" and engine.name != "eyas":
        return f"{model.name} comes with eyas, which serves it; --engine names another"
    if box.nodes > engine.max_nodes:
        return f"runs on {engine.max_nodes} node{'s' * (engine.max_nodes > 1)}, {box.name} has {box.nodes}"
    most = engine.max_gpu_concurrency
    if most is not None and target.concurrency > most and capability != CPU:
        return f"computes at most {most} requests at once on a GPU, --concurrency asks for {target.concurrency}"
    if target.model_path is not None and not engine.folders:
        return "pulls its models by name"
    if target.ask.binary is not None and not engine.is_native and not target.ask.native:
        return "runs in a container, where --binary means nothing; --native runs it as a process"
    if not engine.api_keys and target.ask.api_key_env is not None and target.ask.listen not in BEHIND:
        return "knows no API keys, and the router in front that asks for them wants --host 0.0.0.0 or 127.0.0.1"
    return None


def _base_choice(engine: Engine, target: Target) -> Choice:
    """Return a choice without the head, the draft tokens and the memory fraction."""
    ask, box = target.ask, target.box
    image, is_known = None, True
    version = ask.version or engine.version
    if ask.image is not None:
        image = ask.image
        if ask.version is None:
            found = inside(engine, parse_image(image), ask.image_settings).version
            version, is_known = found or engine.unknown_version or version, found is not None
    elif not engine.is_native and not ask.native:
        known = _image(engine, target)
        image, version = known.tag, known.version or version
    elif ask.in_container and engine.name == "eyas" and not ask.native and ask.binary is None:
        image = eyas_image.TAG
    if not satisfies(version, engine.versions):
        raise UserError(_not_known(engine, version, target))
    as_what = f"-{target.role}" if target.role != target.model.roles[0] else ""
    random = "random-" if target.has_random_weights else ""
    name = ask.name or f"{random}{target.model.name}{as_what}-{engine.name}".replace(".", "-")
    return Choice(
        model=target.model.name,
        model_path=target.model_path,
        role=target.role,
        engine=cast(EngineName, engine.name),
        version=version,
        is_version_known=is_known,
        image=image,
        method="none",
        context=target.context,
        concurrency=target.concurrency,
        memory_cap=target.memory_cap,
        purpose=ask.purpose,
        tools=target.tools,
        tensor_parallel=box.num_gpus if engine.tensor_parallel else 1,
        expert_parallel=engine.expert_parallel.get(box.num_gpus, 1),
        nodes=target.nodes,
        listen=ask.listen,
        port=ask.port or engine.port + ("text", "vision", "embeddings").index(target.role),
        api_key_env=ask.api_key_env,
        kv_dtype=ask.kv_dtype,
        has_random_weights=target.has_random_weights,
        simulate_acceptance=ask.simulate_acceptance,
        cache=target.cache,
        directory=Home(path=f".local/share/eyas/{name}"),
        name=name,
        binary=ask.binary,
    )


def _not_known(engine: Engine, version: str, target: Target) -> str:
    """Say that plans for the version are not known, and what is known of it all the same."""
    facts = Facts(
        engine=engine.name,
        version=version,
        model=target.model.name,
        hardware=target.box.hardware.name,
        compute_capability=target.box.hardware.compute_capability,
        method="none" if target.ask.spec == "none" else "eagle3",
        features=frozenset(target.features),
    )
    grave = [issue for issue in issues.matching(facts) if issue.severity == "critical"]
    image = f" in {target.ask.image}" if target.ask.image is not None and target.ask.version is None else ""
    return f"version {version}{image} is not known here ({engine.versions} is)" + "".join(
        f", and with {issue.trigger} {issue.symptom} ({issue.name})" for issue in grave
    )


def _image(engine: Engine, target: Target) -> Image:
    """The first image of the table for the box, of the version asked for. Raises UserError if there is none."""
    box, version = target.box, target.ask.version
    for image in engine.images:
        capabilities = image.compute_capabilities
        if (
            box.architecture in image.architectures
            and (not capabilities or any(fnmatch(box.hardware.compute_capability, one) for one in capabilities))
            and image.nodes in ("any", "one" if box.nodes == 1 else "many")
            and (version is None or image.version == version)
        ):
            return image
    of_version = f" {version}" if version else ""
    raise UserError(f"no image of {engine.title}{of_version} is known for {box.architecture}; name one with --image")


def _heads(base: Choice, target: Target, known: Knowledge) -> Iterator[Head | Refusal | None]:
    """List None (no speculation) and each head that the engine can load and the user did not exclude."""
    engine, ask = known.engines[base.engine], target.ask
    asked = target.head
    if not target.is_speculation_asked:
        yield None
    if ask.spec == "none" or target.role != "text":
        return
    if target.has_random_weights:
        yield from _random_head(engine, target, known)
        return
    for head in (asked,) if asked is not None else known.heads_of(target.model):
        reason = _cannot_draft(head, engine, base.version, target)
        if reason is None:
            yield head
        elif target.is_speculation_asked or not reason.startswith("cannot"):
            yield Refusal(engine=engine.name, head=head.name, reason=reason)


def _random_head(engine: Engine, target: Target, known: Knowledge) -> Iterator[Head]:
    """Yield the head whose sizes stand for those of a random one: small, and good for any number of drafts."""
    able = [
        head
        for head in known.heads_of(target.model)
        if head.kind == "eagle3" and engine.name in head.engines and head.max_draft_tokens is None
    ]
    if able:
        yield min(able, key=lambda head: head.total_bytes)


def _cannot_draft(head: Head, engine: Engine, version: str, target: Target) -> str | None:
    ask = target.ask
    if ask.spec not in ("auto", head.kind):
        return f"cannot be used with --spec {ask.spec}"
    if head.kind not in engine.spec_methods or engine.name not in head.engines:
        return f"cannot be loaded by {engine.title}"
    if not satisfies(version, head.engines[engine.name]):
        return f"wants {engine.title} {head.engines[engine.name]}, this is {version}"
    if target.head is None:
        if head.rank == 0:
            return "is for special purposes: name it with --draft"
        low, high = head.intended_context
        if not low <= target.context <= high:
            return f"is meant for contexts of {_span(low, high)} tokens ({_try('--context', low, high)})"
        low, high = head.intended_concurrency
        if not low <= target.concurrency <= high:
            requests = f"{_span(low, high)} request{'s' * (high != 1)} at once"
            return f"is meant for {requests} ({_try('--concurrency', low, high)})"
    if ask.draft_tokens is not None and head.max_draft_tokens is not None and ask.draft_tokens > head.max_draft_tokens:
        return f"is good for at most {head.max_draft_tokens} draft tokens, --draft-tokens asks for {ask.draft_tokens}"
    return None


def _try(flag: str, low: int, high: int) -> str:
    return f"{flag} {high if low <= 1 else low} would do, or --draft with its name"


def _span(low: int, high: int) -> str:
    if low <= 1:
        return f"at most {high}"
    return f"at least {low}" if high >= 1 << 20 else f"{low} to {high}"


def _judged(
    base: Choice,
    head: Head | None,
    target: Target,
    known: Knowledge,
    here: Sequence[Measured],
    fixed_drafts: int | None = None,
) -> Candidate | Refusal:
    """Complete and judge a choice, with `fixed_drafts` where that many were measured."""
    box, model = target.box, target.model
    choice = base
    if head is not None:
        choice = replace(base, method=head.kind, head=head.name, head_path=target.head_path, draft_tokens=1)
        least = int(target.is_speculation_asked)
        asked = target.ask.draft_tokens or fixed_drafts
        num_drafts = asked or speed.best_draft_tokens(choice, box, model, head, least=least)
        if num_drafts == 0:
            return _loses(choice, head, target)
        choice = replace(choice, draft_tokens=num_drafts, are_drafts_fixed=asked is not None)
    choice = replace(choice, memory_fraction=memory.default_fraction(choice, box, model, head))
    memory_map = memory.memory_map(choice, box, model, head, weight_bytes=target.weight_bytes)
    if not memory_map.fits and not (_can_wait(choice, known) and memory_map.max_tokens >= choice.context):
        return _too_large(choice, head, memory_map, target)
    try:
        emission = _emission(choice, head, target)
    except (UserError, ValueError) as error:  # ValueError: an option that the version asked for lacks
        return Refusal(engine=base.engine, head=choice.head, reason=str(error))
    facts = facts_of(choice, box, emission, target.features)
    matching = issues.matching(facts)
    first = _forbidding(matching)
    if first is not None and not target.is_speculation_asked:
        return Refusal(engine=base.engine, head=choice.head, reason=f"{first.symptom} ({first.name})", issue=first)
    estimate = speed.estimate(choice, box, model, head, known.measurements, max_tokens=memory_map.max_tokens)
    measured = measured_for(choice, here)
    if measured is not None:
        estimate = replace(estimate, measured=measured)
    return Candidate(
        choice=choice,
        emission=emission,
        memory=memory_map,
        speed=estimate,
        facts=facts,
        issues=matching,
        expected=speed.middle(estimate),
        doubts=dict((*_doubts(choice, head, memory_map, target, known, measured), *_trouble(matching))),
    )


def _loses(choice: Choice, head: Head, target: Target) -> Refusal:
    """Refuse a head whose first draft token costs time, with an issue that forbids it too: who adds it should know."""
    issue = None
    with suppress(UserError, ValueError):
        facts = facts_of(choice, target.box, _emission(choice, head, target), target.features)
        issue = _forbidding(issues.matching(facts))
    estimate = speed.estimate(choice, target.box, target.model, head)
    reason = f"would cost time with even one draft token ({pays_from(estimate)})"
    return Refusal(engine=choice.engine, head=head.name, reason=reason, loses=choice, issue=issue)


def _emission(choice: Choice, head: Head | None, target: Target) -> Emission:
    return with_router(choice, emitter(choice.engine).emit(behind(choice), target.box, target.model, head))


def _forbidding(matching: Sequence[issues.Issue]) -> issues.Issue | None:
    return next((issue for issue in matching if issue.effect == "forbid"), None)


def _can_wait(choice: Choice, known: Knowledge) -> bool:
    """Whether requests may wait for room: under a cap only in a pool, since eyas takes what all of them need."""
    return known.engines[choice.engine].is_paged and (choice.memory_cap is None or choice.engine in memory.POOLED)


def _doubts(
    choice: Choice,
    head: Head | None,
    memory_map: MemoryMap,
    target: Target,
    known: Knowledge,
    measured: Measured | None,
) -> Iterator[tuple[str, float]]:
    where = (target.box.name, choice.engine, target.model.name)
    if measured is None and not any((one.hardware, one.engine, one.model) == where for one in known.measurements):
        yield "has no published figure there", UNPUBLISHED
    if measured is None and head is not None and head.rank < BEST_RANK:
        yield "uses a head that others are recommended over", 1 - RANK_WEIGHT * (BEST_RANK - head.rank)
    model = target.model
    kept = model.repo_bytes.get(choice.engine, model.total_bytes) / model.total_bytes
    if kept < FEWER_BITS and not model.files:  # whose builds are all of few bits
        yield "loads a build with fewer bits than were published", kept
    fit = memory_map.max_tokens / (choice.context * choice.concurrency)
    if fit < 1:
        yield "cannot hold all conversations in full length", fit


def _trouble(matching: Sequence[issues.Issue]) -> Iterator[tuple[str, float]]:
    grave = [issue.name for issue in matching if issue.effect == "warn" and issue.severity in ("critical", "high")]
    if grave:
        yield f"has known trouble there ({', '.join(grave)})", TROUBLED


def emitter(engine: EngineName) -> ModuleType:
    """Return the module of an engine, with `emit(choice, box, model, head) -> Emission`."""
    return import_module(f"eyas.recipes.engines.{engine.replace('-', '_').replace('.', '_')}")


def _too_large(choice: Choice, head: Head | None, memory_map: MemoryMap, target: Target) -> Refusal:
    box, model = target.box, target.model
    fits = memory.fitting(choice, box, model, head, weight_bytes=target.weight_bytes)
    needs = f"needs {readable(memory_map.needed)}, {_there_are(memory_map)}"
    if fits.max_context == 0 and fits.max_concurrency == 0:
        smallest = replace(choice, context=1, concurrency=1)
        least = memory.memory_map(smallest, box, model, head, weight_bytes=target.weight_bytes)
        return Refusal(
            engine=choice.engine,
            head=choice.head,
            reason=f"{needs}: too large at any context",
            least_bytes=least.needed + (least.host if least.cap is not None else 0),
        )
    reason = f"{needs} for {choice.concurrency} x {choice.context} tokens; what fits: " + ", or ".join(
        option
        for option, value in (
            (f"--context {fits.max_context}", fits.max_context),
            (f"--concurrency {fits.max_concurrency} with this context", fits.max_concurrency),
        )
        if value
    )
    return Refusal(engine=choice.engine, head=choice.head, reason=reason, fits_smaller=True)


def _there_are(memory_map: MemoryMap) -> str:
    room = readable(memory_map.capacity)
    if memory_map.cap is None:
        return f"there are {room}"
    beside = f" (and {readable(memory_map.host)} to its processes)" if memory_map.host else ""
    return f"--memory {readable(memory_map.cap)} leaves it {room}{beside}"

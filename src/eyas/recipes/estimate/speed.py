"""Estimates the speed of a plan, as ranges: decoding with and without drafts, first token, start.

A round takes the layers' fixed cost, the communication of tensor parallelism, and bytes (`traffic.py`) over bandwidth
at the engine's efficiency (`calibration.py`). A rate is that of the middle, moved by figures of the same engine and box
(`published.py`), and as wide as such estimates were wrong. What a draft costs runs from a better end, where rows share
experts, to a worse one, where their routing is independent.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt

from msgspec.structs import replace

from eyas.recipes.estimate.acceptance import expected_acceptance
from eyas.recipes.estimate.calibration import Link, Work, calibration, fit
from eyas.recipes.estimate.memory import memory_map
from eyas.recipes.estimate.published import SHORT, Figure, Support, figures, published, support
from eyas.recipes.estimate.traffic import Load, kv_read_bytes, pass_bytes, round_bytes
from eyas.recipes.estimate.weights import checkpoint_bytes, dense_share, draft_share, expert_share
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.plan import AtContext, Box, Choice, Range, SpeedEstimate
from eyas.recipes.records import Head, Measurement, Model

__all__ = [
    "SHORT",
    "best_draft_tokens",
    "cost_ratio",
    "decoding",
    "estimate",
    "first_token",
    "load_time",
    "middle",
    "rate",
    "round_time",
    "work",
]

LONGER = (8192, 32_768, 131_072)
MOST_DRAFTS = 8
CAUTION = 2 / 3  # where between the ends drafting is judged: a promise of speed should be kept more often than not
WORTH = 1.02  # a longer chain must promise this much more
KV_SLOWDOWN = 2.0  # worse end: caches are read slower than weights (1.4 on an H200, 1.6 on a Spark, 2.3 on an RTX)
DRAFT_ROW = 0.5  # of a row's cost: the rest is prompts in between, which come with accepted tokens and not with rows
DRAFT_MODEL_LAYERS = 32  # of the draft models known here; their steps cost layers as the target's do
MIDDLE = 0.5  # of the pessimism: where losses are as they were fitted
PARALLEL_PREFILL = 0.7  # worse end: what is left of the second and each further GPU's arithmetic
ONE_TOKEN = Range(low=1.0, high=1.0)
DISK = (6e9, 0.8e9)  # bytes per second, where the box's disk is not known


def estimate(
    choice: Choice,
    box: Box,
    model: Model,
    head: Head | None,
    measurements: Iterable[Measurement] = (),
    *,
    max_tokens: int | None = None,
) -> SpeedEstimate:
    """Estimate speed: tokens per second over all of `choice.concurrency`, `first_token_s` of a prompt of full context.

    Where the KV cache of all does not fit, only as many are counted as do: `max_tokens` in all, the memory map's if it
    is not given. `speedup` compares with and without drafts at the same point of the whole ranges; `break_even_length`
    is `cost_ratio`.
    """
    drafts = choice.draft_tokens if head is not None else 0
    accepted = _accepted(choice, head, drafts)
    length = accepted or ONE_TOKEN
    ratios = [cost_ratio(choice, box, model, head, drafts, pessimism=end) for end in (0.0, CAUTION, 1.0)]
    short = min(SHORT, choice.context)
    load = _load(choice, model, head, short, 1.0)
    room = memory_map(choice, box, model, head).max_tokens if max_tokens is None else max_tokens
    measured = tuple(measurements)
    known = figures(one for one in measured if not one.set_apart)
    running = _running(choice, room, short)
    found = _supported(running, box, known)
    longer = [context for context in (*LONGER, choice.context) if short < context <= choice.context]
    at = {context: _running(choice, room, context) for context in dict.fromkeys(longer)}
    return SpeedEstimate(
        round_bytes=round_bytes(model, head, drafts, load),
        baseline_bytes=round_bytes(model, None, 0, load),
        break_even_length=ratios[1],
        acceptance=accepted,
        tokens_per_second=_range(running, box, model, head, short, found),
        baseline_tokens_per_second=decoding(replace(running, draft_tokens=0), box, model, None, short, known),
        speedup=Range(low=length.low / max(ratios), high=length.high / min(ratios)),
        first_token_s=first_token(choice, box, model, choice.context),
        load_s=load_time(choice, box, model, head),
        at_context=tuple(
            AtContext(
                context=context,
                tokens_per_second=_range(some, box, model, head, context, found),
                at_once=some.concurrency,
            )
            for context, some in at.items()
        ),
        published=tuple(published(choice, box, measured)),
        at_once=running.concurrency,
    )


def middle(estimate: SpeedEstimate) -> float:
    """Return the tokens per second by which plans are compared: measured ones, else the middle of the range."""
    if estimate.measured is not None:
        return estimate.measured.tokens_per_second
    return sqrt(estimate.tokens_per_second.low * estimate.tokens_per_second.high)


def decoding(
    choice: Choice,
    box: Box,
    model: Model,
    head: Head | None,
    context: int,
    known: Iterable[Figure],
    *,
    length: float | None = None,
) -> Range:
    """Return the range of aggregate tokens per second with `context` tokens each, where figures are known.

    `length` is the acceptance length where it is not the head's own.
    """
    return _range(choice, box, model, head, context, _supported(choice, box, known), length)


def rate(
    choice: Choice, box: Box, model: Model, head: Head | None, context: int, *, length: float | None = None
) -> float:
    """Return the aggregate tokens per second that the model alone expects, at the middle of its range."""
    drafts = choice.draft_tokens if head is not None else 0
    seconds = round_time(choice, box, model, head, drafts, context, MIDDLE)
    expected = _accepted(choice, head, drafts) or ONE_TOKEN
    return choice.concurrency * (length or sqrt(expected.low * expected.high)) / seconds


def best_draft_tokens(choice: Choice, box: Box, model: Model, head: Head, *, least: int = 0) -> int:
    """The number of drafts with the best expected speed at the choice's concurrency; 0 where one already costs time.

    Shorter chains win near ties. `least` is 1 where speculation is wanted in any case.
    """
    best, best_gain = least, 1.0 if least == 0 else 0.0
    for drafts in range(1, min(head.max_draft_tokens or MOST_DRAFTS, MOST_DRAFTS) + 1):
        accepted = expected_acceptance(choice, head, drafts)
        gain = (accepted.low + accepted.high) / 2 / cost_ratio(choice, box, model, head, drafts)
        if gain > best_gain * (WORTH if best else 1.0):
            best, best_gain = drafts, gain
    return best


def cost_ratio(
    choice: Choice, box: Box, model: Model, head: Head | None, draft_tokens: int, *, pessimism: float = CAUTION
) -> float:
    """The time of a round over that of a plain step: the acceptance length from which speculation pays on this box."""
    context = min(SHORT, choice.context)
    plain = round_time(choice, box, model, None, 0, context, pessimism)
    return round_time(choice, box, model, head, draft_tokens, context, pessimism) / plain


def round_time(
    choice: Choice, box: Box, model: Model, head: Head | None, draft_tokens: int, context: int, pessimism: float
) -> float:
    """The seconds of one round of all requests with `context` tokens each; `pessimism` 0..1 runs through the range."""
    done = work(choice, box, model, head, draft_tokens, context, pessimism)
    return done.seconds(calibration(choice.engine, box.hardware).at(pessimism))


def work(
    choice: Choice, box: Box, model: Model, head: Head | None, draft_tokens: int, context: int, pessimism: float
) -> Work:
    """Count what a round does; `pessimism` 1 has rows of independent routing and the slowest reading of the cache."""
    load = _load(choice, model, head, context, pessimism)
    cache = load.sequences * kv_read_bytes(model, context) * load.kv_share
    slow = 1 + pessimism * (KV_SLOWDOWN - 1)
    num_bytes = round_bytes(model, head, draft_tokens, load) + (slow - 1) * cache
    return Work(
        layers=_layers(model, head, draft_tokens),
        drafts=draft_tokens,
        rows=load.sequences * (1 + DRAFT_ROW * draft_tokens),
        reductions=_reductions(choice, box, model),
        link=_link(box),
        reading_s=num_bytes / (box.hardware.bandwidth * choice.tensor_parallel),
    )


def first_token(choice: Choice, box: Box, model: Model, prompt_tokens: int) -> Range:
    """Time a lone prompt's first token in seconds: arithmetic, each chosen expert read once, and the layers' cost."""
    times = [_prefill_time(choice, box, model, prompt_tokens, end) for end in (0.0, 1.0)]
    return Range(low=times[0], high=times[1])


def load_time(choice: Choice, box: Box, model: Model, head: Head | None) -> Range:
    """The seconds from start to ready: reading weights from disk, and what the engine does besides (its record)."""
    num_bytes = checkpoint_bytes(choice, model, None) * choice.tensor_parallel / box.nodes
    if head is not None:
        num_bytes += head.total_bytes * draft_share(choice, head)
    known = box.hardware.disk_bandwidth
    fast, slow = (known, known / 2) if known else DISK
    ready = knowledge().engines[choice.engine].ready_seconds
    return Range(low=ready[0] + num_bytes / fast, high=ready[1] + num_bytes / slow)


def _running(choice: Choice, max_tokens: int, context: int) -> Choice:
    """Return the choice with as many requests of `context` tokens as fit at once, at least one; others wait."""
    return replace(choice, concurrency=max(min(choice.concurrency, max_tokens // context), 1))


def _supported(choice: Choice, box: Box, known: Iterable[Figure]) -> Support:
    return support(choice, box, known, lambda one: _expected(one, choice, box))


def _expected(one: Figure, choice: Choice, box: Box) -> float:
    """Return the model's rate in the setting of a figure of the same engine and box."""
    tables = knowledge()
    head = tables.heads[one.head] if one.head else None
    there = replace(
        choice,
        model=one.model,
        head=one.head or None,
        method=head.kind if head else "none",
        draft_tokens=one.draft_tokens,
        concurrency=one.concurrency,
        context=max(one.context, SHORT),
        kv_dtype="auto",
    )
    length = one.acceptance_length if one.is_acceptance_set else None
    return rate(there, box, tables.models[one.model], head, one.context, length=length)


def _range(
    choice: Choice,
    box: Box,
    model: Model,
    head: Head | None,
    context: int,
    found: Support,
    length: float | None = None,
) -> Range:
    """Return the rate of the model moved by figures, and as wide as such estimates were wrong.

    It is at least as wide as what is expected to be accepted.
    """
    middle = rate(choice, box, model, head, context, length=length) * found.factor
    drafts = choice.draft_tokens if head is not None else 0
    guess = calibration(choice.engine, box.hardware).known.guess
    widths = fit().drafted if drafts else fit().plain
    width = widths.published if found.is_published else guess.width if guess else widths.nothing
    expected = _accepted(choice, head, drafts) if length is None else None
    if expected is not None:
        width = max(width, sqrt(expected.high / expected.low))
    return Range(low=middle / width, high=middle * width)


def _accepted(choice: Choice, head: Head | None, draft_tokens: int) -> Range | None:
    return expected_acceptance(choice, head, draft_tokens) if head is not None and draft_tokens else None


def _load(choice: Choice, model: Model, head: Head | None, context: int, uniform: float) -> Load:
    return Load(
        sequences=choice.concurrency,
        context=context,
        uniform=uniform,
        dense_share=dense_share(choice, model),
        expert_share=expert_share(choice, model),
        draft_share=draft_share(choice, head) if head is not None else 1.0,
        kv_share=0.5 if choice.kv_dtype == "fp8" else 1.0,
    )


def _layers(model: Model, head: Head | None, draft_tokens: int) -> int:
    drafting = DRAFT_MODEL_LAYERS * draft_tokens if head is not None and head.kind == "draft-model" else 0
    return model.num_layers + drafting


def _reductions(choice: Choice, box: Box, model: Model) -> int:
    """Count all-reduces: two a layer, where GPUs work together."""
    return 2 * model.num_layers if choice.tensor_parallel > 1 else 0


def _link(box: Box) -> Link:
    return (
        "nodes" if box.nodes > 1 and box.gpus == 1 else "gpus"
    )  # trays of several GPUs share an NVLink domain (GB200)


def _prefill_time(choice: Choice, box: Box, model: Model, prompt_tokens: int, pessimism: float) -> float:
    losses = calibration(choice.engine, box.hardware).at(pessimism)
    gpus = 1 + (choice.tensor_parallel - 1) * (1 - pessimism * (1 - PARALLEL_PREFILL))
    load = Load(context=0, dense_share=dense_share(choice, model), expert_share=expert_share(choice, model))
    weights = pass_bytes(model, prompt_tokens, load) / choice.tensor_parallel
    read = weights / (box.hardware.bandwidth * losses.efficiency)
    arithmetic = _prefill_flops(model, prompt_tokens) / (losses.prefill_flops * gpus)
    fixed = model.num_layers * losses.layer_s + _reductions(choice, box, model) * losses.reduce_s[_link(box)]
    return read + arithmetic + fixed


def _prefill_flops(model: Model, tokens: int) -> float:
    """Count FLOPs: two per parameter and token; four per unit of a head and pair of positions, half of them masked."""
    width = 4 * model.num_attention_heads * model.head_dim
    full = (model.num_layers - model.num_sliding_layers) * tokens * tokens / 2
    sliding = model.num_sliding_layers * tokens * min(model.window, tokens)
    return 2 * model.active_params * tokens + width * (full + sliding)

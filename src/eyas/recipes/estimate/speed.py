"""Estimates the speed of a plan, as ranges: decoding with and without drafts, first token, start.

A round takes the layers' fixed cost, the communication of tensor parallelism, and bytes (`traffic.py`) over bandwidth
at the engine's efficiency (`calibration.py`). At the better end of a range rows share experts, at the worse end their
routing is independent. A measurement of the same setting narrows the range (`published.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt

from msgspec.structs import replace

from eyas.recipes.estimate.acceptance import expected_acceptance
from eyas.recipes.estimate.calibration import Losses, calibration
from eyas.recipes.estimate.memory import memory_map
from eyas.recipes.estimate.published import SHORT, drafted, narrowed, pessimism_of, plain, published
from eyas.recipes.estimate.traffic import Load, kv_read_bytes, pass_bytes, round_bytes
from eyas.recipes.estimate.weights import checkpoint_bytes, dense_share, draft_share, expert_share
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.plan import AtContext, Box, Choice, Range, SpeedEstimate
from eyas.recipes.records import Head, Measurement, Model

__all__ = ["best_draft_tokens", "cost_ratio", "estimate", "first_token", "load_time", "rate", "round_time"]

LONGER = (8192, 32_768, 131_072)
MOST_DRAFTS = 8
CAUTION = 2 / 3  # where between the ends drafting is judged: a promise of speed should be kept more often than not
WORTH = 1.02  # a longer chain must promise this much more
KV_SLOWDOWN = 1.7  # worse end: long contexts are read slower than weights (vLLM on an RTX PRO 6000 at 128k)
DRAFT_ROW = 0.5  # of a row's cost: the rest is prompts in between, which come with accepted tokens and not with rows
DRAFT_MODEL_LAYERS = 32  # of the draft models known here; their steps cost layers as the target's do
REDUCE_S = {"gpus": (5e-6, 12e-6), "nodes": (30e-6, 80e-6)}  # one all-reduce: NVLink; two Sparks (kubis sweep)
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
    running = _running(choice, room, short)
    measured = tuple(measurements)
    ends = _agreeing(choice, box, model, measured)
    whole = rate(running, box, model, head, drafts, short, ends)
    within = _as_drafted(whole, choice, box, model, head, measured, ends)
    longer = [context for context in (*LONGER, choice.context) if short < context <= choice.context]
    return SpeedEstimate(
        round_bytes=round_bytes(model, head, drafts, load),
        baseline_bytes=round_bytes(model, None, 0, load),
        break_even_length=ratios[1],
        acceptance=accepted,
        tokens_per_second=within,
        baseline_tokens_per_second=rate(running, box, model, None, 0, short, ends),
        speedup=Range(low=length.low / max(ratios), high=length.high / min(ratios)),
        first_token_s=first_token(choice, box, model, choice.context),
        load_s=load_time(choice, box, model, head),
        at_context=tuple(
            _at_context(_running(choice, room, context), box, model, head, context, ends, (whole, within))
            for context in dict.fromkeys(longer)
        ),
        published=tuple(published(choice, box, measured)),
        at_once=running.concurrency,
    )


def rate(
    choice: Choice,
    box: Box,
    model: Model,
    head: Head | None,
    draft_tokens: int,
    context: int,
    ends: tuple[float, float] = (0.0, 1.0),
) -> Range:
    """Return aggregate tokens per second of all requests with `context` tokens each; `ends` are of the pessimism."""
    length = _accepted(choice, head, draft_tokens) or ONE_TOKEN
    fast, slow = (round_time(choice, box, model, head, draft_tokens, context, end) for end in ends)
    return Range(low=choice.concurrency * length.low / slow, high=choice.concurrency * length.high / fast)


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
    losses = calibration(choice.engine, box.hardware).at(pessimism)
    load = _load(choice, model, head, context, pessimism)
    cache = load.sequences * kv_read_bytes(model, context) * load.kv_share
    slow = 1 + pessimism * (KV_SLOWDOWN - 1)
    num_bytes = round_bytes(model, head, draft_tokens, load) + (slow - 1) * cache
    bandwidth = box.hardware.bandwidth * losses.efficiency * choice.tensor_parallel
    passes = _layers(model, head, draft_tokens) * losses.layer_s + draft_tokens * losses.draft_s
    rows = load.sequences * (1 + DRAFT_ROW * draft_tokens) * losses.row_s
    return passes + rows + _communication(choice, box, model, pessimism) + num_bytes / bandwidth


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


def _agreeing(choice: Choice, box: Box, model: Model, measurements: Iterable[Measurement]) -> tuple[float, float]:
    """Return the ends of the pessimism that agree with what was measured without drafts."""
    known = plain(choice, box, measurements)
    if known is None:
        return 0.0, 1.0
    there = replace(choice, concurrency=known.concurrency, kv_dtype="auto")
    return pessimism_of(
        known, lambda end: known.concurrency / round_time(there, box, model, None, 0, known.context, end)
    )


def _as_drafted(
    within: Range,
    choice: Choice,
    box: Box,
    model: Model,
    head: Head | None,
    measurements: Iterable[Measurement],
    ends: tuple[float, float],
) -> Range:
    """A range narrowed by what was measured with the same drafts, moved from its concurrency and context to these."""
    known = drafted(choice, box, measurements) if head is not None else None
    if known is None:
        return within
    there = replace(choice, concurrency=known.concurrency, kv_dtype="auto")
    expected = rate(there, box, model, head, choice.draft_tokens, known.context, ends)
    return narrowed(within, known.tokens_per_second * _middle(within) / _middle(expected))


def _at_context(
    running: Choice,
    box: Box,
    model: Model,
    head: Head | None,
    context: int,
    ends: tuple[float, float],
    short: tuple[Range, Range],
) -> AtContext:
    """Estimate at a context for as many requests as `running` has; the ends move as those of short contexts did."""
    drafts = running.draft_tokens if head is not None else 0
    whole = rate(running, box, model, head, drafts, context, ends)
    low, high = whole.low * (short[1].low / short[0].low), whole.high * (short[1].high / short[0].high)
    return AtContext(
        context=context,
        tokens_per_second=Range(low=min(low, high), high=max(low, high)),
        at_once=running.concurrency,
    )


def _middle(within: Range) -> float:
    return sqrt(within.low * within.high)


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


def _communication(choice: Choice, box: Box, model: Model, pessimism: float) -> float:
    """Return the time of two all-reduces a layer, where GPUs work together."""
    if choice.tensor_parallel == 1:
        return 0.0
    is_slow = box.nodes > 1 and box.gpus == 1  # trays of several GPUs share an NVLink domain (GB200)
    low, high = REDUCE_S["nodes" if is_slow else "gpus"]
    return 2 * model.num_layers * (low + pessimism * (high - low))


def _prefill_time(choice: Choice, box: Box, model: Model, prompt_tokens: int, pessimism: float) -> float:
    losses = calibration(choice.engine, box.hardware).at(pessimism)
    gpus = 1 + (choice.tensor_parallel - 1) * (1 - pessimism * (1 - PARALLEL_PREFILL))
    load = Load(context=0, dense_share=dense_share(choice, model), expert_share=expert_share(choice, model))
    weights = pass_bytes(model, prompt_tokens, load) / choice.tensor_parallel
    read = weights / (box.hardware.bandwidth * losses.efficiency)
    arithmetic = _prefill_flops(model, prompt_tokens) / (losses.prefill_flops * gpus)
    return read + arithmetic + _fixed(choice, box, model, losses, pessimism)


def _fixed(choice: Choice, box: Box, model: Model, losses: Losses, pessimism: float) -> float:
    return model.num_layers * losses.layer_s + _communication(choice, box, model, pessimism)


def _prefill_flops(model: Model, tokens: int) -> float:
    """Count FLOPs: two per parameter and token; four per unit of a head and pair of positions, half of them masked."""
    width = 4 * model.num_attention_heads * model.head_dim
    full = (model.num_layers - model.num_sliding_layers) * tokens * tokens / 2
    sliding = model.num_sliding_layers * tokens * min(model.window, tokens)
    return 2 * model.active_params * tokens + width * (full + sliding)

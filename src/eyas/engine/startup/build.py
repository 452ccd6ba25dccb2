"""Builds an engine: sizes, caches, drafter, runner, scheduler, step loop. Only this file knows all parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from eyas.base.errors import UserError
from eyas.base.settings.config import BUSY_CHUNK_TOKENS
from eyas.engine.draft_length.choice import AutoDraftLength, DraftLength, FixedDraftLength
from eyas.engine.draft_length.step_costs import RoundCosts
from eyas.engine.drafters.base import DrafterNeeds, DrafterParts
from eyas.engine.drafters.ngram import NgramDrafter
from eyas.engine.drafters.registry import DRAFTERS
from eyas.engine.round.stages import buckets
from eyas.engine.round.state import DeviceState
from eyas.engine.sampling.synthetic import SimulatedSampler
from eyas.engine.sequences.constraint import GrammarCache
from eyas.engine.startup.backend import Backend, kernel_backend, plain_backend
from eyas.engine.startup.memory import PageCounts, kv_budget, page_bytes, page_counts
from eyas.engine.startup.memory_map import memory_map
from eyas.engine.step.core import EngineCore
from eyas.engine.step.runner import Runner
from eyas.engine.step.scheduler import Scheduler, SchedulerConfig, sliding_pages
from eyas.kernels.reference.attend import KEY_BLOCK
from eyas.kernels.reference.linear import self_test
from eyas.kernels.reference.ops import LayerCache, Ops
from eyas.kernels.reference.roles import PROMPT_OPS, PROMPT_TILE, ROW_OPS
from eyas.model.checkpoints.device_layout import is_packed
from eyas.model.config import GptOssConfig
from eyas.model.devices import available_bytes
from eyas.model.mxfp4 import Mxfp4Tensor
from eyas.model.networks.experts import DequantCache, ExpertStack
from eyas.model.networks.gpt_oss import GptOss
from eyas.model.prompt_memory import chunk_bytes, expert_bytes
from eyas.model.weights import Head, TargetWeights

__all__ = [
    "MAX_AUTO_DRAFTS",
    "BuiltEngine",
    "EngineOptions",
    "auto_draft_length",
    "build_engine",
    "check_options",
]

MAX_AUTO_DRAFTS = 7  # with the last token, they fill one tile of 8 rows
LEAST_MATCH = 5  # n-gram size of prompt lookup next to a head
MAX_BACKLOG = 32  # most rows of the head's catch-up pass


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineOptions:
    """Options of an engine. `kv_bytes` None: all free memory. `lag` None: 1 on a GPU, 0 on a CPU (see EngineCore).

    Operations and prompt tokens per step default to the backend's; `busy_chunk_tokens` bounds the latter while any
    sequence decodes.

    `tokenizer_json` is read when the first grammar arrives; without it grammars are refused.

    `simulated_acceptance` are the rates of synthetic acceptance, for benchmarks only (see
    `engine.sampling.synthetic`).
    """

    context: int
    concurrency: int = 8
    drafter: str = "none"  # a name of `drafters.registry`
    draft_tokens: int | Literal["auto"] = "auto"
    seed: int | None = None
    page_size: int = 16
    chunk_tokens: int | None = None
    busy_chunk_tokens: int = BUSY_CHUNK_TOKENS
    kv_bytes: int | None = None
    lag: int | None = None
    row_ops: Ops | None = None
    prompt_ops: Ops | None = None
    expert_cache_bytes: int | None = None
    track_experts: bool = False
    tokenizer_json: Path | None = None
    simulated_acceptance: tuple[float, ...] | None = None

    @property
    def max_drafts(self) -> int:
        """The largest draft length of a sequence in a round."""
        if self.drafter == "none":
            return 0
        return MAX_AUTO_DRAFTS if self.draft_tokens == "auto" else self.draft_tokens


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    core: EngineCore
    weights: TargetWeights
    head: Head | None
    prompt_bytes: int  # memory in which the prompt tokens of a step are computed

    @property
    def memory_bytes(self) -> dict[str, int]:
        """Return the bytes in use now, by owner: see `memory_map`."""
        return memory_map(self.weights, self.head, self.core.runner, prompt_bytes=self.prompt_bytes)


def build_engine(
    config: GptOssConfig,
    weights: TargetWeights,
    options: EngineOptions,
    *,
    head: Head | None = None,
) -> BuiltEngine:
    """Build an engine. Raises UserError if the context is longer than the model's or memory does not suffice."""
    check_options(config, options)
    max_drafts, dtype = options.max_drafts, weights.embed_VH.dtype
    drafter, needs = DRAFTERS[options.drafter], DrafterNeeds()
    if not drafter.has_head:
        head = None
    elif head is None:
        raise UserError(f"the {options.drafter} drafter needs a head; name one with --draft")
    else:
        needs = drafter.needs_of(head.config, dtype)
    backend = _backend(config, weights, options, needs, max_drafts)
    prompt_bytes = chunk_bytes(
        config, backend.chunk_tokens, dtype, tap_width=needs.tap_width, reader_row_bytes=needs.prompt_row_bytes
    )
    pages = _size(config, needs, options, weights.embed_VH, max_drafts, backend.chunk_tokens, prompt_bytes)
    runner = _runner(config, weights, options, head, needs, max_drafts, backend, pages)
    scheduler = Scheduler(
        SchedulerConfig(
            page_size=options.page_size,
            num_full_pages=pages.full,
            num_sliding_pages=pages.sliding,
            window=config.sliding_window,
            num_slots=options.concurrency,
            chunk_tokens=backend.chunk_tokens,
            busy_chunk_tokens=min(options.busy_chunk_tokens, backend.chunk_tokens),
            max_drafts=max_drafts,
        )
    )
    core = EngineCore(
        runner,
        scheduler,
        _draft_length(options, max_drafts, config, weights),
        GrammarCache(options.tokenizer_json, vocab_size=config.vocab_size, eos_ids=config.eos_ids),
        context=options.context,
        eos_ids=config.eos_ids,
        seed=options.seed,
        lag=int(runner.state.device.type == "cuda") if options.lag is None else options.lag,
        track_experts=options.track_experts,
    )
    return BuiltEngine(core, weights, head, prompt_bytes)


def _backend(
    config: GptOssConfig,
    weights: TargetWeights,
    options: EngineOptions,
    needs: DrafterNeeds,
    max_drafts: int,
) -> Backend:
    """Return the backend: kernels where the weights are packed for them; options override its parts."""
    backend = plain_backend()
    if is_packed(weights):
        backend = kernel_backend(
            config,
            DRAFTERS[options.drafter],
            needs,
            weights.embed_VH.device,
            concurrency=options.concurrency,
            max_drafts=max_drafts,
            max_backlog=MAX_BACKLOG,
        )
    return replace(
        backend,
        row_ops=options.row_ops or backend.row_ops,
        prompt_ops=options.prompt_ops or backend.prompt_ops,
        chunk_tokens=options.chunk_tokens or backend.chunk_tokens,
    )


def _runner(
    config: GptOssConfig,
    weights: TargetWeights,
    options: EngineOptions,
    head: Head | None,
    needs: DrafterNeeds,
    max_drafts: int,
    backend: Backend,
    pages: PageCounts,
) -> Runner:
    device, dtype = weights.embed_VH.device, weights.embed_VH.dtype
    # Positions for the drafts after the last token, padded to whole tiles of prompt rows.
    max_positions = -(-(options.context + max_drafts + 1) // PROMPT_TILE) * PROMPT_TILE
    target = GptOss(
        config,
        weights,
        max_positions=max_positions,
        taps=needs.taps,
        expert_cache_bytes=_expert_cache_bytes(config, weights, options),
    )
    caches = target.new_cache(pages.full + 1, pages.sliding + 1, options.page_size)
    state = DeviceState(
        num_slots=options.concurrency,
        max_positions=max_positions,
        page_size=options.page_size,
        vocab_size=config.vocab_size,
        tap_width=needs.tap_width,
        tap_ring=MAX_BACKLOG + max_drafts + 1,
        tap_dtype=dtype,
        device=device,
    )
    sampler, prompt_sampler = backend.new_samplers(state, options.concurrency * (max_drafts + 1))
    if options.simulated_acceptance is not None:
        sampler = SimulatedSampler(sampler, state, options.simulated_acceptance)
    parts = DrafterParts(
        needs=needs,
        head=head,
        target=target,
        caches=_drafter_caches(needs, pages, options.page_size, like=weights.embed_VH),
        ops=backend.row_ops,
        sampler=sampler,
        stages=backend.stages,
        look_up=backend.look_up,
        max_positions=max_positions,
        max_backlog=MAX_BACKLOG,
    )
    return Runner(
        target,
        DRAFTERS[options.drafter].build(parts),
        state,
        caches,
        torch.zeros(pages.full + 1, needs.page_tap_width, dtype=dtype, device=device),
        row_ops=backend.row_ops,
        prompt_ops=backend.prompt_ops,
        sampler=sampler,
        prompt_sampler=prompt_sampler,
        stages=backend.stages,
        ngram_drafter=NgramDrafter(backend.look_up, backend.stages, min_match=LEAST_MATCH) if head else None,
    )


def check_options(config: GptOssConfig, options: EngineOptions) -> None:
    """Raises UserError for options that no engine of this model supports; needs no weights."""
    if options.context > config.max_context:
        raise UserError(f"a context of {options.context} tokens is longer than the model's {config.max_context}")
    if options.context < 2:
        raise UserError(f"a context must hold a prompt and an answer: at least 2 tokens, got {options.context}")
    if KEY_BLOCK % options.page_size:
        raise UserError(f"the page size must divide {KEY_BLOCK}, got {options.page_size}")


def _size(
    config: GptOssConfig,
    needs: DrafterNeeds,
    options: EngineOptions,
    like: torch.Tensor,
    max_drafts: int,
    chunk_tokens: int,
    prompt_bytes: int,
) -> PageCounts:
    """Return the numbers of pages of caches on the device and in the dtype of `like`."""
    device, dtype = like.device, like.dtype
    budget = options.kv_bytes
    if budget is None:
        num_drafts = range(max_drafts + 1) if options.draft_tokens == "auto" else (max_drafts,)
        num_rows = sum(size * (drafts + 1) for size in buckets(options.concurrency) for drafts in num_drafts)
        budget = kv_budget(device, prompt_bytes=prompt_bytes, logit_bytes=4 * num_rows * config.vocab_size)
    return page_counts(
        page_bytes(config, needs, options.page_size, dtype),
        budget=budget,
        page_size=options.page_size,
        context=options.context,
        num_sequences=options.concurrency,
        sliding_pages=sliding_pages(config.sliding_window, max_drafts, options.page_size),
        chunk_tokens=chunk_tokens,
    )


def _expert_cache_bytes(config: GptOssConfig, weights: TargetWeights, options: EngineOptions) -> int:
    """Return the most bytes for dequantised experts: at most those of all experts, 0 if they are stored dense."""
    if not isinstance(weights.layers[0].gate_up, Mxfp4Tensor):
        return 0
    device, dtype = weights.embed_VH.device, weights.embed_VH.dtype
    limit = options.expert_cache_bytes
    if limit is None:
        limit = available_bytes(device) // 4 if device.type == "cpu" else 0
    return min(limit, expert_bytes(config, dtype))


def _drafter_caches(
    needs: DrafterNeeds, pages: PageCounts, page_size: int, *, like: torch.Tensor
) -> tuple[LayerCache, ...]:
    """Return zeroed keys and values over the pages of the full layers, on the device and in the dtype of `like`."""
    return tuple(
        LayerCache(*(like.new_zeros(pages.full + 1, page_size, cache.num_kv_heads, cache.head_dim) for _ in range(2)))
        for cache in needs.caches
    )


def auto_draft_length(options: EngineOptions, config: GptOssConfig, weights: TargetWeights) -> AutoDraftLength:
    """Return the policy of `--draft-tokens auto`, before any round was timed."""
    drafter, share = DRAFTERS[options.drafter], config.experts_per_token / config.num_experts
    costs = RoundCosts(MAX_AUTO_DRAFTS, expert_share=share, work=drafter.work)
    cuts = is_packed(weights)  # plain operations compute dead rows too
    return AutoDraftLength(MAX_AUTO_DRAFTS, costs, has_head=drafter.has_head, has_lookup=True, cuts=cuts)


def _draft_length(options: EngineOptions, max_drafts: int, config: GptOssConfig, weights: TargetWeights) -> DraftLength:
    if options.draft_tokens == "auto" and max_drafts:
        return auto_draft_length(options, config, weights)
    return FixedDraftLength(max_drafts)


def row_invariant(weights: TargetWeights, device_dtype: torch.dtype) -> bool:
    """Whether matmul on this machine is row-invariant: a row has the same bits at every place in a tile."""
    layer = weights.layers[0]
    dense = (layer.qkv_NH, layer.o_HN, layer.router_EH, weights.lm_head_VH)
    stacks = (ExpertStack(stack, device_dtype, DequantCache(0)) for stack in (layer.gate_up, layer.down))
    experts = tuple(stack[0] for stack in stacks)
    return all(
        tile is None or all(self_test(matrix, tile=tile) for matrix in matrices)
        for ops in (ROW_OPS, PROMPT_OPS)
        for tile, matrices in ((ops.dense, dense), (ops.experts, experts))
    )

"""Builds an engine: sizes, caches, drafter, runner, scheduler, step loop. Only this file knows all parts."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from eyas.base.errors import UserError
from eyas.base.settings.config import BUSY_CHUNK_TOKENS, MAX_AUTO_DRAFTS
from eyas.engine.draft_length.choice import AutoDraftLength, DraftLength, FixedDraftLength
from eyas.engine.draft_length.round_limit import most_drafts
from eyas.engine.draft_length.step_costs import RoundCosts
from eyas.engine.drafters.base import DrafterNeeds, DrafterParts
from eyas.engine.drafters.ngram import NgramDrafter
from eyas.engine.drafters.registry import DRAFTERS
from eyas.engine.round.stages import buckets
from eyas.engine.round.state import DeviceState
from eyas.engine.round.types import RoundSpace
from eyas.engine.sampling.synthetic import SimulatedSampler
from eyas.engine.sequences.constraint import GrammarCache
from eyas.engine.startup.backend import KERNEL_CHUNK, Backend, kernel_backend, plain_backend
from eyas.engine.startup.memory import PageCounts, kv_budget, page_bytes, page_counts, screen_pays
from eyas.engine.startup.memory_map import memory_map
from eyas.engine.step.core import EngineCore
from eyas.engine.step.runner import Runner
from eyas.engine.step.scheduler import Scheduler, SchedulerConfig, sliding_pages
from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.kernels.layouts.int8 import RoughMatrix, rough_bytes
from eyas.kernels.reference.layers.attend import KEY_BLOCK
from eyas.kernels.reference.layers.linear import self_test
from eyas.kernels.reference.layers.ops import LayerCache, Ops
from eyas.kernels.reference.layers.roles import PROMPT_OPS, PROMPT_TILE, ROW_OPS
from eyas.model.checkpoints.device_layout import is_packed
from eyas.model.config import GptOssConfig
from eyas.model.devices import available_bytes
from eyas.model.mxfp4 import Mxfp4Tensor
from eyas.model.networks.experts import DequantCache, ExpertStack
from eyas.model.networks.gpt_oss import GptOss
from eyas.model.prompt_memory import chunk_bytes, expert_bytes
from eyas.model.weights import Head, TargetWeights

__all__ = [
    "BuiltEngine",
    "EngineOptions",
    "auto_draft_length",
    "build_engine",
    "check_options",
]

LEAST_MATCH = 5  # n-gram size of prompt lookup next to a head
MAX_BACKLOG = 32  # most rows of the head's catch-up pass
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineOptions:
    """Options of an engine. `kv_bytes` None: all free memory. `lag` None: 1 on a GPU, 0 on a CPU (see EngineCore).

    `kv_dtype` is that of the target's keys and values: 'auto' that of its weights. A head's stay in that of its own:
    of an EAGLE-3 head they are a twentieth of the bytes, and rounding them could only cost acceptance.

    Operations and prompt tokens per step default to the backend's; `busy_chunk_tokens` bounds the latter while any
    sequence decodes.

    `tokenizer_json` is read when the first grammar arrives; without it grammars are refused.

    With `whole_lm_head` no 8-bit copy of it is made, which takes memory (`engine.sampling.screened_logits`).

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
    target_itl_s: float | None = None
    kv_bytes: int | None = None
    kv_dtype: Literal["auto", "fp8"] = "auto"
    lag: int | None = None
    row_ops: Ops | None = None
    prompt_ops: Ops | None = None
    expert_cache_bytes: int | None = None
    track_experts: bool = False
    tokenizer_json: Path | None = None
    simulated_acceptance: tuple[float, ...] | None = None
    whole_lm_head: bool = False

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

    @property
    def memory_bytes(self) -> dict[str, int]:
        """Return the bytes in use now, by owner: see `memory_map`."""
        return memory_map(self.weights, self.head, self.core.runner)


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
        config, backend.max_prompt_rows, dtype, tap_width=needs.tap_width, reader_row_bytes=needs.prompt_row_bytes
    )
    device = weights.embed_VH.device
    row_bytes = 4 * config.vocab_size + dtype.itemsize * needs.tap_width  # of `RoundSpace`
    round_bytes = row_bytes * _most_rows(options, backend.max_rows)

    def kv_bytes() -> int:
        if options.kv_bytes is not None:
            return options.kv_bytes
        return kv_budget(device, prompt_bytes=prompt_bytes, round_bytes=round_bytes)

    screens = backend.new_screen is not None and not options.whole_lm_head
    rough = _rough_lm_head(weights, kv_bytes()) if screens else None
    pages = _size(config, needs, options, weights.embed_VH, backend, kv_bytes())
    runner = _runner(config, weights, options, head, needs, max_drafts, backend, pages, rough)
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
            max_rows=backend.max_rows,
        )
    )
    core = EngineCore(
        runner,
        scheduler,
        _draft_length(options, config, weights, backend.max_rows),
        GrammarCache(options.tokenizer_json, vocab_size=config.vocab_size, eos_ids=config.eos_ids),
        context=options.context,
        eos_ids=config.eos_ids,
        seed=options.seed,
        lag=int(runner.state.device.type == "cuda") if options.lag is None else options.lag,
        track_experts=options.track_experts,
        target_itl_s=options.target_itl_s,
    )
    return BuiltEngine(core, weights, head)


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
            chunk_tokens=options.chunk_tokens or KERNEL_CHUNK,
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
    rough: RoughMatrix | None,
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
    in_fp8 = options.kv_dtype == "fp8"
    caches = target.new_cache(pages.full + 1, pages.sliding + 1, options.page_size, in_fp8=in_fp8)
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
    num_rows = _most_rows(options, backend.max_rows)
    sampler, prompt_sampler = backend.new_samplers(state, num_rows)
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
        gather=backend.gather,
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
        gather=backend.gather,
        max_prompt_rows=backend.max_prompt_rows,
        space=_round_space(num_rows, target, needs.tap_width) if backend.stages.has_fixed_shapes else None,
        ngram_drafter=NgramDrafter(backend.look_up, backend.stages, min_match=LEAST_MATCH) if head else None,
        screen=None
        if rough is None or backend.new_screen is None
        else backend.new_screen(weights.lm_head_VH, rough, state, config.rms_norm_eps),
    )


def _rough_lm_head(weights: TargetWeights, kv_bytes: int) -> RoughMatrix | None:
    """Return the 8-bit copy of an lm_head that kernels read, where it pays and `kv_bytes` leave room for it."""
    lm_head = weights.lm_head_VH
    if not isinstance(lm_head, BlockedMatrix):
        return None
    if not screen_pays(lm_head.data.nbytes, rough_bytes(lm_head.num_rows, lm_head.num_columns), kv_bytes):
        return None
    return RoughMatrix.of(lm_head)


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
    backend: Backend,
    budget: int,
) -> PageCounts:
    """Return the numbers of pages of caches in the dtype of `like` that fit into `budget` bytes."""
    return page_counts(
        page_bytes(config, needs, options.page_size, like.dtype, in_fp8=options.kv_dtype == "fp8"),
        budget=budget,
        page_size=options.page_size,
        context=options.context,
        num_sequences=options.concurrency,
        sliding_pages=sliding_pages(config.sliding_window, options.max_drafts, options.page_size),
        chunk_tokens=backend.chunk_tokens,
    )


def _largest_rounds(options: EngineOptions, max_rows: int | None) -> list[tuple[int, int]]:
    """Return the batch sizes of rounds, and the most drafts of each."""
    return [(size, most_drafts(size, options.max_drafts, max_rows)) for size in buckets(options.concurrency)]


def _most_rows(options: EngineOptions, max_rows: int | None) -> int:
    return max(size * (drafts + 1) for size, drafts in _largest_rounds(options, max_rows))


def _round_space(num_rows: int, target: GptOss, tap_width: int) -> RoundSpace:
    logits_TV = torch.empty(num_rows, target.config.vocab_size, dtype=torch.float32, device=target.device)
    taps_TC = torch.empty(num_rows, tap_width, dtype=target.dtype, device=target.device) if tap_width else None
    return RoundSpace(logits_TV, taps_TC, torch.empty(num_rows, dtype=torch.bool, device=target.device))


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
        LayerCache.zeros((pages.full + 1, cache.num_kv_heads, page_size, cache.head_dim), like.dtype, like.device)
        for cache in needs.caches
    )


def auto_draft_length(
    options: EngineOptions, config: GptOssConfig, weights: TargetWeights, max_rows: int | None = None
) -> AutoDraftLength:
    """Return the policy of `--draft-tokens auto`, before any round was timed."""
    drafter, share = DRAFTERS[options.drafter], config.experts_per_token / config.num_experts
    costs = RoundCosts(MAX_AUTO_DRAFTS, max_rows=max_rows, expert_share=share, work=drafter.work)
    cuts = is_packed(weights)  # plain operations compute dead rows too
    return AutoDraftLength(MAX_AUTO_DRAFTS, costs, has_head=drafter.has_head, has_lookup=True, cuts=cuts)


def _draft_length(
    options: EngineOptions, config: GptOssConfig, weights: TargetWeights, max_rows: int | None
) -> DraftLength:
    """Return the policy of the options. It drafts no more than fits a round, which is said once where that is less."""
    if options.draft_tokens == "auto" and options.max_drafts:
        return auto_draft_length(options, config, weights, max_rows)
    rounds = _largest_rounds(options, max_rows)
    size, most = rounds[-1]
    if most < options.max_drafts:
        log.info(
            "a round has at most %d rows: with %d conversations at once %d tokens are drafted, %d with up to %d",
            max_rows, size, most, options.max_drafts, max(n for n, k in rounds if k == options.max_drafts),
        )  # fmt: skip
    return FixedDraftLength(options.max_drafts)


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

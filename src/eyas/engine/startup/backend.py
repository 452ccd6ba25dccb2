"""Backends: operations by role, samplers and stages, chosen by the device and the layout of the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from eyas.base.errors import UserError
from eyas.engine.drafters.base import Drafter, DrafterNeeds
from eyas.engine.round.stages import CudaGraphs, Stages
from eyas.engine.round.state import DeviceState
from eyas.engine.round.types import Sampler
from eyas.engine.sampling.sampler import PlainSampler
from eyas.kernels.reference.lookup import LookUp, look_up_ref
from eyas.kernels.reference.ops import Ops
from eyas.kernels.reference.roles import PROMPT_OPS, ROW_OPS
from eyas.model.config import GptOssConfig

__all__ = [
    "KERNEL_CHUNK",
    "PLAIN_CHUNK",
    "Backend",
    "check_round_size",
    "kernel_backend",
    "plain_backend",
]

PLAIN_CHUNK, KERNEL_CHUNK = 512, 8192  # prompt tokens per step


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """Parts of an engine that depend on the device.

    `new_samplers(state, max_rows)` makes a sampler for rounds of up to `max_rows` rows, and one for the first tokens
    after prompts.
    """

    row_ops: Ops
    prompt_ops: Ops
    stages: Stages
    new_samplers: Callable[[DeviceState, int], tuple[Sampler, Sampler]]
    look_up: LookUp
    chunk_tokens: int


def plain_backend() -> Backend:
    return Backend(
        row_ops=ROW_OPS,
        prompt_ops=PROMPT_OPS,
        stages=Stages(),
        new_samplers=lambda state, max_rows: (PlainSampler(state), PlainSampler(state)),
        look_up=look_up_ref,
        chunk_tokens=PLAIN_CHUNK,
    )


def check_round_size(concurrency: int, max_drafts: int) -> None:
    """Raises UserError for more sequences or rows in a round than the kernels take."""
    from eyas.kernels.cuda.attend import MAX_SEQS
    from eyas.kernels.cuda.moe import MAX_ROWS

    if concurrency > MAX_SEQS:
        raise UserError(
            f"a round on a GPU has at most {MAX_SEQS} sequences, got --concurrency {concurrency}; "
            f"with --concurrency {MAX_SEQS} more requests wait in the queue"
        )
    if concurrency * (max_drafts + 1) > MAX_ROWS:
        raise UserError(
            f"a round on a GPU has at most {MAX_ROWS} rows, got {concurrency} sequences of {max_drafts + 1} "
            f"(--draft-tokens {max_drafts} and one more); lower --concurrency to {MAX_ROWS // (max_drafts + 1)} "
            f"or --draft-tokens to {MAX_ROWS // concurrency - 1}"
        )


def kernel_backend(
    config: GptOssConfig,
    drafter: type[Drafter],
    needs: DrafterNeeds,
    device: torch.device,
    *,
    concurrency: int,
    max_drafts: int,
    max_backlog: int,
) -> Backend:
    """Return the backend of kernels and CUDA graphs. Raises UserError for more rows in a round than kernels take."""
    from eyas.engine.sampling.device_sampler import DeviceSampler
    from eyas.kernels.cuda.ops import DecodeOps
    from eyas.kernels.triton.lookup import look_up
    from eyas.kernels.triton.ops import PromptOps

    check_round_size(concurrency, max_drafts)
    passes = drafter.work(max_drafts).passes
    drafts_a_pass = -(-max_drafts // passes) if passes else 0

    def new_samplers(state: DeviceState, max_rows: int) -> tuple[Sampler, Sampler]:
        of_rounds = DeviceSampler(
            state, max_rows=max_rows, draft_vocab_size=needs.draft_vocab_size, drafts_a_pass=drafts_a_pass
        )
        # Several prompts may end in one step, before the host has copied the first result.
        return of_rounds, DeviceSampler(state, max_rows=1, copies_results=True)

    return Backend(
        row_ops=DecodeOps(
            device,
            max_sequences=concurrency,
            max_rows=max(max_drafts + 1, max_backlog),
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            top_k=config.experts_per_token,
            draft_heads=needs.attention_heads,
        ),
        prompt_ops=PromptOps(),
        stages=CudaGraphs(max_sequences=concurrency),
        new_samplers=new_samplers,
        look_up=look_up,
        chunk_tokens=KERNEL_CHUNK,
    )

"""Backends: operations by role, samplers and stages, chosen by the device and the layout of the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from eyas.base.errors import UserError
from eyas.engine.drafters.base import Drafter, DrafterNeeds
from eyas.engine.round.stages import CudaGraphs, Stages
from eyas.engine.round.state import DeviceState
from eyas.engine.round.types import Sampler, Screen
from eyas.engine.sampling.sampler import PlainSampler
from eyas.engine.step.scheduler import max_tiles
from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.kernels.layouts.int8 import RoughMatrix
from eyas.kernels.reference.layers.ops import Ops
from eyas.kernels.reference.layers.roles import PROMPT_OPS, PROMPT_TILE, ROW_OPS
from eyas.kernels.reference.rounds.gather import Gather, PlainGather
from eyas.kernels.reference.rounds.lookup import LookUp, look_up_ref
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
    after prompts; `new_screen(lm_head, rough, state, eps)` what computes the logits of small rounds from a rough copy
    of the lm_head.
    """

    row_ops: Ops
    prompt_ops: Ops
    stages: Stages
    new_samplers: Callable[[DeviceState, int], tuple[Sampler, Sampler]]
    gather: Gather
    look_up: LookUp
    chunk_tokens: int
    max_rows: int | None = None  # rows of a round, None: no limit
    new_screen: Callable[[BlockedMatrix, RoughMatrix, DeviceState, float], Screen] | None = None

    @property
    def max_prompt_rows(self) -> int:
        """The most rows of a prompt pass, those that fill up tiles included."""
        return max_tiles(self.chunk_tokens) * PROMPT_TILE


def plain_backend() -> Backend:
    return Backend(
        row_ops=ROW_OPS,
        prompt_ops=PROMPT_OPS,
        stages=Stages(),
        new_samplers=lambda state, max_rows: (PlainSampler(state), PlainSampler(state)),
        gather=PlainGather(),
        look_up=look_up_ref,
        chunk_tokens=PLAIN_CHUNK,
    )


def check_round_size(concurrency: int) -> None:
    """Raises UserError for more sequences in a round than the kernels take.

    More rows are no error: large rounds draft fewer tokens (`engine.draft_length.round_limit`).
    """
    from eyas.kernels.cuda.attention.attend_plan import MAX_SEQS
    from eyas.kernels.cuda.moe.moe import MAX_ROWS

    most = min(MAX_SEQS, MAX_ROWS)
    if concurrency > most:
        raise UserError(
            f"a round on a GPU has at most {most} sequences, got --concurrency {concurrency}; "
            f"with --concurrency {most} more requests wait in the queue"
        )


def kernel_backend(
    config: GptOssConfig,
    drafter: type[Drafter],
    needs: DrafterNeeds,
    device: torch.device,
    *,
    concurrency: int,
    max_drafts: int,
    chunk_tokens: int,
) -> Backend:
    """Return the backend of kernels and CUDA graphs. Raises UserError for more sequences than kernels take."""
    from eyas.engine.sampling.device_sampler import DeviceSampler
    from eyas.engine.sampling.screened_logits import ScreenedLogits
    from eyas.kernels.cuda.attention.flash import hopper_attention
    from eyas.kernels.cuda.moe.experts import hopper_products
    from eyas.kernels.cuda.moe.moe import MAX_ROWS
    from eyas.kernels.cuda.ops import DecodeOps
    from eyas.kernels.triton.prompts.ops import PromptOps
    from eyas.kernels.triton.rounds.gather import DeviceGather
    from eyas.kernels.triton.rounds.lookup import look_up

    check_round_size(concurrency)
    passes = drafter.work(max_drafts).passes
    drafts_a_pass = -(-max_drafts // passes) if passes else 0

    def new_samplers(state: DeviceState, max_rows: int) -> tuple[Sampler, Sampler]:
        of_rounds = DeviceSampler(
            state, max_rows=max_rows, draft_vocab_size=needs.draft_vocab_size, drafts_a_pass=drafts_a_pass
        )
        return of_rounds, DeviceSampler(state, max_rows=concurrency)

    return Backend(
        row_ops=DecodeOps(
            device,
            max_rows=concurrency * (max_drafts + 1),
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            top_k=config.experts_per_token,
        ),
        prompt_ops=PromptOps(
            hopper_products(config, device, max_tiles(chunk_tokens) * PROMPT_TILE), hopper_attention(device)
        ),
        stages=CudaGraphs(max_sequences=concurrency, max_tiles=max_tiles(chunk_tokens)),
        new_samplers=new_samplers,
        gather=DeviceGather(),
        look_up=look_up,
        chunk_tokens=chunk_tokens,
        max_rows=MAX_ROWS,
        new_screen=ScreenedLogits,
    )

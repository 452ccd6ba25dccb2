"""Samples tokens in one launch: edits, temperature, filters, noise, argmax, finite check and log-probabilities.

The Triton twin of `kernels.reference.rounds.sample` and of what `engine.sampling.sampler` does around it. One program
for each (row, chunk of the vocabulary); a row's last program merges its chunks. The options of rows are in tensors on
the device, so one CUDA graph serves every mixture of requests, and a row pays only for the options it uses. Chunks
depend on the size of the vocabulary and on the device, not on the rows: a row's token has the same bits in every
launch.

Shape letters: T rows (R for each sequence), S sequences or slots, K drafts, V vocabulary, C chunks, N top tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from eyas.kernels.layouts.dense import TILE_ROWS
from eyas.kernels.layouts.device import device_limits
from eyas.kernels.reference.rounds.failures import NO_TOKEN_LEFT, NOT_FINITE
from eyas.kernels.reference.rounds.sample import SamplingRows
from eyas.kernels.triton.rounds.edits import Edits, Masks, edit_chunk
from eyas.kernels.triton.rounds.filters import BINS, SHARED, choose
from eyas.kernels.triton.rounds.noise import gumbel, gumbel_of, log
from eyas.kernels.triton.rounds.order import LOWEST, pack, packed_id, packed_score

__all__ = ["MAX_TOP", "Drawn", "SampleSpace", "draw"]

MAX_TOP = 20  # most likely tokens that a row can report
_TILE = tl.constexpr(TILE_ROWS)
_MAX_TOP = tl.constexpr(32)  # a power of two
_SHARED = tl.constexpr(SHARED)
_BINS = tl.constexpr(BINS)
_NOT_FINITE = tl.constexpr(NOT_FINITE)
_NO_TOKEN_LEFT = tl.constexpr(NO_TOKEN_LEFT)
_PER_THREAD = 16  # scores of a thread, in registers
_REGISTERS = 96  # of a thread; spilling what the rarer options need costs less than fewer programs at a time


class _Settings(NamedTuple):
    """The tensors of `SamplingRows`, by slot."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    choice: Tensor


class Drawn(NamedTuple):
    """Results of `draw` for each row; views of the space, valid until its next launch."""

    ids_T: Tensor  # int64
    failed_T: Tensor  # int64: 0, NOT_FINITE or NO_TOKEN_LEFT
    logprobs_T: Tensor  # fp32, of the token under the raw logits
    top_logprobs_TN: Tensor  # fp32, of the `num_top` most likely tokens of rows that ask; the rest is undefined
    top_ids_TN: Tensor  # int64


class _Scratch(NamedTuple):
    """Memory through which programs exchange values."""

    arrived_T: Tensor  # int32; each launch leaves zeros
    numbers_TC: Tensor
    bests_TC: Tensor
    counts_TC: Tensor
    stats_TC: Tensor  # peak and mass of each chunk's raw logits
    best_TC: Tensor
    tops_TCN: Tensor


class SampleSpace:
    """Results and scratch memory for launches of up to `max_rows` rows on one device, one launch at a time."""

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device | str, *, chunk_size: int = 0) -> None:
        """Allocate. By default `chunk_size` is such that all chunks of a row run at once, which the filters need."""

        def empty(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(max_rows, *shape, dtype=dtype, device=device)

        self.vocab_size = vocab_size
        self.chunk_size = chunk_size or _chunk_size(vocab_size, device)
        self.num_chunks = -(-vocab_size // self.chunk_size)
        self.scratch = _Scratch(
            arrived_T=torch.zeros(max_rows, dtype=torch.int32, device=device),
            numbers_TC=empty(2, self.num_chunks, SHARED, dtype=torch.float32),
            bests_TC=empty(2, self.num_chunks, dtype=torch.int64),
            counts_TC=empty(2, self.num_chunks, BINS, dtype=torch.int32),
            stats_TC=empty(2, self.num_chunks, dtype=torch.float32),
            best_TC=empty(self.num_chunks, dtype=torch.int64),
            tops_TCN=empty(self.num_chunks, _MAX_TOP.value, dtype=torch.int64),
        )
        self.drawn = Drawn(
            ids_T=empty(dtype=torch.int64),
            failed_T=empty(dtype=torch.int64),
            logprobs_T=empty(dtype=torch.float32),
            top_logprobs_TN=empty(MAX_TOP, dtype=torch.float32),
            top_ids_TN=empty(MAX_TOP, dtype=torch.int64),
        )


def _chunk_size(vocab_size: int, device: torch.device | str) -> int:
    num_sms = device_limits(torch.device(device)).num_sms
    return max(2048, triton.next_power_of_2(triton.cdiv(vocab_size, num_sms)))


@triton.jit
def _expected(raw, inside, wanted_ptr, V):
    """Whether there is to be a finite logit: a screen leaves -inf where it has ruled a token out."""
    expected = inside
    if wanted_ptr is not None:
        is_screened = tl.load(wanted_ptr) < V // _TILE
        expected = inside & ((raw != float("-inf")) | (is_screened == 0))
    return expected


@triton.jit
def _look(raw, ids, expected, row, chunk, num_top, scratch, CHUNKS: tl.constexpr):
    """Publish what the report needs of a chunk's raw logits: peak, mass (NaN if one is not finite), the largest."""
    highest = tl.max(raw)
    mass = tl.where(tl.abs(raw) < float("inf"), tl.exp(raw - highest), tl.where(expected, float("nan"), 0.0))
    stats_ptr = scratch.stats_TC + row * (2 * CHUNKS) + chunk
    tl.store(stats_ptr, highest)
    tl.store(stats_ptr + CHUNKS, tl.sum(mass))
    tops_ptr = scratch.tops_TCN + (row * CHUNKS + chunk) * _MAX_TOP
    n = 0
    if num_top > 0:
        rest = tl.where(expected, pack(raw, ids), LOWEST)
        while n < num_top:
            best = tl.max(rest)
            tl.store(tops_ptr + n, best)
            rest = tl.where(rest == best, LOWEST, rest)
            n += 1


@triton.jit
def _report(
    best,
    logits_ptr,
    row,
    num_top,
    scratch,
    drawn,
    NUM_TOP: tl.constexpr,
    CHUNKS: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Whether the row failed, and log-probabilities of `best`, a packed token, and of the most likely ones."""
    chunks, columns = tl.arange(0, PADDED), tl.arange(0, _MAX_TOP)[None, :]
    known = chunks < CHUNKS
    stats_ptr = scratch.stats_TC + row * (2 * CHUNKS) + chunks
    peaks = tl.load(stats_ptr, mask=known, other=float("-inf"), cache_modifier=".cg")
    masses = tl.load(stats_ptr + CHUNKS, mask=known, other=0.0, cache_modifier=".cg")
    peak = tl.max(peaks)
    total = tl.sum(masses * tl.exp(peaks - peak))
    normalizer = peak + log(total)
    failed = tl.where(packed_score(best) == float("-inf"), _NO_TOKEN_LEFT, 0)
    failed = tl.where(total > 0, failed, _NOT_FINITE)  # false for NaN
    tl.store(drawn.failed_T + row, failed.to(tl.int64))
    tl.store(drawn.logprobs_T + row, tl.load(logits_ptr + packed_id(best)) - normalizer)
    tops_ptr = scratch.tops_TCN + (row * CHUNKS + chunks[:, None]) * _MAX_TOP + columns
    rest = tl.load(tops_ptr, mask=known[:, None] & (columns < num_top), other=LOWEST, cache_modifier=".cg")
    n = 0
    while n < num_top:
        top = tl.max(tl.max(rest, axis=1), axis=0)
        tl.store(drawn.top_logprobs_TN + row * NUM_TOP + n, packed_score(top) - normalizer)
        tl.store(drawn.top_ids_TN + row * NUM_TOP + n, packed_id(top).to(tl.int64))
        rest = tl.where(rest == top, LOWEST, rest)
        n += 1


@triton.jit
def _perturb(
    scores,
    ids,
    inside,
    row,
    chunk,
    slot,
    position,
    settings,
    target_ids_ptr,
    scratch,
    V,
    SIZE: tl.constexpr,
    CHUNKS: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Scores with noise, those alone that can win if the row has filters; and the number of rounds that took."""
    seed, choice = tl.load(settings.seed + slot), tl.load(settings.choice + slot).to(tl.int32)
    top_k, top_p = tl.load(settings.top_k + slot), tl.load(settings.top_p + slot)
    min_p = tl.load(settings.min_p + slot)
    if target_ids_ptr is None:
        perturbed = scores + gumbel(seed, choice, position, chunk * SIZE, SIZE)
    else:
        target_ids = tl.load(target_ids_ptr + ids, mask=inside, other=0).to(tl.int32)
        perturbed = scores + gumbel_of(seed, choice, position, target_ids)
    round = 0
    if ((top_k > 0) & (top_k < V)) | (top_p < 1) | (min_p > 0):
        first = row * (2 * CHUNKS)  # of the two buffers of the row
        token, round = choose(
            scores,
            perturbed,
            ids,
            top_k,
            top_p,
            min_p,
            V,
            chunk,
            scratch.arrived_T + row,
            scratch.numbers_TC + first * _SHARED,
            scratch.bests_TC + first,
            scratch.counts_TC + first * _BINS,
            CHUNKS,
            PADDED,
        )
        perturbed = tl.where(ids == token, perturbed, float("-inf"))
    return perturbed, round


@triton.jit(
    do_not_specialize=["R", "K", "offset", "stride"],
    do_not_specialize_on_alignment=["slots_ptr", "live_ptr", "ancestors_ptr", "ids_ptr"],
)
def _draw(
    logits_ptr,
    slots_ptr,
    length_ptr,
    live_ptr,
    ancestors_ptr,
    settings,
    edits,
    masks,
    num_top_ptr,
    target_ids_ptr,
    wanted_ptr,
    scratch,
    drawn,
    ids_ptr,
    V,
    R,
    K,
    offset,
    stride,
    NUM_BIAS: tl.constexpr,
    NUM_STOPS: tl.constexpr,
    NUM_TOP: tl.constexpr,
    SIZE: tl.constexpr,
    CHUNKS: tl.constexpr,
    PADDED: tl.constexpr,
):
    row, chunk = tl.program_id(0) // CHUNKS, tl.program_id(0) % CHUNKS
    if live_ptr is not None:  # noqa: SIM102
        if tl.load(live_ptr + row) == 0:
            tl.store(ids_ptr + row * stride, 0)
            tl.store(drawn.failed_T + row, 0)
            return
    ids = chunk * SIZE + tl.arange(0, SIZE)
    inside = ids < V
    logits_ptr += row.to(tl.int64) * V
    raw = tl.load(logits_ptr + ids, mask=inside, other=float("-inf"))
    first, ancestors = (row // R) * K, tl.minimum(row % R, K)
    slot = tl.load(slots_ptr + row // R)
    position = (tl.load(length_ptr + slot) + offset + row % R).to(tl.int32)
    if num_top_ptr is not None:
        num_top = tl.load(num_top_ptr + slot)
        _look(raw, ids, _expected(raw, inside, wanted_ptr, V), row, chunk, num_top, scratch, CHUNKS)
    scores = edit_chunk(
        raw, ids, inside, row, slot, position, edits, masks, ancestors_ptr, first, ancestors, V,
        NUM_BIAS, NUM_STOPS, SIZE,
    )  # fmt: skip
    temperature = tl.load(settings.temperature + slot)
    round = 0
    if temperature > 0:
        scores, round = _perturb(
            tl.div_rn(scores, temperature), ids, inside, row, chunk, slot, position, settings, target_ids_ptr, scratch,
            V, SIZE, CHUNKS, PADDED,
        )  # fmt: skip
    best_ptr = scratch.best_TC + row * CHUNKS
    tl.store(best_ptr + chunk, tl.max(tl.where(inside, pack(scores, ids), LOWEST)))
    tl.debug_barrier()
    if tl.atomic_add(scratch.arrived_T + row, 1, sem="acq_rel") == (round + 1) * CHUNKS - 1:
        tl.store(scratch.arrived_T + row, 0)
        chunks = tl.arange(0, PADDED)
        best = tl.max(tl.load(best_ptr + chunks, mask=chunks < CHUNKS, other=LOWEST, cache_modifier=".cg"))
        if num_top_ptr is not None:
            _report(best, logits_ptr, row, num_top, scratch, drawn, NUM_TOP, CHUNKS, PADDED)
        token = packed_id(best).to(tl.int64)
        if target_ids_ptr is not None:
            token = tl.load(target_ids_ptr + token).to(tl.int64)
        tl.store(ids_ptr + row * stride, token)


def draw(
    logits_TV: Tensor,
    slots_S: Tensor,
    length_S: Tensor,
    settings: SamplingRows,
    space: SampleSpace,
    *,
    offset: int = 0,
    live_T: Tensor | None = None,
    edits: Edits | None = None,
    ancestors_SK: Tensor | None = None,
    masks: Masks | None = None,
    num_top_S: Tensor | None = None,
    target_ids_V: Tensor | None = None,
    wanted: Tensor | None = None,
    ids_T: Tensor | None = None,
    logprobs_T: Tensor | None = None,
) -> Drawn:
    """The token of each row: row r of the sequence in slot s stands at position `length_S`[s] + `offset` + r.

    `logits_TV` is fp32, R rows for each entry of `slots_S`. `settings`, `length_S`, `edits` and `num_top_S` have a row
    for each slot, `live_T` and the index of `masks` one for each row. Rows that are not live get token 0 and cost
    nothing. With `num_top_S` (0..20 tokens to report) rows are checked for numbers that are not finite, and
    log-probabilities are filled in; without it `ids_T` alone is. `target_ids_V` int64 names the target id of each
    column of a draft vocabulary: the noise is that of the target ids, and target ids come out. `wanted` is that of
    `kernels.triton.rounds.screen`: where it is not all tiles, the -inf of the others are no failure, and
    log-probabilities are undefined. `ids_T` int64 of any stride receives the tokens in place of the space's own,
    `logprobs_T` fp32 the log-probabilities.
    """
    num_rows, vocab_size = logits_TV.shape
    assert logits_TV.is_contiguous() and logits_TV.dtype == torch.float32 and vocab_size == space.vocab_size
    assert ancestors_SK is None or ancestors_SK.is_contiguous()
    drawn = Drawn(*(field[:num_rows] for field in space.drawn))
    if ids_T is not None:
        drawn = drawn._replace(ids_T=ids_T)
    if logprobs_T is not None:
        drawn = drawn._replace(logprobs_T=logprobs_T)
    kernel: Any = _draw
    kernel[(num_rows * space.num_chunks,)](
        logits_TV,
        slots_S,
        length_S,
        live_T,
        ancestors_SK,
        _Settings(*(getattr(settings, name) for name in _Settings._fields)),
        edits,
        masks,
        num_top_S,
        target_ids_V,
        wanted,
        space.scratch,
        drawn._replace(ids_T=None),
        drawn.ids_T,
        vocab_size,
        num_rows // len(slots_S),
        0 if ancestors_SK is None else ancestors_SK.shape[1],
        offset,
        drawn.ids_T.stride(0),
        NUM_BIAS=1 if edits is None else edits.bias_ids_SN.shape[1],
        NUM_STOPS=1 if edits is None else edits.stop_ids_SN.shape[1],
        NUM_TOP=MAX_TOP,
        SIZE=space.chunk_size,
        CHUNKS=space.num_chunks,
        PADDED=triton.next_power_of_2(space.num_chunks),
        num_warps=min(16, max(1, space.chunk_size // (32 * _PER_THREAD))),
        maxnreg=_REGISTERS,
        enable_fp_fusion=False,
    )
    return drawn

"""Rules out what cannot be a row's token by rough logits: lists the tiles of the vocabulary that are to be exact.

The exact logit of a token lies within `rough` +- error (`kernels.layouts.int8`). Dividing by the temperature and adding
the token's noise, both rounded to nearest, keep the order of what they are given, so the two ends taken through the
sampler's own arithmetic are bounds of the token's score, with no error of their own. A token whose upper bound is below
the highest lower bound of its row is not the argmax, and no tie of it either; the tiles of all others are listed.

One program for each chunk of the vocabulary has it in all rows of the launch, and the programs meet once. All of them
must fit the device at once. What they leave is read on the device: the host does not know how many tiles there are.

Shape letters: T rows (R for each sequence), S sequences or slots, V vocabulary, H hidden, P parts of a row's square
sum, C chunks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from eyas.kernels.layouts.dense import TILE_ROWS
from eyas.kernels.layouts.device import device_limits
from eyas.kernels.layouts.int8 import RoughMatrix
from eyas.kernels.reference.layers.norm import Normed
from eyas.kernels.reference.rounds.sample import SamplingRows
from eyas.kernels.reference.rounds.screen import MARGIN, UNDERFLOW, most_length
from eyas.kernels.triton.rounds.filters import meet
from eyas.kernels.triton.rounds.noise import gumbel

__all__ = ["PAUSE", "ScreenSpace", "screen"]

PAUSE = 64  # launches after one that listed more tiles than pay
PAYING = 3, 8  # of all tiles may be listed: the copy has half of the bytes, and the launches cost about a tenth
_PAUSE = tl.constexpr(PAUSE)
_TILE = tl.constexpr(TILE_ROWS)
_MARGIN, _UNDERFLOW = tl.constexpr(MARGIN), tl.constexpr(UNDERFLOW)
_PER_THREAD = 8  # scores of a thread


class _Settings(NamedTuple):
    """Tensors of `SamplingRows` that a score depends on without filters, by slot."""

    temperature: Tensor
    seed: Tensor
    choice: Tensor


class _Scratch(NamedTuple):
    """Memory through which programs exchange values; each launch leaves zeros in the first two."""

    arrived: Tensor
    num_listed: Tensor
    peaks_TC: Tensor  # fp32, the highest lower bounds


class ScreenSpace:
    """Results and scratch memory for launches of up to `max_rows` rows on one device, one launch at a time.

    `pass_over` int32 [2]: the host's wish for all logits, and how many launches are still to list all tiles since one
    found no gain. `wanted` int32: the number of tiles, then the tiles in any order, which are left out if it is all.
    """

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device | str, *, chunk_size: int = 0) -> None:
        num_sms = device_limits(torch.device(device)).num_sms
        self.chunk_size = chunk_size or max(1024, triton.next_power_of_2(triton.cdiv(vocab_size, num_sms)))
        self.num_chunks = triton.cdiv(vocab_size, self.chunk_size)
        self.num_tiles = vocab_size // TILE_ROWS
        self.pass_over = torch.zeros(2, dtype=torch.int32, device=device)
        self.wanted = torch.zeros(1 + self.num_tiles, dtype=torch.int32, device=device)
        self.scratch = _Scratch(
            arrived=torch.zeros(1, dtype=torch.int32, device=device),
            num_listed=torch.zeros(1, dtype=torch.int32, device=device),
            peaks_TC=torch.empty(max_rows, self.num_chunks, device=device),
        )


@triton.jit
def _length(rows_ptr, sums_ptr, H, P, eps, WIDTH: tl.constexpr, PARTS: tl.constexpr):
    """No less than a row's norm, in units of the product and in units of the logits."""
    columns, parts = tl.arange(0, WIDTH), tl.arange(0, PARTS)
    x = tl.load(rows_ptr + columns, mask=columns < H, other=0.0).to(tl.float32)
    length = tl.sqrt(tl.sum(x * x)) * _MARGIN + _UNDERFLOW
    squares = tl.sum(tl.load(sums_ptr + parts, mask=parts < P, other=0.0))
    return length, length * tl.rsqrt(squares / H + eps) * _MARGIN


@triton.jit
def _bounds(rough, slack, length, first, row, R, slots_ptr, length_ptr, settings, SIZE: tl.constexpr):
    """Below and above the scores of the ids from `first` on."""
    error = length * slack * _MARGIN + _UNDERFLOW
    low, high = rough - error, rough + error
    slot = tl.load(slots_ptr + row // R)
    temperature = tl.load(settings.temperature + slot)
    if temperature > 0:
        seed, choice = tl.load(settings.seed + slot), tl.load(settings.choice + slot).to(tl.int32)
        position = (tl.load(length_ptr + slot) + row % R).to(tl.int32)
        noise = gumbel(seed, choice, position, first, SIZE)
        low, high = tl.div_rn(low, temperature) + noise, tl.div_rn(high, temperature) + noise
    return low, high


@triton.jit
def _list(
    logits_ptr,
    live_ptr,
    wanted_ptr,
    scratch,
    chunk,
    num_rows,
    V,
    SIZE: tl.constexpr,
    CHUNKS: tl.constexpr,
    PADDED: tl.constexpr,
):
    """List the chunk's tiles with an upper bound, left in the logits, that reaches its row's; -inf for all others."""
    chunks = tl.arange(0, PADDED)
    tiles = chunk * (SIZE // _TILE) + tl.arange(0, SIZE // _TILE)
    places = tiles[:, None] * _TILE + tl.arange(0, _TILE)[None, :]
    exist = tiles < V // _TILE
    listed = tl.zeros((SIZE // _TILE,), tl.int32)
    row = 0
    while row < num_rows:
        if tl.load(live_ptr + row) != 0:
            peaks_ptr = scratch.peaks_TC + row * CHUNKS + chunks
            peak = tl.max(tl.load(peaks_ptr, mask=chunks < CHUNKS, other=float("-inf"), cache_modifier=".cg"))
            high = tl.load(logits_ptr + row * V + places, mask=exist[:, None], other=float("-inf"))
            listed |= (exist & (tl.max(high, axis=1) >= peak)).to(tl.int32)
        row += 1
    after = tl.atomic_add(scratch.num_listed, tl.sum(listed), sem="relaxed")
    tl.store(wanted_ptr + 1 + after + tl.cumsum(listed) - listed, tiles, mask=listed != 0)
    absent = (exist & (listed == 0))[:, None] & (places >= 0)
    row = 0
    while row < num_rows:
        if tl.load(live_ptr + row) != 0:
            tl.store(logits_ptr + row * V + places, float("-inf"), mask=absent)
        row += 1


@triton.jit(
    do_not_specialize=["num_rows", "R", "stride", "most_tiles"],
    do_not_specialize_on_alignment=["slots_ptr", "live_ptr"],
)
def _screen(
    logits_ptr,
    rows_ptr,
    sums_ptr,
    slots_ptr,
    length_ptr,
    live_ptr,
    settings,
    slack_ptr,
    pass_over_ptr,
    wanted_ptr,
    scratch,
    V,
    H,
    P,
    R,
    num_rows,
    stride,
    eps,
    limit,
    most_tiles,
    SIZE: tl.constexpr,
    CHUNKS: tl.constexpr,
    PADDED: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
):
    chunk = tl.program_id(0)
    is_wished, paused = tl.load(pass_over_ptr), tl.load(pass_over_ptr + 1)
    screens = (is_wished | paused) == 0
    if screens:
        ids = chunk * SIZE + tl.arange(0, SIZE)
        inside = ids < V
        slack = tl.load(slack_ptr + ids, mask=inside, other=0.0)
        row = 0
        while row < num_rows:
            if tl.load(live_ptr + row) != 0:
                length, scaled = _length(rows_ptr + row * stride, sums_ptr + row * P, H, P, eps, WIDTH, PARTS)
                screens = screens & (length < limit) & (scaled < limit)  # false for NaN; the same in all programs
                at = logits_ptr + row * V + ids
                rough = tl.load(at, mask=inside, other=0.0)
                low, high = _bounds(rough, slack, scaled, chunk * SIZE, row, R, slots_ptr, length_ptr, settings, SIZE)
                tl.store(scratch.peaks_TC + row * CHUNKS + chunk, tl.max(tl.where(inside, low, float("-inf"))))
                tl.store(at, high, mask=inside)
            row += 1
    round = 0
    if screens:
        meet(scratch.arrived, 0, CHUNKS)
        round = 1
        _list(logits_ptr, live_ptr, wanted_ptr, scratch, chunk, num_rows, V, SIZE, CHUNKS, PADDED)
    tl.debug_barrier()
    if tl.atomic_add(scratch.arrived, 1, sem="acq_rel") == (round + 1) * CHUNKS - 1:
        num_listed = tl.load(scratch.num_listed, cache_modifier=".cg")
        tl.store(wanted_ptr, tl.where(screens, num_listed, V // _TILE))
        tl.store(scratch.arrived, 0)
        tl.store(scratch.num_listed, 0)
        pause = tl.where(num_listed <= most_tiles, 0, _PAUSE)
        tl.store(pass_over_ptr + 1, tl.where(screens, pause, tl.maximum(paused - 1, 0)))


def screen(
    rough_TV: Tensor,
    normed: Normed,
    eps: float,
    rough: RoughMatrix,
    slots_S: Tensor,
    length_S: Tensor,
    live_T: Tensor,
    settings: SamplingRows,
    space: ScreenSpace,
) -> None:
    """List in `space.wanted` the tiles that the tokens of live rows can be in, and make all other logits -inf.

    `rough_TV` are the products of `normed` with `rough.matrix`. `slots_S`, `length_S` and `settings` are those of
    `kernels.triton.rounds.sample.draw`; filters, edits and masks are not looked at. All tiles are wanted, and logits
    are left as they are, where `space.pass_over` says so, and where a row may have a logit that is not finite.
    """
    num_rows, vocab_size = rough_TV.shape
    rows_TH, sums_TP = normed
    assert rough_TV.is_contiguous() and sums_TP.is_contiguous() and rows_TH.stride(1) == 1
    assert num_rows <= len(space.scratch.peaks_TC) and vocab_size == space.num_tiles * TILE_ROWS
    numerator, denominator = PAYING
    kernel: Any = _screen
    kernel[(space.num_chunks,)](
        rough_TV,
        rows_TH,
        sums_TP,
        slots_S,
        length_S,
        live_T,
        _Settings(*(getattr(settings, name) for name in _Settings._fields)),
        rough.slack_N,
        space.pass_over,
        space.wanted,
        space.scratch,
        vocab_size,
        rows_TH.shape[1],
        sums_TP.shape[1],
        num_rows // len(slots_S),
        num_rows,
        rows_TH.stride(0),
        eps,
        most_length(rough.largest),
        space.num_tiles * numerator // denominator,
        SIZE=space.chunk_size,
        CHUNKS=space.num_chunks,
        PADDED=triton.next_power_of_2(space.num_chunks),
        WIDTH=triton.next_power_of_2(rows_TH.shape[1]),
        PARTS=triton.next_power_of_2(sums_TP.shape[1]),
        num_warps=min(16, max(1, space.chunk_size // (32 * _PER_THREAD))),
        enable_fp_fusion=False,
    )

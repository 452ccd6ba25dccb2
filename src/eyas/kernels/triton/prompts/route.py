"""Routing of prompt rows: router logits, top k, and the rows grouped by expert, without the host knowing the groups.

Two launches. The first multiplies with the router's matrix (the experts are the tall side, as rows may be few), picks
the experts and takes a place in each one's queue. The second turns queue lengths into lists, and writes the rows in the
order in which `PackedExperts` wants their columns. Places are handed out by integer atomics, so the order inside a
group may change from run to run; no bit of a row depends on it.

A pass of few rows has few tiles of them, so the product is divided over the columns, into the same parts for any number
of rows. Of the programs of a tile the last to arrive adds the parts, in their order, and picks the experts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.kernels.reference.layers.norm import Normed
from eyas.kernels.triton.prompts.products import inverse_rms, word_order

__all__ = ["Groups", "Routing", "Tally", "group", "route_rows"]

_PART_H = 320  # columns of a part; which it is decides the bits of the logits
_ROWS = 4  # that one program of the second launch puts into their experts' lists


class Tally(NamedTuple):
    """Counters, all zero when `route_rows` begins; `experts.combine` leaves them so for the next layer."""

    counts_E: Tensor  # int32, pairs in each expert's queue
    arrived_N: Tensor  # int32, programs of each tile of rows that have come to their end

    @classmethod
    def zeros(cls, num_experts: int, num_rows: int, device: torch.device) -> Tally:
        sizes = num_experts, triton.cdiv(num_rows, _tile_rows(num_rows))
        return cls(*torch.zeros(sum(sizes), dtype=torch.int32, device=device).split(sizes))


class Routing(NamedTuple):
    """Experts of each row. Dead rows have id -1."""

    inverse_rms_T: Tensor  # fp32
    ids_TK: Tensor  # int32
    places_TK: Tensor  # int32, place of the pair in its expert's queue
    weights_TK: Tensor  # fp32, softmax over the k
    tally: Tally


class Groups(NamedTuple):
    """Pairs t * k + rank sorted by expert, cut into tiles of `tile_rows`. Entries from `num_tiles` on are not set."""

    rows_TH: Tensor  # the rows, their columns in word order
    pairs: Tensor  # int32 [T * k]
    tiles: Tensor  # int32 [max tiles, 4]: expert, first and end of its entries in `pairs`
    num_tiles: Tensor  # int32 [1]
    tile_rows: int


def _tile_rows(num_rows: int) -> int:
    """Rows of a tile: fewer make more programs, more read the matrix less often. Bits are the same."""
    return 16 if num_rows <= 256 else 32 if num_rows <= 2048 else 64


@triton.jit
def _choose(
    logits, t, live, num_rows, ids_ptr, places_ptr, weights_ptr, counts_ptr,
    TOP_K: tl.constexpr, RANKS: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """The top k of logits [BLOCK_T, BLOCK_E], their weights, and a place in the queue of each."""
    expert, rank = tl.arange(0, BLOCK_E), tl.arange(0, RANKS)[None, :]
    weights = tl.zeros((BLOCK_T, RANKS), tl.float32)
    ids = tl.full((BLOCK_T, RANKS), -1, tl.int32)
    total = tl.zeros((BLOCK_T,), tl.float32)
    for step in tl.static_range(TOP_K):
        value, chosen = tl.max(logits, axis=1, return_indices=True)
        if step == 0:
            largest = value
        weight = tl.exp(value - largest)
        total += weight  # by rank: the order of `tl.sum` follows the layout, which differs between tiles
        weights = tl.where(rank == step, weight[:, None], weights)
        ids = tl.where(rank == step, chosen[:, None], ids)
        logits = tl.where(expert[None, :] == chosen[:, None], float("-inf"), logits)
    weights = weights / total[:, None]
    ids = tl.where(live[:, None], ids, -1)
    places = tl.atomic_add(counts_ptr + ids, 1, mask=ids >= 0, sem="relaxed")
    pairs = t[:, None] * TOP_K + rank
    wanted = (t < num_rows)[:, None] & (rank < TOP_K)
    tl.store(ids_ptr + pairs, ids, mask=wanted)
    tl.store(weights_ptr + pairs, weights, mask=wanted)
    tl.store(places_ptr + pairs, places, mask=wanted)


@triton.jit
def _route_kernel(
    x_ptr, sums_ptr, live_ptr, w_ptr, bias_ptr, parts_ptr,
    rms_ptr, ids_ptr, places_ptr, weights_ptr, counts_ptr, arrived_ptr,
    num_rows, H, E, eps,
    TOP_K: tl.constexpr, RANKS: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_T: tl.constexpr, SUMS: tl.constexpr,
    PARTS: tl.constexpr, PART_H: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    part, tile = tl.program_id(0), tl.program_id(1)
    row = tl.arange(0, BLOCK_T)
    t = tile * BLOCK_T + row
    inside = t < num_rows
    rows = tl.where(inside, t, 0)
    expert = tl.arange(0, BLOCK_E)
    e = tl.minimum(expert, E - 1)
    k = part * PART_H + tl.arange(0, BLOCK_H)
    x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * H + k[None, :]
    w_ptrs = w_ptr + ((e // 16) * (H * 16) + (e % 16) * 32)[:, None] + ((k // 32) * 512 + k % 32)[None, :]
    acc = tl.zeros((BLOCK_E, BLOCK_T), tl.float32)
    for start in range(0, PART_H, BLOCK_H):
        within = (start + k < H)[None, :]
        w = tl.load(w_ptrs, mask=within, other=0.0)
        x = tl.load(x_ptrs, mask=within, other=0.0)
        acc = tl.dot(w, x.T, acc)
        x_ptrs += BLOCK_H
        w_ptrs += BLOCK_H * 16
    of_tile = parts_ptr + tile.to(tl.int64) * (PARTS * BLOCK_T * BLOCK_E)
    tl.store(of_tile + part * (BLOCK_T * BLOCK_E) + row[None, :] * BLOCK_E + expert[:, None], acc)
    tl.debug_barrier()  # the sums of all threads, before one says that they are there
    if tl.atomic_add(arrived_ptr + tile, 1, sem="acq_rel") == PARTS - 1:
        tl.store(arrived_ptr + tile, 0)
        logits = tl.zeros((BLOCK_T, BLOCK_E), tl.float32)
        for other in tl.static_range(PARTS):
            of_part = of_tile + other * (BLOCK_T * BLOCK_E) + row[:, None] * BLOCK_E + expert[None, :]
            logits += tl.load(of_part, cache_modifier=".cg")
        rms = inverse_rms(sums_ptr, rows, inside, H, eps, SUMS)
        tl.store(rms_ptr + t, rms, mask=inside)
        logits = logits * rms[:, None] + tl.load(bias_ptr + e)[None, :]
        # Threads disagree on the largest of NaN. Of infinities it is the first, and the weights are NaN all the same.
        logits = tl.where(logits == logits, logits, float("inf"))
        logits = tl.where((expert < E)[None, :], logits, float("-inf"))
        live = tl.load(live_ptr + rows, mask=inside, other=0) != 0
        _choose(
            logits, t, live, num_rows, ids_ptr, places_ptr, weights_ptr, counts_ptr, TOP_K, RANKS, BLOCK_E, BLOCK_T
        )  # fmt: skip


@triton.jit
def _group_kernel(
    x_ptr, ids_ptr, places_ptr, counts_ptr, rows_ptr, pairs_ptr, tiles_ptr, num_tiles_ptr,
    num_rows, H, E, tile_rows,
    TOP_K: tl.constexpr, RANKS: tl.constexpr, BLOCK_E: tl.constexpr, ROWS: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    expert = tl.arange(0, BLOCK_E)
    counts = tl.load(counts_ptr + expert, mask=expert < E, other=0)
    tiles = (counts + tile_rows - 1) // tile_rows
    if program < E:
        before = expert < program
        first = tl.sum(tl.where(before, counts, 0))
        end = first + tl.sum(tl.where(expert == program, counts, 0))
        tile = tl.sum(tl.where(before, tiles, 0))
        for start in range(first, end, tile_rows):
            tl.store(tiles_ptr + tile * 4, program)
            tl.store(tiles_ptr + tile * 4 + 1, start)
            tl.store(tiles_ptr + tile * 4 + 2, tl.minimum(end, start + tile_rows))
            tile += 1
        if program == 0:
            tl.store(num_tiles_ptr, tl.sum(tiles))

    slot = tl.arange(0, ROWS * RANKS)
    pair = (program * ROWS + slot // RANKS) * TOP_K + slot % RANKS
    wanted = (pair < num_rows * TOP_K) & (slot % RANKS < TOP_K)
    id = tl.load(ids_ptr + pair, mask=wanted, other=-1)
    place = tl.load(places_ptr + pair, mask=wanted, other=0)
    first_of = tl.sum(tl.where(id[:, None] > expert[None, :], counts[None, :], 0), axis=1)
    tl.store(pairs_ptr + first_of + place, pair, mask=id >= 0)

    row = program * ROWS + tl.arange(0, ROWS)
    start = row.to(tl.int64)[:, None] * H
    for first_column in range(0, H, BLOCK_H):
        column = first_column + tl.arange(0, BLOCK_H)
        mask = (row < num_rows)[:, None] & (column < H)[None, :]
        tl.store(rows_ptr + start + column[None, :], tl.load(x_ptr + start + word_order(column)[None, :], mask), mask)


def route_rows(
    normed: Normed,
    live_T: Tensor,
    router: BlockedMatrix,
    bias_E: Tensor,
    *,
    top_k: int,
    eps: float,
    tally: Tally | None = None,
) -> Routing:
    """The top k experts of live rows. The router's logits are those of `ops.Ops.router`.

    `tally` is one that `experts.combine` has left, of as many rows and experts; without it there is a launch more.
    """
    x, sums = normed
    num_rows, width = x.shape
    num_experts, device = router.num_rows, x.device
    block_e, block_t = triton.next_power_of_2(num_experts), _tile_rows(num_rows)
    num_tiles, num_parts = triton.cdiv(num_rows, block_t), triton.cdiv(width, _PART_H)
    tally = tally or Tally.zeros(num_experts, num_rows, device)
    assert (tally.counts_E.numel(), tally.arrived_N.numel()) == (num_experts, num_tiles)
    ids, places = (torch.empty(num_rows, top_k, dtype=torch.int32, device=device) for _ in range(2))
    routing = Routing(
        torch.empty(num_rows, dtype=torch.float32, device=device),
        ids,
        places,
        torch.empty(num_rows, top_k, dtype=torch.float32, device=device),
        tally,
    )
    parts = torch.empty(num_tiles, num_parts, block_t, block_e, dtype=torch.float32, device=device)
    _route_kernel[(num_parts, num_tiles)](
        x, sums, live_T, router.data, bias_E, parts, *routing[:4], *tally,
        num_rows, width, num_experts, eps,
        TOP_K=top_k, RANKS=triton.next_power_of_2(top_k), BLOCK_E=block_e, BLOCK_T=block_t,
        SUMS=sums.shape[1], PARTS=num_parts, PART_H=_PART_H, BLOCK_H=64,
        num_warps=4, num_stages=4,
    )  # fmt: skip
    return routing


def group(x_TH: Tensor, routing: Routing, tile_rows: int) -> Groups:
    """The rows of each expert in tiles of at most `tile_rows`."""
    num_rows, top_k = routing.ids_TK.shape
    num_pairs, num_experts = num_rows * top_k, routing.tally.counts_E.numel()
    most_tiles = min(num_pairs, num_pairs // tile_rows + num_experts)
    groups = Groups(
        torch.empty_like(x_TH),
        torch.empty(num_pairs, dtype=torch.int32, device=x_TH.device),
        torch.empty(most_tiles, 4, dtype=torch.int32, device=x_TH.device),
        torch.empty(1, dtype=torch.int32, device=x_TH.device),
        tile_rows,
    )
    _group_kernel[(max(num_experts, triton.cdiv(num_rows, _ROWS)),)](
        x_TH, routing.ids_TK, routing.places_TK, routing.tally.counts_E, *groups[:4],
        num_rows, x_TH.shape[1], num_experts, tile_rows,
        TOP_K=top_k, RANKS=triton.next_power_of_2(top_k), BLOCK_E=triton.next_power_of_2(num_experts),
        ROWS=_ROWS, BLOCK_H=1024, num_warps=4,
    )  # fmt: skip
    return groups

"""Routing of prompt rows: router logits, top k, and the rows grouped by expert, without the host knowing the groups.

Two launches. The first multiplies with the router's matrix (the experts are the tall side, as rows may be few), picks
the experts, takes a place in each one's queue, and writes the rows in the order in which `PackedExperts` wants their
columns. The second turns queue lengths into lists. Places are handed out by integer atomics, so the order inside a
group may change from run to run; no bit of a row depends on it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from eyas.kernels.layout import BlockedMatrix
from eyas.kernels.norm import Normed
from eyas.kernels.triton.products import inverse_rms, word_order

__all__ = ["Groups", "Routing", "group", "route_rows"]

BLOCK_T = 32
_PAIRS = 256  # (row, rank) pairs that a program of `_group` places


class Routing(NamedTuple):
    """Where each row goes. Dead rows have id -1. `rows_TH` is the normed input with its columns in word order."""

    rows_TH: Tensor  # bf16, not yet divided by the root mean square
    inverse_rms_T: Tensor  # fp32
    ids_TK: Tensor  # int32
    places_TK: Tensor  # int32, place of the pair in its expert's queue
    weights_TK: Tensor  # fp32, softmax over the k
    counts_E: Tensor  # int32


class Groups(NamedTuple):
    """Pairs t * k + rank sorted by expert, cut into tiles of `tile_rows`. Entries behind `num_tiles` are not set."""

    pairs: Tensor  # int32 [T * k]
    tiles: Tensor  # int32 [max tiles, 4]: expert, first and end of its entries in `pairs`
    num_tiles: Tensor  # int32 [1]
    tile_rows: int


@triton.jit
def _route_kernel(
    x_ptr, sums_ptr, live_ptr, w_ptr, bias_ptr,
    rows_ptr, rms_ptr, ids_ptr, places_ptr, weights_ptr, counts_ptr,
    num_rows, num_parts, H, E, eps,
    TOP_K: tl.constexpr, RANKS: tl.constexpr, BLOCK_E: tl.constexpr,
    BLOCK_T: tl.constexpr, PARTS: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    inside = t < num_rows
    rows = tl.where(inside, t, 0)
    rms = inverse_rms(sums_ptr, rows, inside, num_parts, H, eps, PARTS)
    tl.store(rms_ptr + t, rms, mask=inside)

    expert = tl.arange(0, BLOCK_E)
    k = tl.arange(0, BLOCK_H)
    x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * H
    e = tl.minimum(expert, E - 1)
    w_ptrs = w_ptr + ((e // 16) * (H * 16) + (e % 16) * 32)[:, None] + ((k // 32) * 512 + k % 32)[None, :]
    acc = tl.zeros((BLOCK_E, BLOCK_T), tl.float32)
    for start in range(0, H, BLOCK_H):
        column = start + k
        within = (column < H)[None, :]
        w = tl.load(w_ptrs, mask=within, other=0.0)
        x = tl.load(x_ptrs + column[None, :], mask=within, other=0.0)
        acc = tl.dot(w, x.T, acc)
        ordered = tl.load(x_ptrs + word_order(column)[None, :], mask=within)
        tl.store(rows_ptr + t.to(tl.int64)[:, None] * H + column[None, :], ordered, mask=inside[:, None] & within)
        w_ptrs += BLOCK_H * 16

    bias = tl.load(bias_ptr + e)
    logits = acc * rms[None, :] + bias[:, None]
    logits = tl.where((expert < E)[:, None], logits, float("-inf"))
    live = tl.load(live_ptr + rows, mask=inside, other=0) != 0
    rank = tl.arange(0, RANKS)[None, :]
    values = tl.full((BLOCK_T, RANKS), float("-inf"), tl.float32)
    ids = tl.full((BLOCK_T, RANKS), -1, tl.int32)
    for step in tl.static_range(TOP_K):
        chosen = tl.minimum(tl.argmax(logits, axis=0), E - 1)  # of a row of NaN it may be a padding expert
        values = tl.where(rank == step, tl.max(logits, axis=0)[:, None], values)
        ids = tl.where(rank == step, chosen[:, None], ids)
        logits = tl.where(expert[:, None] == chosen[None, :], float("-inf"), logits)
    weights = tl.exp(values - tl.max(values, axis=1)[:, None])
    weights = weights / tl.sum(weights, axis=1)[:, None]
    ids = tl.where(live[:, None], ids, -1)
    places = tl.atomic_add(counts_ptr + ids, 1, mask=ids >= 0, sem="relaxed")
    pairs = t[:, None] * TOP_K + rank
    wanted = inside[:, None] & (rank < TOP_K)
    tl.store(ids_ptr + pairs, ids, mask=wanted)
    tl.store(weights_ptr + pairs, weights, mask=wanted)
    tl.store(places_ptr + pairs, places, mask=wanted)


@triton.jit
def _group_kernel(
    ids_ptr, places_ptr, counts_ptr, pairs_ptr, tiles_ptr, num_tiles_ptr,
    num_pairs, E, tile_rows,
    BLOCK_E: tl.constexpr, PAIRS: tl.constexpr,
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
    pair = program * PAIRS + tl.arange(0, PAIRS)
    id = tl.load(ids_ptr + pair, mask=pair < num_pairs, other=-1)
    place = tl.load(places_ptr + pair, mask=pair < num_pairs, other=0)
    first_of = tl.sum(tl.where(id[:, None] > expert[None, :], counts[None, :], 0), axis=1)
    tl.store(pairs_ptr + first_of + place, pair, mask=id >= 0)


def route_rows(
    normed: Normed, live_T: Tensor, router: BlockedMatrix, bias_E: Tensor, *, top_k: int, eps: float
) -> Routing:
    """The first launch: see the module's text. Logits are those of `ops.Ops.router`."""
    x = normed.rows_TH
    num_rows, width = x.shape
    num_experts = router.num_rows
    ids, places = (torch.empty(num_rows, top_k, dtype=torch.int32, device=x.device) for _ in range(2))
    routing = Routing(
        torch.empty_like(x),
        torch.empty(num_rows, dtype=torch.float32, device=x.device),
        ids,
        places,
        torch.empty(num_rows, top_k, dtype=torch.float32, device=x.device),
        torch.zeros(num_experts, dtype=torch.int32, device=x.device),
    )
    _route_kernel[(triton.cdiv(num_rows, BLOCK_T),)](
        x, normed.square_sums_TP, live_T, router.data, bias_E, *routing,
        num_rows, normed.square_sums_TP.shape[1], width, num_experts, eps,
        TOP_K=top_k, RANKS=triton.next_power_of_2(top_k), BLOCK_E=triton.next_power_of_2(num_experts),
        BLOCK_T=BLOCK_T, PARTS=triton.next_power_of_2(normed.square_sums_TP.shape[1]), BLOCK_H=64,
        num_warps=4, num_stages=4,
    )  # fmt: skip
    return routing


def group(routing: Routing, tile_rows: int) -> Groups:
    """The second launch: lists of pairs by expert and their tiles of at most `tile_rows` pairs."""
    device = routing.ids_TK.device
    num_pairs, num_experts = routing.ids_TK.numel(), routing.counts_E.numel()
    most_tiles = min(num_pairs, num_pairs // tile_rows + num_experts)
    groups = Groups(
        torch.empty(num_pairs, dtype=torch.int32, device=device),
        torch.empty(most_tiles, 4, dtype=torch.int32, device=device),
        torch.empty(1, dtype=torch.int32, device=device),
        tile_rows,
    )
    _group_kernel[(max(num_experts, triton.cdiv(num_pairs, _PAIRS)),)](
        routing.ids_TK, routing.places_TK, routing.counts_E, groups.pairs, groups.tiles, groups.num_tiles,
        num_pairs, num_experts, tile_rows,
        BLOCK_E=triton.next_power_of_2(num_experts), PAIRS=_PAIRS, num_warps=4,
    )  # fmt: skip
    return groups

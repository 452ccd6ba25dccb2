"""The experts of prompt rows on Hopper: both grouped MXFP4 products, from rows copied to their experts' entries.

`experts.cu` has the kernels. Rows are routed by `kernels.triton.prompts.route`, whose lists are tensors here; outputs
of an expert are not yet weighted (`kernels.triton.prompts.experts.combine` does that). No bit of a row depends on the
other rows.

Few rows go through the kernel of decode rows (`moe`), of which they take less time: see docs/log/kernels.md. Both add
the same slices of columns in the same order.

Shape letters: T rows, H hidden, E experts, K experts of a row, I intermediate, P = T K pairs.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from eyas.kernels.cuda.compiler import load
from eyas.kernels.cuda.moe import moe
from eyas.kernels.layouts.device import device_limits
from eyas.kernels.layouts.mxfp4 import PackedExperts

__all__ = ["Entries", "HopperProducts", "down", "group", "hopper_products", "tile_rows", "up"]

FEW_ROWS = 256
MAX_EXPERTS = 128
MATH_WARPS = {16: 20, 32: 12, 64: 12, 128: 12}  # by rows of a tile
WARP_BYTES = 512 + 32  # of the weights of 16 features and 64 columns
STAGE_STEPS = 3  # of 64 columns
LARGEST_TILE = max(MATH_WARPS)
MAX_STAGES = 8
MAX_TILES = 512
RESERVED = 2048 + 16 * MAX_TILES  # arguments and barriers, tiles


class Entries(NamedTuple):
    """Rows by expert. An entry is a pair of row and rank; those of an expert follow one another."""

    entries: Tensor  # bf16 [ceil(H / 64), P, 64], columns in the order of unpacked weights, pieces exchanged
    pairs_P: Tensor  # int32, t * K + rank
    scales_P: Tensor  # fp32, inverse rms of the rows
    tiles: Tensor  # int32 [most tiles, 4]
    num_tiles: Tensor  # int32 [1]
    tile_rows: int


class Few(NamedTuple):
    """Arguments of `HopperProducts.up`, kept for `down`, whose launch does both."""

    x_TH: Tensor
    gate_up: PackedExperts
    bias_EN: Tensor
    limit: float


class HopperProducts:
    """`kernels.triton.prompts.ops.ExpertProducts` by these kernels; `routing` is
    `kernels.triton.prompts.route.Routing`.

    Passes of up to the rows of `workspace` go through `moe`, none without it. Its blocks wait for one another, so no
    other kernel may hold multiprocessors meanwhile: all launches are on one stream.
    """

    def __init__(self, workspace: moe.Workspace | None = None) -> None:
        self.workspace = workspace

    def up(self, x_TH: Tensor, routing: Any, gate_up: PackedExperts, bias_EN: Tensor, *, limit: float) -> Entries | Few:
        if self.workspace is not None and len(x_TH) <= self.workspace.max_rows:
            return Few(x_TH, gate_up, bias_EN, limit)
        rows = group(
            x_TH,
            routing.ids_TK,
            routing.places_TK,
            routing.tally.counts_E,
            routing.inverse_rms_T,
            tile_rows(routing.ids_TK.numel(), gate_up.num_experts),
            gate_up.num_rows,
        )
        return up(rows, gate_up, bias_EN, top_k=routing.ids_TK.shape[1], limit=limit)

    def down(self, act: Entries | Few, routing: Any, matrix: PackedExperts, bias_EH: Tensor) -> Tensor:
        if isinstance(act, Entries):
            return down(act, matrix, bias_EH, top_k=routing.ids_TK.shape[1])
        assert self.workspace is not None
        x_TH, gate_up, up_bias, limit = act
        ids, rms, workspace = routing.ids_TK, routing.inverse_rms_T, self.workspace
        return moe.outputs(x_TH, ids, rms, gate_up, up_bias, matrix, bias_EH, workspace, limit=limit)


class Shapes(Protocol):
    """Sizes of a target, of `model.config.GptOssConfig`."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_experts(self) -> int: ...
    @property
    def experts_per_token(self) -> int: ...


def hopper_products(shapes: Shapes, device: torch.device, max_rows: int) -> HopperProducts | None:
    """Return these products if they compute all passes of up to `max_rows` rows on this device, else None.

    Their bits are not those of others, so an engine has one kind for all passes: `max_rows` are those of its largest.
    """
    if not device_limits(device).has_wgmma:
        return None
    fits = shapes.hidden_size % 64 == 0 and shapes.intermediate_size % 32 == 0 and shapes.num_experts <= MAX_EXPERTS
    most = _most_tiles(max_rows * shapes.experts_per_token, shapes.num_experts, LARGEST_TILE)
    if not fits or most > MAX_TILES:
        return None
    widest = max(shapes.hidden_size, shapes.intermediate_size)
    if moe.slice_columns(widest) != 64 * STAGE_STEPS or shapes.experts_per_token > moe.MAX_TOP_K:
        return HopperProducts()
    # Without a place for sums: the outputs of an expert are wanted.
    return HopperProducts(moe.Workspace(FEW_ROWS, shapes.experts_per_token, 0, shapes.intermediate_size, device))


def tile_rows(num_pairs: int, num_experts: int) -> int:
    """Rows of a tile: about twice the mean of an expert, which nearly all then have in one tile."""
    mean = num_pairs // num_experts
    return 16 if mean <= 8 else 32 if mean <= 16 else 64 if mean <= 40 else 128


def group(
    x_TH: Tensor,
    ids_TK: Tensor,
    places_TK: Tensor,
    counts_E: Tensor,
    inverse_rms_T: Tensor,
    tile_rows: int,
    num_features: int = 64,
) -> Entries:
    """Copy each live row to its experts. Ids (-1: dead), places in an expert's queue and counts int32, rms fp32.

    `num_features` are those of `up`, whose module has this kernel, too: another number costs a compilation.
    """
    num_rows, width = x_TH.shape
    num_pairs, num_experts, device = ids_TK.numel(), counts_E.numel(), x_TH.device
    assert x_TH.dtype == torch.bfloat16 and num_experts <= MAX_EXPERTS
    most_tiles = _most_tiles(num_pairs, num_experts, tile_rows)
    if most_tiles > MAX_TILES:
        raise ValueError(f"{num_pairs} pairs in tiles of {tile_rows} rows: more than {MAX_TILES} tiles")
    found = Entries(
        torch.empty(-(-width // 64), num_pairs, 64, dtype=torch.bfloat16, device=device),
        torch.empty(num_pairs, dtype=torch.int32, device=device),
        torch.empty(num_pairs, dtype=torch.float32, device=device),
        torch.empty(most_tiles, 4, dtype=torch.int32, device=device),
        torch.empty(1, dtype=torch.int32, device=device),
        tile_rows,
    )
    stages, _ = _shared_memory(tile_rows, device_limits(device).shared_bytes)
    constants = _constants(width, num_features, ids_TK.shape[1], num_experts, tile_rows, stages)
    load("moe/experts", constants | {"UP": 1}).kernel("group").launch(
        num_rows, 128, x_TH, ids_TK, places_TK, counts_E, inverse_rms_T, *found[:5], num_pairs
    )
    return found


def up(rows: Entries, gate_up: PackedExperts, bias_EN: Tensor, *, top_k: int, limit: float) -> Entries:
    """Gate, up and clamped SwiGLU of all entries, as entries of `down`. Bias fp32, gate and up alternating."""
    num_pairs, width = rows.pairs_P.numel(), gate_up.num_rows // 2
    out = torch.empty(-(-width // 64), num_pairs, 64, dtype=torch.bfloat16, device=bias_EN.device)
    _launch(rows, gate_up, bias_EN, out, top_k, limit)
    return rows._replace(entries=out)


def down(rows: Entries, matrix: PackedExperts, bias_EH: Tensor, *, top_k: int) -> Tensor:
    """Outputs bf16 [P, H] by pair, not yet weighted; dead rows' are not written."""
    out = torch.empty(rows.pairs_P.numel(), matrix.num_rows, dtype=torch.bfloat16, device=bias_EH.device)
    _launch(rows, matrix, bias_EH, out, top_k, None)
    return out


def _most_tiles(num_pairs: int, num_experts: int, tile_rows: int) -> int:
    return min(num_pairs, num_pairs // tile_rows + num_experts)


def _constants(
    num_columns: int, num_features: int, top_k: int, num_experts: int, tile_rows: int, stages: int
) -> dict[str, int]:
    return {
        "COLUMNS": num_columns, "FEATURES": num_features, "TOP_K": top_k, "NUM_EXPERTS": num_experts,
        "TILE_ROWS": tile_rows, "STAGES": stages, "UP": 0,
    }  # fmt: skip


def _shared_memory(tile_rows: int, limit: int) -> tuple[int, int]:
    """Stages, and bytes of shared memory: at most `limit`, and whole KiB as that is."""
    stage_bytes = STAGE_STEPS * (tile_rows * 128 + MATH_WARPS[tile_rows] * WARP_BYTES)
    stages = min(MAX_STAGES, (limit - RESERVED) // stage_bytes)
    return stages, -(-(RESERVED + stages * stage_bytes) // 1024) * 1024


def _launch(
    rows: Entries, matrix: PackedExperts, bias_EN: Tensor, out: Tensor, top_k: int, limit: float | None
) -> None:
    assert matrix.num_rows % 64 == 0 and bias_EN.dtype == torch.float32
    limits = device_limits(out.device)
    stages, shared_bytes = _shared_memory(rows.tile_rows, limits.shared_bytes)
    constants = _constants(matrix.num_columns, matrix.num_rows, top_k, matrix.num_experts, rows.tile_rows, stages)
    load("moe/experts", constants | {"UP": int(limit is not None)}).kernel("experts").launch(
        limits.num_sms,
        32 * (MATH_WARPS[rows.tile_rows] + 4),
        rows.entries,
        rows.tiles,
        rows.num_tiles,
        matrix.words,
        matrix.scales,
        bias_EN,
        rows.scales_P,
        rows.pairs_P,
        out,
        2.0**matrix.exponent,
        float(limit or 0.0),
        rows.pairs_P.numel(),
        shared=shared_bytes,
    )

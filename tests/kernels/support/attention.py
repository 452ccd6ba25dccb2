"""Cases of decode attention: sequences, a launch of the kernel over them, and the shapes that tests go through."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from tests.kernels.cuda.emulator import emulated
from torch import Tensor

from eyas.kernels.cuda.attention import attend as module
from eyas.kernels.cuda.attention import attend_plan
from eyas.kernels.cuda.attention.attend import attend, attend_workspace
from eyas.kernels.cuda.attention.attend_plan import plan
from eyas.kernels.layouts.device import Limits
from eyas.kernels.reference.layers.ops import LayerCache, Product, RopeTable, Rows

PAGE, DIM, NUM_SLICES, HIDDEN = 16, 64, 3, 96
EPS = 1e-5


def device_of(kind: str, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The device of cases, seeded: a GPU, or, "emulated", a CPU on which the kernels of attention are emulated."""
    torch.manual_seed(0)
    if kind != "emulated":
        return torch.device("cuda")
    for each in (module, attend_plan):
        monkeypatch.setattr(each, "load", emulated)
    return torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """Sequences of different lengths with everything that a launch needs; caches are NaN where nothing was written."""

    group: int
    num_kv: int
    max_pages: int
    bias_N: Tensor | None
    sinks_Q: Tensor | None
    rope: RopeTable
    k_cache: Tensor
    v_cache: Tensor
    table_SP: Tensor
    partials_SLN: Tensor  # [slices, sequences, position, features]: what each position's product is
    square_sums_SLP: Tensor | None
    window: int | None = None
    first_key: int = 0
    scales_PG2B: Tensor | None = None  # caches in 8 bits


def make_case(
    device: torch.device,
    lengths: list[int],
    *,
    group: int = 8,
    num_kv: int = 2,
    plain: bool = False,
    window: int | None = None,
    first_key: int = 0,
    ahead: int = 8,
) -> Case:
    """`lengths`: keys written before the launch. `plain`: no bias, no norm and no sinks, as in a draft head."""
    num_seqs, longest = len(lengths), max(lengths) + ahead
    max_pages = -(-longest // PAGE)
    num_features = (group + 2) * num_kv * DIM
    num_pages = num_seqs * max_pages + 3

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, device=device)

    table_SP = (torch.randperm(num_pages - 1, device=device)[: num_seqs * max_pages] + 1).view(num_seqs, max_pages)
    shape = (num_pages, num_kv, PAGE, DIM)
    k_cache, v_cache = (torch.full(shape, torch.nan, dtype=torch.bfloat16, device=device) for _ in range(2))
    for seq, length in enumerate(lengths):
        at = torch.arange(first_key, length, device=device)
        pages, offsets = table_SP[seq, at // PAGE], at % PAGE
        k_cache[pages, :, offsets] = (2 * randn(len(at), num_kv, DIM)).bfloat16()
        v_cache[pages, :, offsets] = randn(len(at), num_kv, DIM).bfloat16()
    angles = torch.outer(
        torch.arange(longest, device=device).float(), 50.0 ** -torch.linspace(0, 1, DIM // 2, device=device)
    )
    return Case(
        group=group,
        num_kv=num_kv,
        max_pages=max_pages,
        bias_N=None if plain else randn(num_features),
        sinks_Q=None if plain else randn(group * num_kv),
        rope=RopeTable(1.1 * angles.cos(), 1.1 * angles.sin()),
        k_cache=k_cache,
        v_cache=v_cache,
        table_SP=table_SP,
        partials_SLN=randn(NUM_SLICES, num_seqs, longest, num_features),
        square_sums_SLP=None if plain else randn(num_seqs, longest, 6).square() * 30,
        window=window,
        first_key=first_key,
    )


def launch(
    case: Case,
    starts: list[int],
    num_rows: int,
    *,
    seqs: list[int] | None = None,
    live_SR: Tensor | None = None,
    max_length: int | None = None,
    num_multiprocessors: int = 5,
    shared_limit: int = 227 * 1024,
) -> tuple[Tensor, LayerCache]:
    """Rows `starts[i] ..` of sequence `seqs[i]`: the output [S, R, Q, D] and the caches after it.

    In front of the tables stands what shows if it is read: pages far outside of the cache, cosines and sines of NaN.
    """
    device = case.k_cache.device
    seqs = list(range(len(starts))) if seqs is None else seqs
    positions_SR = torch.tensor(starts, device=device).unsqueeze(1) + torch.arange(num_rows, device=device)
    scales = None if case.scales_PG2B is None else case.scales_PG2B.clone()
    cache = LayerCache(case.k_cache.clone(), case.v_cache.clone(), scales)
    index = torch.tensor(seqs, device=device).unsqueeze(1)
    limits = Limits(num_multiprocessors, shared_limit)
    workspace = attend_workspace(device, limits)
    live_SR = torch.ones_like(positions_SR, dtype=torch.bool) if live_SR is None else live_SR
    table_SP = F.pad(case.table_SP[seqs], (2, 0), value=2**31 - 1)[:, 2:]
    rows = Rows(positions_SR, live_SR, table_SP, max_length or case.max_pages * PAGE)
    if not case.window:
        in_fp8 = case.scales_PG2B is not None
        rows = rows._replace(plan=plan(rows, case.group * case.num_kv, case.num_kv, limits, in_fp8=in_fp8))
    # Kernels that start after their predecessor's end stand between the plan and `attend`.
    out = torch.full((len(starts) * num_rows, case.group * case.num_kv * DIM), torch.nan, device=device).bfloat16()
    attend(
        Product(
            case.partials_SLN[:, index, positions_SR].flatten(1, 2).contiguous(),
            None
            if case.square_sums_SLP is None
            else case.square_sums_SLP[index, positions_SR].flatten(0, 1).contiguous(),
            HIDDEN,
        ),
        rows,
        cache,
        RopeTable(*(F.pad(table, (0, 0, 32, 0), value=torch.nan)[32:] for table in case.rope)),
        eps=EPS,
        bias_N=case.bias_N,
        sinks_Q=case.sinks_Q,
        window=case.window,
        first_key=case.first_key,
        workspace=workspace,
        out=out,
    )
    assert (workspace.piece_states == -1).all()
    return out.view(len(starts), num_rows, -1, DIM), cache


SHAPES = {
    "full": {},
    "window": {"window": 128},
    "head": {"plain": True, "first_key": 1},
    "demo": {"group": 4},
}

"""Decode attention against its plain twins, its cache writes, and its promise: bits do not depend on the launch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from tests.kernels.cuda.emulator import emulated
from torch import Tensor

from eyas.kernels.cuda import attend as module
from eyas.kernels.cuda.attend import attend, attend_workspace
from eyas.kernels.layouts.device import Limits
from eyas.kernels.reference.attend import attend_ref
from eyas.kernels.reference.ops import LayerCache, Product, RopeTable, Rows
from eyas.kernels.reference.rope_write import rotate

PAGE, DIM, NUM_SLICES, HIDDEN = 16, 64, 3, 96
EPS = 1e-5


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
    shape = (num_pages, PAGE, num_kv, DIM)
    k_cache, v_cache = (torch.full(shape, torch.nan, dtype=torch.bfloat16, device=device) for _ in range(2))
    for seq, length in enumerate(lengths):
        at = torch.arange(first_key, length, device=device)
        slots = table_SP[seq, at // PAGE] * PAGE + at % PAGE
        k_cache.view(-1, num_kv, DIM)[slots] = (2 * randn(len(at), num_kv, DIM)).bfloat16()
        v_cache.view(-1, num_kv, DIM)[slots] = randn(len(at), num_kv, DIM).bfloat16()
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


def run(
    case: Case,
    starts: list[int],
    num_rows: int,
    *,
    seqs: list[int] | None = None,
    live_SR: Tensor | None = None,
    max_length: int | None = None,
    num_multiprocessors: int = 5,
    shared_limit: int = 227 * 1024,
    heads: tuple[tuple[int, int], ...] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows `starts[i] ..` of sequence `seqs[i]`: the output [S, R, Q, D] and the caches after it.

    In front of the tables stands what shows if it is read: pages far outside of the cache, cosines and sines of NaN.
    `heads`: what the workspace is made for, the case's own by default.
    """
    device = case.k_cache.device
    seqs = list(range(len(starts))) if seqs is None else seqs
    positions_SR = torch.tensor(starts, device=device).unsqueeze(1) + torch.arange(num_rows, device=device)
    k_cache, v_cache = case.k_cache.clone(), case.v_cache.clone()
    index = torch.tensor(seqs, device=device).unsqueeze(1)
    workspace = attend_workspace(
        len(starts),
        num_rows,
        heads or ((case.group * case.num_kv, case.num_kv),),
        device,
        Limits(num_multiprocessors, shared_limit),
    )
    out = torch.full((len(starts) * num_rows, case.group * case.num_kv * DIM), torch.nan, device=device).bfloat16()
    attend(
        Product(
            case.partials_SLN[:, index, positions_SR].flatten(1, 2).contiguous(),
            None
            if case.square_sums_SLP is None
            else case.square_sums_SLP[index, positions_SR].flatten(0, 1).contiguous(),
            HIDDEN,
        ),
        Rows(
            positions_SR,
            torch.ones_like(positions_SR, dtype=torch.bool) if live_SR is None else live_SR,
            F.pad(case.table_SP[seqs], (2, 0), value=2**31 - 1)[:, 2:],
            max_length or case.max_pages * PAGE,
        ),
        LayerCache(k_cache, v_cache),
        RopeTable(*(F.pad(table, (0, 0, 32, 0), value=torch.nan)[32:] for table in case.rope)),
        eps=EPS,
        bias_N=case.bias_N,
        sinks_Q=case.sinks_Q,
        window=case.window,
        first_key=case.first_key,
        workspace=workspace,
        out=out,
    )
    assert not workspace.tickets.any()
    return out.view(len(starts), num_rows, -1, DIM), k_cache, v_cache


def expected(case: Case, starts: list[int], num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """The plain twins in fp32 on the same caches."""
    device = case.k_cache.device
    positions_SR = torch.tensor(starts, device=device).unsqueeze(1) + torch.arange(num_rows, device=device)
    index = torch.arange(len(starts), device=device).unsqueeze(1)
    product = case.partials_SLN[:, index, positions_SR].sum(0)
    if case.square_sums_SLP is not None:
        product = product * (case.square_sums_SLP[index, positions_SR].sum(-1, keepdim=True) / HIDDEN + EPS).rsqrt()
    if case.bias_N is not None:
        product = product + case.bias_N
    heads = product.unflatten(-1, (-1, DIM))
    num_heads = case.group * case.num_kv
    rotated = rotate(heads[:, :, : num_heads + case.num_kv], case.rope.cos[positions_SR], case.rope.sin[positions_SR])
    keys, values = rotated[:, :, num_heads:].bfloat16(), heads[:, :, num_heads + case.num_kv :].bfloat16()
    finite = values.isfinite().all(-1, keepdim=True)
    k_cache, v_cache = case.k_cache.clone(), case.v_cache.clone()
    slots = case.table_SP.gather(1, positions_SR // PAGE) * PAGE + positions_SR % PAGE
    k_cache.view(-1, case.num_kv, DIM)[slots] = torch.where(finite, keys, torch.nan)
    v_cache.view(-1, case.num_kv, DIM)[slots] = torch.where(finite, values, 0.0)
    out = attend_ref(
        rotated[:, :, :num_heads],
        k_cache_PBGD=k_cache,
        v_cache_PBGD=v_cache.nan_to_num(),
        table_SP=case.table_SP,
        positions_SR=positions_SR,
        sinks_Q=case.sinks_Q,
        window=case.window,
        max_length=case.max_pages * PAGE,
        tile=None,
        first_key=case.first_key,
    )
    return out, k_cache, v_cache


def check(case: Case, starts: list[int], num_rows: int, **limits: int) -> None:
    out, k_cache, v_cache = run(case, starts, num_rows, **limits)
    right, right_k, right_v = expected(case, starts, num_rows)
    assert torch.linalg.vector_norm(out - right) / torch.linalg.vector_norm(right) < 6e-3
    torch.testing.assert_close(k_cache, right_k, rtol=1e-2, atol=1e-2, equal_nan=True)
    torch.testing.assert_close(v_cache, right_v, rtol=1e-2, atol=1e-2, equal_nan=True)


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    torch.manual_seed(0)
    if request.param == "emulated":
        monkeypatch.setattr(module, "load", emulated)
        return torch.device("cpu")
    return torch.device("cuda")


SHAPES = {
    "full": {},
    "window": {"window": 128},
    "head": {"plain": True, "first_key": 1},
    "demo": {"group": 4},
}


def each_shape_with_each(*numbers: int) -> pytest.MarkDecorator:
    """Shapes and numbers of rows; the default run has each shape once, with one of the numbers."""
    few = {(shape, numbers[i % len(numbers)]) for i, shape in enumerate(SHAPES)}
    pairs = [(shape, number) for shape in SHAPES for number in numbers]
    cases = [pair if pair in few else pytest.param(*pair, marks=pytest.mark.slow) for pair in pairs]
    return pytest.mark.parametrize(("shape", "num_rows"), cases)


@each_shape_with_each(1, 4, 8)
def test_agrees_with_the_twins(device: torch.device, shape: str, num_rows: int):
    starts = [1, 130, 700] if shape == "head" else [0, 130, 700]
    check(make_case(device, starts, **SHAPES[shape]), starts, num_rows)


@pytest.mark.parametrize("shape", SHAPES)
def test_bits_do_not_depend_on_the_launch(device: torch.device, shape: str):
    """Rows at 509 .. 516, alone and in company: other row counts, sequences, splits and bounds, around a leaf's end."""
    case = make_case(device, [509, 20, 1100], **SHAPES[shape])
    whole, k_cache, v_cache = run(case, [509], 8, num_multiprocessors=1)
    alone = replace(case, k_cache=k_cache, v_cache=v_cache)
    assert whole.isfinite().all()
    for row in range(8):
        out, _, _ = run(alone, [509 + row], 1, max_length=516 + 500 * row)
        assert torch.equal(out[0, 0], whole[0, row])
    for num_rows in (2, 3, 5):
        out, k_again, v_again = run(case, [1100, 509, 20], num_rows, seqs=[2, 0, 1], num_multiprocessors=3)
        assert torch.equal(out[1], whole[0, :num_rows])
        written = case.table_SP[0, 509 // PAGE], slice(509 % PAGE, 509 % PAGE + min(num_rows, 3))
        assert torch.equal(k_again[written], k_cache[written])
        assert torch.equal(v_again[written], v_cache[written])


def test_more_pieces_than_are_joined_at_once(device: torch.device):
    """17 leaves: as a piece each, and in fewer pieces for the same bits."""
    case = make_case(device, [8200], group=4, num_kv=1)
    check(case, [8200], 2, num_multiprocessors=20)
    whole, _, _ = run(case, [8200], 2, num_multiprocessors=20)
    for num_multiprocessors in (1, 3, 5):
        again, _, _ = run(case, [8200], 2, num_multiprocessors=num_multiprocessors)
        assert torch.equal(again, whole)


@pytest.mark.parametrize("shape", [pytest.param("full", marks=pytest.mark.slow), "window"])
def test_with_little_shared_memory(device: torch.device, shape: str):
    """Half as many warps: other bits, but the same promise."""
    case = make_case(device, [253, 20, 600], **SHAPES[shape])
    check(case, [253, 20, 600], 4, shared_limit=99 * 1024)
    whole, _, _ = run(case, [253, 20, 600], 8, shared_limit=99 * 1024)
    short, _, _ = run(case, [253], 3, shared_limit=99 * 1024)
    assert torch.equal(whole[:1, :3], short)


def test_dead_rows_write_nothing_and_give_zeros(device: torch.device):
    case = make_case(device, [40, 300, 7])
    live_SR = torch.tensor([[True, True, False], [True] * 3, [False] * 3], device=device)
    out, k_cache, v_cache = run(case, [40, 300, 7], 3, live_SR=live_SR)
    whole, _, _ = run(case, [40, 300, 7], 3)
    assert torch.equal(out[live_SR], whole[live_SR])
    assert not out[~live_SR].any()
    for cache, before in ((k_cache, case.k_cache), (v_cache, case.v_cache)):
        assert cache.isnan().sum() == before.isnan().sum() - 5 * case.num_kv * DIM


@pytest.mark.parametrize("shared_limit", [227 * 1024, pytest.param(99 * 1024, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("num_rows", "starts"), [(8, [-5, 300, -8]), (32, [-30, 90, -32])])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_before_the_start_are_dead_and_change_nothing(
    device: torch.device, shape: str, num_rows: int, starts: list[int], shared_limit: int
):
    """A sequence shorter than the rows of the launch, beside a longer one and one of which nothing is there."""
    first_key = SHAPES[shape].get("first_key", 0)
    case = make_case(device, [first_key, 300, first_key], ahead=32, **SHAPES[shape])
    positions_SR = torch.tensor(starts, device=device).unsqueeze(1) + torch.arange(num_rows, device=device)
    live_SR = positions_SR >= first_key
    out, k_cache, v_cache = run(case, starts, num_rows, live_SR=live_SR, shared_limit=shared_limit)
    assert not out[~live_SR].any()
    num_live = starts[0] + num_rows - first_key
    short, right_k, right_v = run(case, [first_key], num_live, shared_limit=shared_limit)
    rest = replace(case, k_cache=right_k, v_cache=right_v)
    long, right_k, right_v = run(rest, [starts[1]], num_rows, seqs=[1], shared_limit=shared_limit)
    assert torch.equal(out[0, -num_live:], short[0]) and torch.equal(out[1], long[0])
    assert torch.equal(k_cache.nan_to_num(-9.0), right_k.nan_to_num(-9.0))
    assert torch.equal(v_cache.nan_to_num(-9.0), right_v.nan_to_num(-9.0))
    assert k_cache.isnan().sum() < case.k_cache.isnan().sum()


def test_a_value_that_is_not_finite_poisons_those_who_see_it(device: torch.device):
    case = make_case(device, [250])
    feature = (case.group + 1) * case.num_kv * DIM + 5  # value of head 0
    case.partials_SLN[1, 0, 252, feature] = torch.inf
    out, k_cache, v_cache = run(case, [250], 4)
    right, right_k, _ = expected(case, [250], 4)
    assert torch.equal(out.isnan(), right.isnan())
    assert out[0, 2:, : case.group].isnan().all()
    assert torch.equal(k_cache.isnan(), right_k.isnan())
    later, _, _ = run(replace(case, k_cache=k_cache, v_cache=v_cache), [254], 1)
    assert later[0, 0, : case.group].isnan().all()
    assert later[0, 0, case.group :].isfinite().all()


def test_many_rows_of_a_sequence(device: torch.device):
    """The draft head catches up with up to 32 rows, some of them dead at the end."""
    case = make_case(device, [1, 500], ahead=32, **SHAPES["head"])
    check(case, [1, 500], 32)
    whole, _, _ = run(case, [1, 500], 32)
    short, _, _ = run(case, [1, 500], 7)
    assert torch.equal(whole[:, :7], short)


def test_what_the_kernel_lacks_is_an_error(device: torch.device):
    case = make_case(device, [4], group=2)
    with pytest.raises(ValueError, match="4 or 8 query heads"):
        run(case, [4], 1)


def test_a_workspace_made_for_less_is_an_error(device: torch.device):
    """As a draft head with more key/value heads than its target; told of both, it has room for both."""
    starts = [40, 7, 20, 100]
    case = make_case(device, starts, group=4, num_kv=4)
    with pytest.raises(ValueError, match="made for smaller launches"):
        run(case, starts, 5, num_multiprocessors=1, heads=((8, 1),))
    ours, _, _ = run(case, starts, 5, num_multiprocessors=1, heads=((8, 1), (16, 4)))
    assert torch.equal(ours, run(case, starts, 5)[0])


@pytest.mark.parametrize("num_rows", [1, 4, 5, 9, 32])
@pytest.mark.parametrize("group", [4, 8])
def test_there_is_room_for_every_launch(group: int, num_rows: int):
    """The cut of attend_plan.cuh, done here, never has more pieces than the bound."""
    num_kv = 2
    row_blocks = -(-num_rows * group // 16)
    tiles = min(2, row_blocks)
    for grid in (1, 3, 8, 50):
        for leaves in ([1], [1] * 9, [7, 1], [100, 3, 1], [40, 41, 5, 17]):
            pairs = row_blocks * num_kv
            if sum(leaves) * pairs > grid:
                pairs = -(-num_rows // (16 * tiles // group)) * num_kv
            shift = 0
            while sum(leaves) * pairs >> shift > grid and max(leaves) - 1 >> shift:
                shift += 1
            units = sum(-(-count // (1 << shift)) for count in leaves)
            bound = module._most_pieces(grid, len(leaves), num_kv, row_blocks)
            assert max(units, len(leaves)) * pairs <= bound

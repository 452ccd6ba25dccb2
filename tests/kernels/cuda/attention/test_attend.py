"""Decode attention against its plain twins, its cache writes, and its promise: bits do not depend on the launch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.kernels.cuda.emulator import emulated
from tests.kernels.support import attention
from tests.kernels.support.attention import DIM, EPS, HIDDEN, PAGE, SHAPES, Case, device_of, launch, make_case
from torch import Tensor

from eyas.kernels.cuda.attention import attend, attend_plan
from eyas.kernels.cuda.attention.attend_plan import Launch, most_pieces, plan
from eyas.kernels.layouts.device import Limits
from eyas.kernels.reference.layers.attend import attend_ref
from eyas.kernels.reference.layers.ops import Rows
from eyas.kernels.reference.layers.rope_write import rotate


def run(case: Case, starts: list[int], num_rows: int, **options: object) -> tuple[Tensor, Tensor, Tensor]:
    """A launch: its output, keys and values."""
    out, cache = launch(case, starts, num_rows, **options)
    return out, cache.k, cache.v


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
    pages, offsets = case.table_SP.gather(1, positions_SR // PAGE), positions_SR % PAGE
    k_cache[pages, :, offsets] = torch.where(finite, keys, torch.nan)
    v_cache[pages, :, offsets] = torch.where(finite, values, 0.0)
    out = attend_ref(
        rotated[:, :, :num_heads],
        k_cache_PGBD=k_cache,
        v_cache_PGBD=v_cache.nan_to_num(),
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
    return device_of(request.param, monkeypatch)


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


@pytest.mark.parametrize(
    "shape", [name if name in ("window", "head") else pytest.param(name, marks=pytest.mark.slow) for name in SHAPES]
)
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
        written = case.table_SP[0, 509 // PAGE], slice(None), slice(509 % PAGE, 509 % PAGE + min(num_rows, 3))
        assert torch.equal(k_again[written], k_cache[written])
        assert torch.equal(v_again[written], v_cache[written])


def test_more_pieces_than_are_joined_at_once(device: torch.device):
    """33 leaves: as a piece each, which eight blocks join, and in fewer pieces for the same bits."""
    case = make_case(device, [16_400], group=4, num_kv=1)
    check(case, [16_400], 2, num_multiprocessors=40)
    whole, _, _ = run(case, [16_400], 2, num_multiprocessors=40)
    for num_multiprocessors in (1, 3, 9):
        again, _, _ = run(case, [16_400], 2, num_multiprocessors=num_multiprocessors)
        assert torch.equal(again, whole)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_pieces_are_joined_in_whatever_order_they_come(monkeypatch: pytest.MonkeyPatch, seed: int):
    """Two sequences of 3 and 2 leaves and two heads: a piece each, fewer, and some behind others in 3 blocks."""
    case = make_case(device_of("emulated", monkeypatch), [1100, 700], group=4, num_kv=2)
    whole, _, _ = run(case, [1100, 700], 3)
    for module in (attend, attend_plan):
        monkeypatch.setattr(module, "load", lambda *args: emulated(*args, seed=seed))
    for num_multiprocessors in (3, 9, 20):
        again, _, _ = run(case, [1100, 700], 3, num_multiprocessors=num_multiprocessors)
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


def test_a_missing_or_foreign_plan_is_an_error(device: torch.device):
    """A plan belongs to numbers of sequences, rows and heads, and to a device."""
    case, other = make_case(device, [4]), make_case(device, [4], num_kv=4)
    planned = []

    def foreign(rows: Rows, *_: object, **__: object) -> attend_plan.Plan | None:
        return planned[0] if planned else None

    for cases in ([], [other]):
        with pytest.MonkeyPatch.context() as patch:
            planned = [plan_of(each) for each in cases]
            patch.setattr(attention, "plan", foreign)
            with pytest.raises(ValueError, match="has prepared for these heads"):
                run(case, [4], 1)


def plan_of(case: Case) -> attend_plan.Plan:
    positions_SR = torch.full((1, 1), 4, device=case.k_cache.device)
    rows = Rows(positions_SR, positions_SR > 0, case.table_SP, case.max_pages * PAGE)
    return plan(rows, case.group * case.num_kv, case.num_kv, Limits(5, 227 * 1024))


def cut(device: torch.device, last: list[int], num_rows: int, num_kv: int, limits: Limits) -> tuple[Launch, list]:
    """How a pass over sequences that end at positions `last` (-1: dead) is cut; and what each block has to do: the
    leaves of its pieces, in order.
    """
    last_S1 = torch.tensor(last, device=device).unsqueeze(1)
    rows = Rows(
        torch.where(last_S1 < 0, 7, last_S1) - num_rows + 1 + torch.arange(num_rows, device=device),
        (last_S1 >= 0).expand(-1, num_rows).contiguous(),
        last_S1,
        max(last) + 1,
    )
    found = plan(rows, 8 * num_kv, num_kv, limits)
    launch, ((num_units, shift, tiles, _), *units) = found.launch, found.units.tolist()
    pairs = launch.small_pairs if tiles == 1 else launch.large_pairs
    assert tiles in (1, launch.config.tiles)
    leaf = 64 * launch.config.warps
    covered: dict[int, list] = {}
    pieces, cut_pieces = [], 0
    for at, (seq, words, live, first) in enumerate(units[:num_units]):
        index, count = words & 0xFFFF, words >> 16
        leaves = max(0, last[seq]) // leaf + 1
        assert count == (leaves + (1 << shift) - 1) >> shift
        assert (first, live & 0xFFFFFFFF) == (
            int(rows.positions_SR[seq, 0]),
            (1 << num_rows) - 1 if last[seq] >= 0 else 0,
        )
        covered.setdefault(seq, []).append(at - index)
        pieces += [min(leaves - (index << shift), 1 << shift)] * pairs
        if count > 1:
            cut_pieces += pairs
            assert len(pieces) == cut_pieces  # they stand first
    assert sorted(covered) == list(range(len(last)))
    for starts in covered.values():
        assert len(set(starts)) == 1 and len(starts) == units[starts[0]][1] >> 16
    assert cut_pieces <= most_pieces(launch.grid)
    return launch, [pieces[block :: launch.grid] for block in range(launch.grid)]


LENGTHS = {
    "one": [40_000],
    "two": [100, 130_000],
    "equal": [1_000] * 32,
    "a few more than blocks": [3_000] * 17,
    "many": [1_000] * 257,
    "dead": [900, -1, 5, -1] * 64,
    "one long among many": [200_000] + [300] * 511,
    "mixed": [37 * i * i % 20_011 for i in range(512)],
}


@pytest.mark.parametrize("lengths", LENGTHS)
def test_work_is_cut_into_equal_shares(device: torch.device, lengths: str):
    """Every leaf once; no block has much more than its share, unless there are fewer leaves than blocks."""
    for num_rows, num_kv in ((1, 8), (4, 8), (32, 8), (3, 1)):
        launch, work = cut(device, LENGTHS[lengths], num_rows, num_kv, Limits(132, 227 * 1024))
        times = [sum(pieces) for pieces in work]
        assert max(times) <= 1.6 * max(1, sum(times) / launch.grid) + (max(times) if max(map(len, work)) == 1 else 0)


def check_many(device: torch.device, num_seqs: int, num_rows: int, num_multiprocessors: int, **shape: object) -> None:
    """Sequences of a large launch agree with the twins, and have the bits of launches of one or two sequences."""
    first = 1 if shape.get("first_key") else 0
    lengths = [first + 37 * i % 561 for i in range(num_seqs)]
    case = make_case(device, lengths, ahead=num_rows, **shape)
    check(case, lengths, num_rows, num_multiprocessors=num_multiprocessors)
    whole, k_cache, v_cache = run(case, lengths, num_rows, num_multiprocessors=num_multiprocessors)
    for seqs in ([0, 1], [num_seqs // 2], [num_seqs - 1]):
        few, k_few, v_few = run(case, [lengths[seq] for seq in seqs], num_rows, seqs=seqs)
        assert torch.equal(few, whole[seqs])
        pages = case.table_SP[seqs].flatten()
        assert torch.equal(k_few[pages].nan_to_num(-9.0), k_cache[pages].nan_to_num(-9.0))
        assert torch.equal(v_few[pages].nan_to_num(-9.0), v_cache[pages].nan_to_num(-9.0))


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_many_sequences_emulated(shape: str, monkeypatch: pytest.MonkeyPatch):
    device_of("emulated", monkeypatch)
    torch.manual_seed(0)
    check_many(torch.device("cpu"), 65, 2, 5, **SHAPES[shape] | {"num_kv": 1})


@pytest.mark.gpu
@pytest.mark.parametrize(("num_seqs", "num_rows"), [(65, 4), (128, 1), (257, 2), (512, 1), (512, 4), (512, 32)])
@pytest.mark.parametrize("shape", SHAPES)
def test_many_sequences(shape: str, num_seqs: int, num_rows: int):
    torch.manual_seed(0)
    check_many(torch.device("cuda"), num_seqs, num_rows, 132, **SHAPES[shape])


@pytest.mark.gpu
@pytest.mark.parametrize("num_multiprocessors", [8, 132])
def test_a_long_sequence_among_many(num_multiprocessors: int):
    """It is cut into pieces while the others stay whole."""
    torch.manual_seed(0)
    starts = [20_000, *(5 * i for i in range(64))]
    case = make_case(torch.device("cuda"), starts, group=4, num_kv=1)
    check(case, starts, 4, num_multiprocessors=num_multiprocessors)
    whole, _, _ = run(case, starts, 4, num_multiprocessors=num_multiprocessors)
    for seq in (0, 1, 64):
        assert torch.equal(run(case, [starts[seq]], 4, seqs=[seq])[0][0], whole[seq])

"""Dense products against fp64, in the emulator and on a GPU, and each row's bits in launches of any size."""

import functools

import pytest
import torch
import torch.nn.functional as F
from tests.kernels.cuda.emulator import emulated

from eyas.kernels.cuda.attention.attend_plan import MAX_ROWS, MAX_SEQS
from eyas.kernels.cuda.dense import linear as ops
from eyas.kernels.cuda.dense import linear_wgmma
from eyas.kernels.layouts import bits12
from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.kernels.layouts.device import Limits
from eyas.kernels.layouts.int8 import RoughMatrix
from eyas.kernels.reference.layers.norm import Normed, prepare_norm

EPS = 1e-5
SHAPES = [(48, 64), (176, 544), (32, 4640)]  # features, inputs: empty slices; uneven slices, many tiles; two shares
ROWS = [1, 8, 11, 19, 40, 70]


def each_shape_with_each(*numbers):
    """Shapes and numbers of rows; the default run has one pair, since each is a build of g++."""
    pairs = [(shape, number) for shape in SHAPES for number in numbers]
    cases = [pair if pair == (SHAPES[1], numbers[1]) else pytest.param(*pair, marks=pytest.mark.slow) for pair in pairs]
    return pytest.mark.parametrize(("shape", "num_rows"), cases)


GPU = pytest.mark.gpu


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=GPU)])
def device(request, monkeypatch):
    """Where rows are multiplied; more than 16 as on a GPU without wgmma, unless the parameter says otherwise."""
    kind, _, by_wgmma = request.param.partition(" ")
    if kind == "cuda":
        if not by_wgmma:
            limits_of = ops.device_limits
            monkeypatch.setattr(ops, "device_limits", lambda device: limits_of(device)._replace(has_wgmma=False))
        return kind
    limits = Limits(2, (227 if by_wgmma else 99) << 10, has_wgmma=bool(by_wgmma))
    monkeypatch.setattr(ops, "load", emulated)
    monkeypatch.setattr(ops, "device_limits", lambda device: limits)
    # so that the emulator's small shapes go every way: many rows, K divided or not, several groups of tiles
    monkeypatch.setattr(ops, "FEW_TILES", 1)
    monkeypatch.setattr(ops, "MANY_TILES", 8)
    monkeypatch.setattr(ops, "TILES_OF_BLOCK", (2, 4))
    monkeypatch.setattr(linear_wgmma, "MAX_TILES", 5)
    linear_wgmma.plan.cache_clear()
    return "cpu"


either_kernel = pytest.mark.parametrize(
    "device",
    ["emulated", "emulated wgmma", pytest.param("cuda", marks=GPU), pytest.param("cuda wgmma", marks=GPU)],
    indirect=True,
)


def normal(*shape, device, scale=1.0):
    return torch.randn(shape, device=device) * scale


def close(ours, expected, tolerance=1e-5):
    assert ours.isfinite().all()
    assert (ours.double() - expected).norm() <= tolerance * expected.norm()


def product(rows, weight):
    return rows.double() @ weight.double().T


@either_kernel
@each_shape_with_each(3, 9, 20)
def test_project(device, shape, num_rows):
    weight = normal(*shape, device=device).bfloat16()
    rows = normal(num_rows, shape[1], device=device).bfloat16()
    out = ops.project(rows, BlockedMatrix.pack(weight))
    assert out.shape[1:] == (num_rows, shape[0])
    close(out.sum(0), product(rows, weight))


@either_kernel
@each_shape_with_each(5, 20)
def test_add_prepares_the_next_norm(device, shape, num_rows):
    weight = normal(*shape, device=device).bfloat16()
    rows = normal(num_rows, shape[1], device=device).bfloat16()
    bias, norm = normal(shape[0], device=device), normal(shape[0], device=device)
    residual = normal(num_rows, shape[0], device=device, scale=30)
    workspace = ops.Workspace(device)
    out, normed = ops.add(rows, BlockedMatrix.pack(weight), bias, residual, norm, workspace)
    close(out, product(rows, weight) + bias.double() + residual.double())
    assert torch.equal(normed.rows_TH, (out * norm).bfloat16())
    parts = out.double().square().unflatten(1, (-1, 16)).sum(-1)
    close(normed.square_sums_TP, parts)
    assert not workspace.tickets.any()


def test_the_longest_first_pass_of_a_head_in_8_bits_has_tickets(monkeypatch):
    """512 sequences of 32 rows at a start, and the widest model that has kernels; launches themselves are left out."""
    grids = []

    class Skipped:
        def kernel(self, name):
            return self

        def launch(self, grid, *args, **kwargs):
            grids.append(grid)

    monkeypatch.setattr(ops, "load", lambda source, defines: Skipped())
    monkeypatch.setattr(ops, "device_limits", lambda device: Limits(132, 227 << 10))
    shape = ops.MAX_OWN_INPUTS, 2 * ops.MAX_OWN_INPUTS
    data = torch.empty(shape[0] // 16, shape[1] // 32, 16, 32, dtype=torch.float8_e4m3fn)
    rows = torch.empty(MAX_SEQS * MAX_ROWS, shape[1], dtype=torch.bfloat16)
    ops.linear(rows, BlockedMatrix(data, factors_N=torch.ones(shape[0])), ops.Workspace("cpu"))
    assert grids == [(132, 1024)]


@either_kernel
@pytest.mark.parametrize("num_rows", [pytest.param(2, marks=pytest.mark.slow), 20])
def test_logits_divide_by_the_norm(device, num_rows):
    weight, bias = normal(48, 544, device=device).bfloat16(), normal(48, device=device)
    hidden, norm = normal(num_rows, 544, device=device, scale=5), normal(544, device=device)
    sums = hidden.square().unflatten(1, (-1, 16)).sum(-1)
    normed = Normed(prepare_norm(hidden, norm, torch.bfloat16).rows_TH, sums)
    packed = BlockedMatrix.pack(weight)
    scale = torch.rsqrt(hidden.double().square().mean(-1, keepdim=True) + EPS)
    expected = product(normed.rows_TH, weight) * scale
    close(ops.logits(normed, packed, EPS), expected)
    close(ops.router(normed, packed, bias, EPS), expected + bias.double())


@either_kernel
@pytest.mark.parametrize("num_rows", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_gated(device, num_rows):
    weight = normal(96, 64, device=device, scale=0.2).bfloat16()
    normed = Normed(normal(num_rows, 64, device=device).bfloat16(), torch.full((num_rows, 4), 16.0, device=device))
    gate, up = (product(normed.rows_TH, weight) * (1 + EPS) ** -0.5).chunk(2, dim=-1)
    out = ops.gated(normed, BlockedMatrix.pack(weight, gated=True), EPS)
    close(out, F.silu(gate) * up, tolerance=3e-3)


def test_linear_takes_a_view_of_rows_and_either_type(device):
    weight = normal(32, 4640, device=device).bfloat16()
    wide, residual = normal(3, 5000, device=device).bfloat16(), normal(3, 32, device=device)
    rows, workspace = wide[:, 8:4648], ops.Workspace(device)
    out = ops.linear(rows, BlockedMatrix.pack(weight), workspace, residual_TN=residual, dtype=torch.float32)
    close(out, product(rows, weight) + residual.double())
    assert torch.equal(ops.linear(rows, BlockedMatrix.pack(weight), workspace, residual_TN=residual), out.bfloat16())


@either_kernel
@pytest.mark.parametrize(
    ("shape", "numbers"),
    [(SHAPES[0], [1, 11]), *((shape, ROWS) for shape in SHAPES)],
)
@pytest.mark.slow
def test_a_row_has_the_same_bits_in_every_launch(device, shape, numbers):
    packed = BlockedMatrix.pack(normal(*shape, device=device).bfloat16(), gated=True)
    plain = BlockedMatrix(packed.data)
    rows = normal(max(ROWS), shape[1], device=device).bfloat16()
    sums = normal(max(ROWS), 7, device=device).square() * shape[1]
    residual, norm = normal(max(ROWS), shape[0], device=device), normal(shape[0], device=device)
    workspace = ops.Workspace(device)

    def outputs(where):
        normed = Normed(rows[where], sums[where])
        total, after = ops.add(rows[where], plain, norm, residual[where], norm, workspace)
        single = (
            [] if ops.num_shares(shape[1]) > 1 else [ops.logits(normed, plain, EPS), ops.gated(normed, packed, EPS)]
        )
        return [functools.reduce(torch.add, ops.project(normed, plain)), total, *after, *single]

    expected = outputs(slice(None))
    for num_rows in numbers:
        for start in {0, max(ROWS) - num_rows}:
            where = slice(start, start + num_rows)
            for whole, part in zip(expected, outputs(where), strict=True):
                assert torch.equal(whole[where], part)


TRUE_SHAPES = {
    "qkv": (5120, 2880), "output": (2880, 4096), "head's qkv": (5120, 5760), "fc": (2880, 8640), "down": (2880, 17280),
    "gate and up": (34560, 2880), "draft vocabulary": (32000, 2880), "lm_head": (201088, 2880),
}  # fmt: skip


def every_output(shape, packed, device, num_rows):
    """A function from a range of rows to all that a layer or a head makes of such a matrix."""
    rows, workspace = normal(num_rows, shape[1], device=device).bfloat16(), ops.Workspace(device)
    sums = normal(num_rows, 7, device=device).square() * shape[1]
    norm, gated = normal(shape[0], device=device), BlockedMatrix(packed.data, gated=True)
    residual = None if shape[0] > 10_000 else normal(num_rows, shape[0], device=device)

    def outputs(where):
        normed = Normed(rows[where], sums[where])
        found = [functools.reduce(torch.add, ops.project(normed, packed))]
        if residual is not None:
            total, after = ops.add(rows[where], packed, norm, residual[where], norm, workspace)
            found += [total, *after, ops.linear(rows[where], packed, workspace, bias_N=norm)]
        if ops.num_shares(shape[1]) == 1:
            found += [ops.logits(normed, packed, EPS, norm), ops.gated(normed, gated, EPS)]
        return found

    return outputs


def has_the_bits_of_16_rows(shape, device, numbers, repeats=1):
    """Any number of rows by linear_wgmma.cu against launches of linear.cu; a copy that overtakes a read is rare."""
    packed = BlockedMatrix.pack(normal(*shape, device=device).bfloat16())
    outputs = every_output(shape, packed, device, max(numbers))
    parts = [outputs(slice(start, start + ops.FEW_ROWS)) for start in range(0, max(numbers), ops.FEW_ROWS)]
    expected = [torch.cat(part) for part in zip(*parts, strict=True)]
    for num_rows in [*numbers] * repeats:
        for ours, whole in zip(outputs(slice(num_rows)), expected, strict=True):
            assert torch.equal(ours, whole[:num_rows]), num_rows


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("shape", [(80, 2720), (176, 544)], ids=["parts", "whole"])
def test_emulated_wgmma_has_the_bits_of_16_rows(monkeypatch, seed, shape):
    """Whole and short stages; two chunks of rows; with a seed another order of threads."""
    monkeypatch.setattr(ops, "load", functools.partial(emulated, seed=seed))
    monkeypatch.setattr(ops, "device_limits", lambda device: Limits(3, 227 << 10, has_wgmma=True))
    monkeypatch.setattr(ops, "FEW_TILES", 1)
    monkeypatch.setattr(ops, "MANY_TILES", 8)
    monkeypatch.setattr(linear_wgmma, "MAX_TILES", 5)
    monkeypatch.setattr(linear_wgmma, "MAX_STAGES", 3)
    linear_wgmma.plan.cache_clear()
    has_the_bits_of_16_rows(shape, "cpu", [33] if seed else [17, 140])


@pytest.mark.gpu
@pytest.mark.parametrize("shape", TRUE_SHAPES.values(), ids=TRUE_SHAPES)
def test_wgmma_has_the_bits_of_16_rows_at_true_shapes(shape):
    has_the_bits_of_16_rows(shape, "cuda", [17, 32, 33, 64, 65, 100, 128, 129, 200, 256, 512], repeats=10)


def wide_weights(*shape, device):
    """Rows of all scales; one tile in which three weights are far below the others, one with four."""
    weight = normal(*shape, device=device)
    weight = torch.where(weight.abs() < 0.01, 0.5, weight) * normal(shape[0], 1, device=device, scale=2).exp()
    for row, column in [(0, 0), (7, 31), (14, 9), (16, 1), (21, 2), (21, 3), (30, 4)]:
        weight[row, column] = -1e-9 if row < 16 else 0.0
    return weight.bfloat16()


@pytest.mark.parametrize(
    ("shape", "num_rows"),
    [(SHAPES[0], 2), *((shape, n) for shape in SHAPES for n in (1, 11, 20))],
)
@pytest.mark.slow
def test_12_bits_give_the_bits_of_the_plain_matrix(device, monkeypatch, shape, num_rows):
    monkeypatch.setattr(bits12, "MAX_PLAIN_SHARE", 1.0)
    weight, rows = wide_weights(*shape, device=device), normal(num_rows, shape[1], device=device).bfloat16()
    normed = Normed(rows, normal(num_rows, 7, device=device).square() * shape[1])
    residual, norm = normal(num_rows, shape[0], device=device), normal(shape[0], device=device)
    workspace = ops.Workspace(device)

    def outputs(matrix, gated):
        total, after = ops.add(rows, matrix, norm, residual, norm, workspace)
        several = [ops.project(normed, matrix), total, *after, ops.linear(rows, matrix, workspace, bias_N=norm)]
        if ops.num_shares(shape[1]) == 1:
            several += [ops.router(normed, matrix, norm, EPS), ops.gated(normed, gated, EPS)]
        return several

    matrices = [BlockedMatrix.pack(weight, gated=gated) for gated in (False, True)]
    copies = [matrix.with_12_bits() for matrix in matrices]
    marked, plain = copies[0].tiles12[:2, 0, 768:776].view(torch.int16).unbind(0)
    assert marked.count_nonzero() == 4 and marked[0] & 0x80 == 0 and plain[0] & 0x80
    for ours, expected in zip(outputs(*copies), outputs(*matrices), strict=True):
        assert ours.isfinite().all() and torch.equal(ours, expected)
    if num_rows <= ops.FEW_ROWS:  # it is the copy that they read
        copies[0].tiles12[:, :, :512] ^= 1
        assert not torch.equal(ops.project(rows, copies[0]), ops.project(rows, matrices[0]))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(5120, 2880), (2880, 4096)], ids=["qkv", "output"])
@pytest.mark.parametrize("weights", [normal, wide_weights], ids=["normal", "wide"])
def test_12_bits_at_the_shapes_of_the_120b(shape, weights):
    """Every number of rows, again and again: copies are refilled while others are read."""
    device = "cuda"
    matrix = BlockedMatrix.pack(weights(*shape, device=device).bfloat16())
    copied = matrix.with_12_bits()
    assert copied.tiles12 is not None
    norm, workspace = normal(shape[0], device=device), ops.Workspace(device)
    for num_rows in range(1, ops.FEW_ROWS + 2):
        rows = normal(num_rows, shape[1], device=device).bfloat16()
        residual = normal(num_rows, shape[0], device=device)
        expected = ops.project(rows, matrix)
        total, after = ops.add(rows, matrix, norm, residual, norm, workspace)
        for _ in range(50):
            assert torch.equal(ops.project(rows, copied), expected)
            again, then = ops.add(rows, copied, norm, residual, norm, workspace)
            assert torch.equal(again, total) and all(map(torch.equal, then, after))


@pytest.mark.slow
@each_shape_with_each(2, 11, 20)
def test_8_bits_give_the_bits_of_their_numbers_in_bf16(device, shape, num_rows):
    weight = normal(*shape, device=device) * torch.logspace(-6, 2, shape[0], device=device).unsqueeze(1)
    weight[:, ::7] *= 1e-4  # subnormals
    weight[3] = 0
    rows = normal(num_rows, shape[1], device=device).bfloat16()
    normed = Normed(rows, normal(num_rows, 7, device=device).square() * shape[1])
    residual, norm = normal(num_rows, shape[0], device=device), normal(shape[0], device=device)
    workspace = ops.Workspace(device)

    def outputs(plain, gated):
        total, after = ops.add(rows, plain, norm, residual, norm, workspace)
        single = (
            [ops.logits(normed, plain, EPS), ops.gated(normed, gated, EPS)] if ops.num_shares(shape[1]) == 1 else []
        )
        return [functools.reduce(torch.add, ops.project(rows, plain)), total, *after, *single]

    rounded = [BlockedMatrix.pack(weight, gated=gated).in_fp8() for gated in (False, True)]
    assert not torch.equal(rounded[0].plain(), weight.bfloat16())
    for ours, expected in zip(outputs(*rounded), outputs(*(matrix.in_bf16() for matrix in rounded)), strict=True):
        assert torch.equal(ours, expected)


SCREENED = [(176, 544), (96, 288)]  # uneven slices; some of them empty
PASS_OVER = [(0, 0), (1, 0), (0, 3)]


def normed_of(rows, device):
    return Normed(rows, normal(len(rows), 7, device=device).square() * rows.shape[1])


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", [3, 11])
def test_whole_numbers_in_a_rough_copy_give_the_bits_of_bf16(device, num_rows):
    """And powers of two of them, which differ by block."""
    weight = torch.randint(-127, 128, (48, 288), device=device).float().unflatten(1, (-1, 32))
    weight[..., 7] = 127
    weight *= 2.0 ** torch.randint(-14, 1, (48, 9, 1), device=device)
    weight[:, 4] = weight[:, 4] * 0 + 127  # the largest
    weight = weight.flatten(1).bfloat16()
    normed, packed = normed_of(normal(num_rows, 288, device=device).bfloat16(), device), BlockedMatrix.pack(weight)
    wanted = torch.zeros(2, dtype=torch.int32, device=device)
    ours = ops.logits(normed, RoughMatrix.of(packed).matrix, EPS, wanted=wanted)
    assert torch.equal(ours, ops.logits(normed, packed, EPS))


@pytest.mark.parametrize("shape", SCREENED[:1])
def test_a_rough_product_is_near_or_left_out(device, shape):
    weight = normal(*shape, device=device) * normal(*shape, device=device).exp()
    rough = RoughMatrix.of(BlockedMatrix.pack(weight.bfloat16()))
    normed = normed_of(normal(5, shape[1], device=device).bfloat16(), device)
    scale = torch.rsqrt(normed.square_sums_TP.double().sum(1, keepdim=True) / shape[1] + EPS)
    for pair in PASS_OVER:
        out = torch.full((5, shape[0]), 7.0, device=device)
        ops.logits(normed, rough.matrix, EPS, out=out, wanted=torch.tensor(pair, dtype=torch.int32, device=device))
        if any(pair):
            assert (out == 7).all()
        else:
            close(out, (normed.rows_TH.double() @ rough.plain().to(device).T) * scale)


def test_rows_of_any_size_keep_their_numbers_in_f16(device):
    """Each row beside others that are much larger or smaller; one that is not finite spoils itself alone."""
    weight = normal(48, 288, device=device).bfloat16()
    rough, rows = RoughMatrix.of(BlockedMatrix.pack(weight)), normal(5, 288, device=device)
    sizes = torch.tensor([2.0**-120, 2.0**-20, 1.0, 2.0**60, 1.0], device=device)
    rows = (rows * sizes.unsqueeze(1)).bfloat16()
    rows[4, 100] = float("inf")
    normed = Normed(rows, torch.ones(5, 1, device=device) * 288)
    out = ops.logits(normed, rough.matrix, EPS, wanted=torch.zeros(2, dtype=torch.int32, device=device))
    for row in range(4):
        close(out[row], rows[row].double() @ rough.plain().to(device).T * (1 + EPS) ** -0.5)
    assert not out[4].isfinite().any()


@pytest.mark.parametrize(
    ("shape", "num_rows"), [(SCREENED[0], 3), pytest.param(SCREENED[1], 11, marks=pytest.mark.slow)]
)
def test_listed_tiles_have_the_bits_of_all(device, shape, num_rows):
    """In any order, each once; the number of all tiles alone stands for all in order."""
    packed = BlockedMatrix.pack(normal(*shape, device=device).bfloat16())
    normed = normed_of(normal(num_rows, shape[1], device=device).bfloat16(), device)
    expected, num_tiles = ops.logits(normed, packed, EPS), shape[0] // 16
    for tiles in ([], [3], [num_tiles - 1, 0, 2], list(range(num_tiles - 1)), None):
        numbers = [num_tiles] if tiles is None else [len(tiles), *tiles]
        wanted = torch.full((1 + num_tiles,), -1, dtype=torch.int32, device=device)
        wanted[: len(numbers)] = torch.tensor(numbers, dtype=torch.int32)
        out = torch.full_like(expected, 7.0)
        ops.logits(normed, packed, EPS, out=out, wanted=wanted)
        is_listed = torch.zeros(num_tiles, dtype=torch.bool, device=device)
        is_listed[slice(None) if tiles is None else torch.tensor(tiles, dtype=torch.long)] = True
        assert torch.equal(out, torch.where(is_listed.repeat_interleave(16), expected, 7.0))

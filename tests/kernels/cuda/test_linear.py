"""Dense products against fp64, in the emulator and on a GPU, and each row's bits in launches of any size."""

import functools

import pytest
import torch
import torch.nn.functional as F
from tests.kernels.cuda.emulator import emulated

from eyas.kernels.cuda import linear as ops
from eyas.kernels.cuda.attend import MAX_ROWS, MAX_SEQS
from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.kernels.layouts.device import Limits
from eyas.kernels.reference.norm import Normed, prepare_norm

EPS = 1e-5
SHAPES = [(48, 64), (176, 544), (32, 4640)]  # features, inputs: empty slices; uneven slices, many tiles; two shares
ROWS = [1, 8, 11, 19, 40, 70]
FEW_ROWS = [1, 11, 70]


def each_shape_with_each(*numbers):
    """Shapes and numbers of rows; the default run has two pairs, each of which is a build of g++."""
    few = {(shape, numbers[i]) for i, shape in enumerate(SHAPES[:2])}
    pairs = [(shape, number) for shape in SHAPES for number in numbers]
    cases = [pair if pair in few else pytest.param(*pair, marks=pytest.mark.slow) for pair in pairs]
    return pytest.mark.parametrize(("shape", "num_rows"), cases)


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    if request.param == "emulated":
        monkeypatch.setattr(ops, "load", emulated)
        monkeypatch.setattr(ops, "device_limits", lambda device: Limits(2, 99 << 10))
        # so that the emulator's small shapes go every way: many rows, K divided or not, several groups of tiles
        monkeypatch.setattr(ops, "FEW_TILES", 1)
        monkeypatch.setattr(ops, "MANY_TILES", 8)
        monkeypatch.setattr(ops, "TILES_OF_BLOCK", (2, 4))
        return "cpu"
    return request.param


def normal(*shape, device, scale=1.0):
    return torch.randn(shape, device=device) * scale


def close(ours, expected, tolerance=1e-5):
    assert ours.isfinite().all()
    assert (ours.double() - expected).norm() <= tolerance * expected.norm()


def product(rows, weight):
    return rows.double() @ weight.double().T


@each_shape_with_each(3, 9, 20)
def test_project(device, shape, num_rows):
    weight = normal(*shape, device=device).bfloat16()
    rows = normal(num_rows, shape[1], device=device).bfloat16()
    out = ops.project(rows, BlockedMatrix.pack(weight))
    assert out.shape[1:] == (num_rows, shape[0])
    close(out.sum(0), product(rows, weight))


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
    """64 sequences of 32 rows at a start, and the widest model that has kernels; launches themselves are left out."""
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
    assert grids == [(132, 128)]


@pytest.mark.parametrize("num_rows", [2, 20])
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


@pytest.mark.parametrize("num_rows", [2, 20])
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


@pytest.mark.parametrize(
    ("shape", "numbers"),
    [(SHAPES[0], FEW_ROWS), *(pytest.param(shape, ROWS, marks=pytest.mark.slow) for shape in SHAPES)],
)
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

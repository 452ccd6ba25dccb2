"""Noise in kernels against the plain noise, the same for ids in order and for ids named one by one."""

import torch
import triton
import triton.language as tl
from tests.kernels.support.rows import DEVICE

from eyas.kernels.reference.rounds import noise as plain
from eyas.kernels.triton.rounds.noise import gumbel, gumbel_of, log


@triton.jit
def _draw_noise(named_ptr, in_order_ptr, seed_ptr, choice_ptr, position_ptr, ids_ptr, first, SIZE: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, SIZE)
    seed = tl.load(seed_ptr + row)
    choice, position = tl.load(choice_ptr + row).to(tl.int32), tl.load(position_ptr + row).to(tl.int32)
    tl.store(in_order_ptr + row * SIZE + column, gumbel(seed, choice, position, first, SIZE))
    tl.store(named_ptr + row * SIZE + column, gumbel_of(seed, choice, position, tl.load(ids_ptr + column)))


@triton.jit
def _logarithms(x_ptr, out_ptr, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out_ptr + at, log(tl.load(x_ptr + at)))


def noise_of(seed, choice, position, ids, first):
    named, in_order = (torch.full((len(seed), len(ids)), float("nan"), device=DEVICE) for _ in range(2))
    arguments = (x.to(DEVICE) for x in (seed, choice, position, ids.to(torch.int32)))
    _draw_noise[(len(seed),)](named, in_order, *arguments, first, SIZE=len(ids), enable_fp_fusion=False)
    return named, in_order


def test_equals_the_plain_noise():
    seed, choice = torch.tensor([0, 7, 2**62 + 12345, 2**40]), torch.tensor([0, 3, 15, 1])
    position, ids = torch.tensor([0, 5, 131071, 77]), torch.randint(0, 201088, (1024,))
    named, in_order = noise_of(seed, choice, position, ids, 100_000)
    torch.testing.assert_close(named.cpu(), plain.gumbel(seed, choice, position, ids_V=ids), rtol=1e-6, atol=3e-7)
    ordered = plain.gumbel(seed, choice, position, ids_V=torch.arange(100_000, 101_024))
    torch.testing.assert_close(in_order.cpu(), ordered, rtol=1e-6, atol=3e-7)


def test_ids_named_one_by_one_have_the_same_bits():
    seed, choice, position = torch.tensor([11, 2**61]), torch.tensor([0, 2]), torch.tensor([3, 4])
    _, in_order = noise_of(seed, choice, position, torch.arange(2048), 4096)
    order = torch.randperm(2048)
    named, _ = noise_of(seed, choice, position, 4096 + order, 0)
    assert torch.equal(named, in_order[:, order.to(DEVICE)])


def test_logarithm_is_right_to_the_last_places():
    x = torch.cat((torch.logspace(-32, 5, 3072), 1 + torch.logspace(-7, 0, 512), 1 - torch.logspace(-7, -0.01, 512)))
    x = x.to(DEVICE)
    out = torch.full_like(x, float("nan"))
    _logarithms[(len(x) // 1024,)](x, out, SIZE=1024, enable_fp_fusion=False)
    torch.testing.assert_close(out.double(), x.double().log(), rtol=2.4e-7, atol=0)

"""MXFP4 against transformers' decoder, and the quantiser against brute force."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.model.mxfp4 import BLOCK, E2M1_VALUES, Mxfp4Tensor, dequantize, fake_quantize, quantize


def random_packed(seed: int, rows: int = 6, columns: int = 96) -> Mxfp4Tensor:
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (2, rows, columns // BLOCK, BLOCK // 2), dtype=torch.uint8, generator=generator)
    scales = torch.randint(100, 140, (2, rows, columns // BLOCK), dtype=torch.uint8, generator=generator)
    return Mxfp4Tensor(blocks, scales)


def test_decodes_as_transformers_does():
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    packed = random_packed(0)
    theirs = convert_moe_packed_tensors(packed.blocks, packed.scales, dtype=torch.bfloat16)  # [E, in, out]
    assert torch.equal(dequantize(packed, torch.bfloat16), theirs.mT)


def test_low_nibble_comes_first():
    blocks = torch.zeros(1, 1, 16, dtype=torch.uint8)
    blocks[0, 0, 0] = 0x92  # code 2 is 1.0, code 9 is -0.5
    values = dequantize(Mxfp4Tensor(blocks, torch.full((1, 1), 129, dtype=torch.uint8)), torch.float32)
    assert values[0, :3].tolist() == [4.0, -2.0, 0.0]


def test_bf16_and_fp32_agree_for_every_code_and_ordinary_scale():
    codes = torch.arange(16, dtype=torch.uint8)
    blocks = (codes | (codes.flip(0) << 4)).expand(200, 1, 16)
    packed = Mxfp4Tensor(blocks, torch.arange(20, 220, dtype=torch.uint8).unsqueeze(1))
    assert torch.equal(dequantize(packed, torch.bfloat16).float(), dequantize(packed, torch.float32))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**31), scale=st.floats(1e-6, 1e6), zeros=st.booleans())
def test_quantised_values_are_the_nearest_of_their_scale(seed, scale, zeros):
    weight = torch.randn(3, BLOCK, generator=torch.Generator().manual_seed(seed)) * scale
    if zeros:
        weight[1] = 0
    packed = quantize(weight)
    grid = torch.tensor(E2M1_VALUES) * torch.exp2(packed.scales.float() - 127).unsqueeze(-1)  # [3, 1, 16]
    best = (weight.unsqueeze(-1) - grid).abs().amin(-1)
    assert torch.equal((weight - dequantize(packed, torch.float32)).abs(), best)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**31), scale=st.floats(1e-6, 1e6))
def test_largest_magnitude_is_neither_cut_nor_wasted(seed, scale):
    weight = torch.randn(4, BLOCK, generator=torch.Generator().manual_seed(seed)) * scale
    unit = torch.exp2(quantize(weight).scales.squeeze(-1).float() - 127)
    largest = weight.abs().amax(-1)
    assert (largest <= 7 * unit).all() and (largest > 3.5 * unit * (1 - 1e-6)).all()


def test_packing_what_was_unpacked_changes_no_value():
    values = dequantize(random_packed(1), torch.float32)
    assert torch.equal(dequantize(quantize(values), torch.float32), values)


def test_fake_quantize_rounds_forward_and_passes_the_gradient():
    weight = torch.randn(2, 64, requires_grad=True)
    rounded = fake_quantize(weight)
    assert torch.allclose(rounded, dequantize(quantize(weight.detach()), torch.float32), rtol=1e-6, atol=1e-6)
    rounded.mul(3).sum().backward()
    assert torch.equal(weight.grad, torch.full_like(weight, 3.0))


def test_one_expert_of_a_stack():
    packed = random_packed(2)
    assert torch.equal(dequantize(packed[1], torch.float32), dequantize(packed, torch.float32)[1])
    assert packed.shape == (2, 6, 96)

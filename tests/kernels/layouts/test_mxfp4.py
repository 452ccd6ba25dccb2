"""The packed form of MXFP4 experts: exact both ways, and unpacked as the kernels unpack it."""

import pytest
import torch

from eyas.kernels.layouts import mxfp4 as mxfp4_layout
from eyas.kernels.layouts.mxfp4 import MAX_SCALE, empty_experts, pack_experts, unpack_experts
from eyas.model.mxfp4 import Mxfp4Tensor, dequantize

MASK, FACTORS = 0x81C081C0, 0x7F807F80


def _random(num_experts: int, num_rows: int, num_columns: int, low: int = 0, high: int = MAX_SCALE):
    blocks = torch.randint(0, 256, (num_experts, num_rows, num_columns // 32, 16), dtype=torch.uint8)
    return blocks, torch.randint(low, high + 1, blocks.shape[:3], dtype=torch.uint8)


def _left(words: torch.Tensor, count: int) -> torch.Tensor:
    """Rotation of 32-bit words held in int64."""
    return (words << count | words >> 32 - count) & 0xFFFFFFFF


def _bf16(halves: torch.Tensor) -> torch.Tensor:
    return (halves << 16).to(torch.int32).view(torch.float32)


def _as_kernels_do(packed) -> torch.Tensor:
    """fp32 [E, N, K] by the formulas of the docstring."""
    q, w = (x.long() & 0xFFFFFFFF for x in (packed.words, packed.scales))
    pairs = torch.stack(
        (q & MASK, _left(q, 28) & MASK, q << 6 & MASK, _left(q, 26) & 0x81808180 | q << 2 & 0x00400040), dim=-1
    )
    codes = _bf16(torch.stack((pairs & 0xFFFF, pairs >> 16), dim=-1))  # [E, tile, k64, lane, word, pair, half]
    factors = torch.stack((w & FACTORS, _left(w, 8) & FACTORS), dim=-1)
    factors = _bf16(torch.stack((factors & 0xFFFF, factors >> 16), dim=-1))  # [E, tile, k64, g, block, row]
    num_experts, num_tiles, num_k64 = q.shape[:3]
    codes = codes.view(num_experts, num_tiles, num_k64, 8, 4, 2, 2, 8)  # g, t, block, row, element
    weights = codes * factors.view(num_experts, num_tiles, num_k64, 8, 1, 2, 2, 1)
    weights = weights.permute(0, 1, 3, 6, 2, 5, 4, 7).reshape(num_experts, num_tiles * 16, num_k64 * 64)
    return weights[..., : packed.num_columns]


@pytest.mark.parametrize(("num_rows", "num_columns"), [(16, 32), (48, 64), (32, 96), (64, 160)])
def test_packing_is_exact_both_ways(num_rows: int, num_columns: int):
    blocks, scales = _random(3, num_rows, num_columns)
    back = unpack_experts(pack_experts(blocks, scales))
    assert torch.equal(back[0], blocks)
    assert torch.equal(back[1], scales)


def test_every_byte_and_every_scale():
    blocks = torch.arange(256, dtype=torch.uint8).repeat(16 * 130 // 16, 1).view(1, 16, 130, 16)
    scales = torch.arange(130).clamp(max=MAX_SCALE).to(torch.uint8).repeat(16, 1).view(1, 16, 130)
    packed = pack_experts(blocks, scales)
    assert all(map(torch.equal, unpack_experts(packed), (blocks, scales)))
    expected = dequantize(Mxfp4Tensor(blocks, scales), torch.float32)
    assert torch.equal(_as_kernels_do(packed), expected)


@pytest.mark.parametrize("num_columns", [96, 128])
def test_the_formulas_give_the_checkpoints_values(num_columns: int):
    blocks, scales = _random(2, 32, num_columns, 100, 120)
    expected = dequantize(Mxfp4Tensor(blocks, scales), torch.float32)
    assert torch.equal(_as_kernels_do(pack_experts(blocks, scales)), expected)


def test_some_experts_at_a_time(monkeypatch):
    blocks, scales = _random(3, 32, 96)
    packed = empty_experts(3, 32, 96, "cpu")
    for experts in (slice(2, 3), slice(0, 2)):
        packed.put(experts.start, blocks[experts], scales[experts])
    monkeypatch.setattr(mxfp4_layout, "GROUP_BYTES", 2 * 32 * 48)
    whole = pack_experts(blocks, scales)
    assert torch.equal(packed.words, whole.words)
    assert torch.equal(packed.scales, whole.scales)
    assert packed.words.nbytes + packed.scales.nbytes == 3 * 32 * 128 * 17 // 32


def test_what_has_no_packed_form():
    blocks, scales = _random(1, 16, 64)
    with pytest.raises(ValueError, match="multiple of 16"):
        empty_experts(1, 24, 64, "cpu")
    with pytest.raises(ValueError, match="columns of 32"):
        empty_experts(1, 16, 48, "cpu")
    with pytest.raises(ValueError, match="are not those of"):
        empty_experts(1, 16, 128, "cpu").put(0, blocks, scales)
    scales[0, 3, 1] = 255
    with pytest.raises(ValueError, match="NaN"):
        pack_experts(blocks, scales)
    scales[0, 3] = torch.tensor([254, 120])
    with pytest.raises(ValueError, match="experts have scale bytes that bf16 cannot hold"):
        pack_experts(blocks, scales)


@pytest.mark.parametrize("low", [124, 121, 249])
def test_scales_above_128_leave_an_exponent(low: int):
    blocks, scales = _random(2, 16, 64, low, low + 5)
    scales[1, 3, 1] = low + 5
    packed = pack_experts(blocks, scales)
    assert packed.exponent == max(0, low + 5 - MAX_SCALE)
    assert all(map(torch.equal, unpack_experts(packed), (blocks, scales)))
    expected = dequantize(Mxfp4Tensor(blocks, scales), torch.float32) if low < 249 else None
    if expected is not None:
        assert torch.equal(_as_kernels_do(packed) * 2.0**packed.exponent, expected)

"""Decode attention over keys and values in 8 bits: the bits of a bf16 cache with the same numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.kernels.support.attention import DIM, NUM_SLICES, PAGE, SHAPES, Case, device_of, launch, make_case
from torch import Tensor

from eyas.kernels.layouts.fp8_cache import from_fp8, to_fp8, to_fp8_pair
from eyas.kernels.reference.layers.ops import LayerCache, RopeTable


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    return device_of(request.param, monkeypatch)


def in_fp8(case: Case) -> Case:
    """The same case with rounded keys and values, and what must not be read where nothing was written."""
    written = case.k_cache[..., 0].isfinite()
    k, v, scales = to_fp8_pair(case.k_cache, case.v_cache)
    k[~written], v[~written], scales[~written] = 0x7F, 0x7F, 0xFF
    return replace(case, k_cache=k, v_cache=v, scales_PG2B=scales.transpose(2, 3).contiguous())


def in_bf16(cache: LayerCache) -> tuple[Tensor, Tensor]:
    """The numbers of a cache in 8 bits; what was not written is NaN."""
    assert cache.scales_PG2B is not None
    scales = cache.scales_PG2B.transpose(2, 3)
    k, v = (from_fp8(part, scales[..., i]).bfloat16() for i, part in enumerate((cache.k, cache.v)))
    return k, v


def exact_rows(case: Case) -> Case:
    """New keys and values that 8 bits hold, and are not rotated; queries, keys and values of many magnitudes."""
    num_kv, partials = case.num_kv, torch.zeros_like(case.partials_SLN)
    partials[0] = case.partials_SLN[0].bfloat16().float()
    all_heads = partials[0].unflatten(-1, (-1, DIM))
    queries, heads = all_heads[..., : -2 * num_kv, :], all_heads[..., -2 * num_kv :, :]
    queries.mul_(10.0 ** torch.randint(-9, 3, (*queries.shape[:-1], 1), device=queries.device))
    heads.mul_(10.0 ** torch.randint(-3, 4, (*heads.shape[:-1], 1), device=heads.device))
    for _ in range(2):  # a number that was rounded up to a row's power of two asks for the next one
        heads.copy_(from_fp8(*to_fp8(heads)))
    cos = torch.ones_like(case.rope.cos)
    rope = RopeTable(cos, torch.zeros_like(cos))
    return replace(case, partials_SLN=partials, rope=rope, bias_N=None, square_sums_SLP=None)


def equal(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


@pytest.mark.parametrize(
    ("shape", "num_rows", "shared_limit"),
    [
        ("full", 1, 227),
        ("window", 4, 227),
        ("demo", 3, 227),
        pytest.param("full", 8, 227, marks=pytest.mark.slow),
        pytest.param("window", 1, 99, marks=pytest.mark.slow),
        pytest.param("full", 4, 99, marks=pytest.mark.slow),
        pytest.param("head", 32, 227, marks=pytest.mark.slow),
    ],
)
def test_bits_are_those_of_a_bf16_cache(device: torch.device, shape: str, num_rows: int, shared_limit: int):
    """All codes under values; outputs, and keys and values of new tokens, beside cached ones of several leaves."""
    starts = [int(shape == "head"), 130, 1100]
    case = in_fp8(exact_rows(make_case(device, starts, ahead=32, **SHAPES[shape])))
    assert case.scales_PG2B is not None
    codes = torch.randint(0, 256, case.v_cache.shape, dtype=torch.uint8, device=device)
    powers = torch.randint(90, 135, case.scales_PG2B[:, :, 1].shape, dtype=torch.uint8, device=device)
    written = case.scales_PG2B[:, :, 1] != 0xFF
    case.scales_PG2B[:, :, 1][written] = powers[written]
    case.v_cache[written] = torch.where(codes & 0x7F == 0x7F, 0, codes)[written]
    k_cache, v_cache = in_bf16(LayerCache(case.k_cache, case.v_cache, case.scales_PG2B))
    rounded = replace(case, k_cache=k_cache, v_cache=v_cache, scales_PG2B=None)
    out, cache = launch(case, starts, num_rows, shared_limit=shared_limit * 1024)
    right, expected = launch(rounded, starts, num_rows, shared_limit=shared_limit * 1024)
    assert out.isfinite().all() and torch.equal(out, right)
    k, v = in_bf16(cache)
    assert k.isnan().sum() < k_cache.isnan().sum()
    assert equal(k, expected.k) and equal(v, expected.v)


@pytest.mark.parametrize("shape", ["full", pytest.param("window", marks=pytest.mark.slow)])
def test_rows_are_rounded_as_by_the_twin_and_have_the_same_bits_in_any_launch(device: torch.device, shape: str):
    """What a row sees of the tokens beside it is what later rows read from the cache."""
    case = make_case(device, [509, 20, 1100], **SHAPES[shape])
    case.partials_SLN[..., -1, :] *= 1e-6
    _, plain = launch(case, [509, 20, 1100], 8)
    rounded = in_fp8(case)
    whole, cache = launch(rounded, [509, 20, 1100], 8)
    assert whole.isfinite().all() and cache.scales_PG2B is not None
    k, v, scales = to_fp8_pair(plain.k, plain.v)
    new = plain.k[..., 0].isfinite()
    for ours, expected in ((cache.k, k), (cache.v, v), (cache.scales_PG2B.transpose(2, 3), scales)):
        assert torch.equal(ours[new], expected[new])
    alone = replace(rounded, k_cache=cache.k, v_cache=cache.v, scales_PG2B=cache.scales_PG2B)
    for row in range(8):
        out, _ = launch(alone, [509 + row], 1, max_length=516 + 500 * row)
        assert torch.equal(out[0, 0], whole[0, row])
    out, again = launch(rounded, [1100, 509], 3, seqs=[2, 0], num_multiprocessors=3)
    assert torch.equal(out[1], whole[0, :3])
    page = case.table_SP[0, 509 // PAGE]
    for ours, expected in zip((again.k, again.v), (cache.k, cache.v), strict=True):
        assert torch.equal(ours[page, :, 509 % PAGE :], expected[page, :, 509 % PAGE :])


@pytest.mark.parametrize("num_rows", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_more_pieces_than_are_joined_at_once(device: torch.device, num_rows: int):
    """11 leaves in half as many warps: as a piece each, in fewer, and as one."""
    case = in_fp8(make_case(device, [2600], group=4, num_kv=1))
    whole, *others = (
        launch(case, [2600], num_rows, shared_limit=99 * 1024, num_multiprocessors=number)[0] for number in (20, 3, 1)
    )
    assert whole.isfinite().all() and all(torch.equal(other, whole) for other in others)


@pytest.mark.parametrize("broken", [torch.inf, torch.nan, 60_000.0])
@pytest.mark.parametrize("part", ["key", "value"])
def test_what_does_not_fit_poisons_those_who_see_it(device: torch.device, broken: float, part: str):
    case = in_fp8(exact_rows(make_case(device, [250])))
    feature = (case.group + (part == "value")) * case.num_kv * DIM + 5  # of head 0
    assert NUM_SLICES > 1
    case.partials_SLN[1, 0, 252, feature] = broken
    out, cache = launch(case, [250], 4)
    head_0, others = out[0, :, : case.group], out[0, :, case.group :]
    assert head_0[2:].isnan().all() and head_0[:2].isfinite().all() and others.isfinite().all()
    k, v = in_bf16(cache)
    at = case.table_SP[0, 252 // PAGE], slice(None), 252 % PAGE
    assert k[at][0].isnan().all() and not v[at][0].any() and k[at][1].isfinite().all()
    later = replace(case, k_cache=cache.k, v_cache=cache.v, scales_PG2B=cache.scales_PG2B)
    out, _ = launch(later, [254], 1)
    assert out[0, 0, : case.group].isnan().all() and out[0, 0, case.group :].isfinite().all()

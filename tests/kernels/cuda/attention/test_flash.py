"""Attention of prompt rows by warpgroups against the reference, in the emulator and on a Hopper GPU."""

import copy
import itertools

import pytest
import torch
from tests.kernels.cuda.emulator import emulated

from eyas.kernels.cuda.attention import flash
from eyas.kernels.layouts.device import device_limits
from eyas.kernels.layouts.fp8_cache import BROKEN, from_fp8, to_fp8_pair
from eyas.kernels.reference.layers.attend import attend_ref
from eyas.kernels.reference.layers.ops import LayerCache, Rows

PAGE = 16


class Case:
    """Sequences in shuffled pages among poison: page 0, pages of no sequence, and all keys behind the rows are NaN."""

    def __init__(self, starts, num_rows, *, num_heads=8, num_kv=1, sinks=True, device="cpu", seed=0):
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape):
            return torch.randn(*shape, generator=generator).bfloat16()

        num_seqs, width = len(starts), -(-(max(starts) + num_rows) // PAGE)
        order = (torch.randperm(num_seqs * width, generator=generator) + 1).view(num_seqs, width)
        shape = (num_seqs * width + 3, num_kv, PAGE, 64)
        cache = LayerCache(*(torch.full(shape, torch.nan).bfloat16() for _ in range(2)))
        for seq, start in enumerate(starts):
            pages, offsets = order[seq, torch.arange(start + num_rows) // PAGE], torch.arange(start + num_rows) % PAGE
            for part in cache.tensors:
                part[pages, :, offsets] = draw(len(pages), num_kv, 64)
        positions = torch.tensor(starts)[:, None] + torch.arange(num_rows)
        live = torch.ones_like(positions, dtype=torch.bool)
        self.rows = Rows(positions.to(device), live.to(device), order.to(device), max(starts) + num_rows)
        self.cache = LayerCache(cache.k.to(device), cache.v.to(device))
        self.q = draw(num_seqs * num_rows, num_heads, 64).to(device)
        self.sinks = draw(num_heads).float().to(device) if sinks else None

    def run(self, seq=None, start=0, end=None):
        """Rows of all sequences, or `start` .. `end` - 1 of one."""
        if seq is None:
            out = flash.flash_attend(self.q, self.rows, self.cache, sinks_Q=self.sinks)
            return out.unflatten(0, self.rows.positions_SR.shape)
        cut = slice(start, end)
        rows = Rows(
            self.rows.positions_SR[seq : seq + 1, cut].contiguous(), self.rows.live_SR[seq : seq + 1, cut],
            self.rows.table_SP[seq : seq + 1], self.rows.max_length,
        )  # fmt: skip
        q = self.q.unflatten(0, self.rows.positions_SR.shape)[seq, cut].contiguous()
        return flash.flash_attend(q, rows, self.cache, sinks_Q=self.sinks)

    def expected(self, tile=None):
        return attend_ref(
            self.q.float().unflatten(0, self.rows.positions_SR.shape),
            k_cache_PGBD=self.cache.k.nan_to_num(0).float(),
            v_cache_PGBD=self.cache.v.nan_to_num(0).float(),
            table_SP=self.rows.table_SP,
            positions_SR=self.rows.positions_SR,
            sinks_Q=self.sinks,
            window=None,
            max_length=self.rows.max_length,
            tile=tile,
        ).flatten(2)

    def in_tiles(self, num_rows):
        """The rows of all sequences in tiles, each a sequence with a table of its own, as in a pass of an engine."""
        tiles = self.rows.positions_SR.shape[1] // num_rows
        case = copy.copy(self)
        case.rows = self.rows._replace(
            positions_SR=self.rows.positions_SR.view(-1, num_rows),
            live_SR=self.rows.live_SR.view(-1, num_rows),
            table_SP=self.rows.table_SP.repeat_interleave(tiles, 0),
        )
        return case

    def in_fp8(self):
        """Two cases: keys and values in 8 bits, of many magnitudes, and a bf16 cache of the same numbers.

        Bytes and powers of two that were never written are what must not be used.
        """
        first, second = copy.copy(self), copy.copy(self)
        written, device = self.cache.k[..., 0].isfinite(), self.cache.k.device
        powers = 10.0 ** torch.randint(-2, 3, (2, *written.shape, 1), device=device)
        k, v, scales = to_fp8_pair(*(part * power for part, power in zip(self.cache.tensors, powers, strict=True)))
        k[~written], v[~written], scales[~written] = 0x7F, 0x7E, BROKEN
        first.cache = LayerCache(k, v, scales.transpose(2, 3).contiguous())
        second.cache = LayerCache(*(from_fp8(part, scales[..., i]).bfloat16() for i, part in enumerate((k, v))))
        return first, second


def error(found, expected):
    return float((found.float() - expected).norm() / expected.norm())


@pytest.fixture
def emulator(monkeypatch):
    monkeypatch.setattr(flash, "load", emulated)
    monkeypatch.setattr(flash, "DEPTH", 4)  # goes round


@pytest.mark.parametrize(
    ("starts", "num_rows", "num_heads", "num_kv", "sinks"),
    [
        ([0], 45, 8, 1, True),
        ([48], 1, 8, 1, False),
        ([1070], 30, 8, 1, True),
        ([16, 0, 80], 21, 16, 2, True),
        ([5], 70, 4, 1, True),
        ([139], 12, 16, 1, True),
    ],
)
def test_emulated(emulator, starts, num_rows, num_heads, num_kv, sinks):
    case = Case(starts, num_rows, num_heads=num_heads, num_kv=num_kv, sinks=sinks)
    assert error(case.run(), case.expected()) < 5e-3  # weights and outputs are rounded to bf16


@pytest.mark.parametrize("warpgroups", [1, 2, 3])
def test_bits_do_not_depend_on_cuts_in_the_emulator(emulator, monkeypatch, warpgroups):
    case = Case([272], 64)
    whole = case.run()[0]
    monkeypatch.setattr(flash, "warpgroups_of", lambda *_: warpgroups)
    assert torch.equal(torch.cat([case.run(0, *cut) for cut in itertools.pairwise((0, 16, 21, 64))]), whole)


@pytest.mark.parametrize(
    ("starts", "num_tiles", "together"), [([32], 6, 3), ([0, 208], 4, 3), ([0, 64, 128], 1, 3), ([64], 2, 1)]
)
def test_tiles_of_a_prompt_share_blocks_in_the_emulator(emulator, monkeypatch, starts, num_tiles, together):
    """With the bits of other blocks; so do, each for itself, tiles of others that happen to lie behind one another."""
    case = Case(starts, 64 * num_tiles)
    expected = case.run()
    monkeypatch.setattr(flash, "warpgroups_of", lambda *_: 3)
    assert flash.together_of(len(starts) * num_tiles, 64, 8, 3) == together
    assert torch.equal(case.in_tiles(64).run().view_as(expected), expected)


def test_one_table_of_tiles_that_share_blocks_is_read(emulator, monkeypatch):
    case = Case([0], 192)
    expected, tiles = case.run(), case.in_tiles(64)
    monkeypatch.setattr(flash, "warpgroups_of", lambda *_: 3)
    for unread in (tiles.rows.table_SP[0, :3], tiles.rows.table_SP[1, :3], tiles.rows.table_SP[1, 4:7]):
        unread[:] = 0  # a page of NaN; the pages before the next tiles say whose these are
    assert torch.equal(tiles.run().view_as(expected), expected)
    tiles.rows.table_SP[0, 3] = 0
    assert tiles.run()[0].isnan().all()


def test_a_key_that_is_nan_breaks_the_rows_that_see_it(emulator):
    case = Case([48], 45)
    case.cache.k[case.rows.table_SP[0, 4], :, 3] = torch.nan  # position 67
    expected = case.expected()[0]
    out, seen = case.run()[0], case.rows.positions_SR[0] < 67
    assert out[~seen].isnan().all() and error(out[seen], expected[seen]) < 5e-3


@pytest.mark.parametrize(
    ("starts", "num_rows", "num_kv", "warpgroups"),
    [([16, 0, 330], 21, 2, 3), ([600], 40, 1, 2), pytest.param([0], 45, 1, 1, marks=pytest.mark.slow)],
)
def test_8_bits_have_the_bits_of_the_same_numbers_in_the_emulator(
    emulator, monkeypatch, starts, num_rows, num_kv, warpgroups
):
    monkeypatch.setattr(flash, "warpgroups_of", lambda *_: warpgroups)
    case, same = Case(starts, num_rows, num_heads=8 * num_kv, num_kv=num_kv).in_fp8()
    out = case.run()
    assert out.isfinite().all() and torch.equal(out, same.run())


def test_a_broken_key_in_8_bits_breaks_the_rows_that_see_it(emulator, monkeypatch):
    monkeypatch.setattr(flash, "warpgroups_of", lambda *_: 2)
    case, _ = Case([48], 45).in_fp8()
    page, expected = case.rows.table_SP[0, 4], case.run()[0]
    case.cache.k[page, :, 3], case.cache.scales_PG2B[page, :, 0, 3] = 0x7F, BROKEN  # position 67
    out, seen = case.run()[0], case.rows.positions_SR[0] < 67
    assert out[~seen].isnan().all() and torch.equal(out[seen], expected[seen])


@pytest.mark.parametrize("seed", [1, 2])
def test_no_order_of_threads_matters(emulator, monkeypatch, seed):
    case = Case([0, 280], 40)
    expected = case.run()
    monkeypatch.setattr(flash, "load", lambda *args: emulated(*args, seed=seed))
    assert torch.equal(case.run(), expected)


def test_few_rows_are_shared_by_all_multiprocessors():
    """Of an H200, at the heads of gpt-oss."""
    found = {rows: flash.warpgroups_of(1, rows, 8, 8, 132) for rows in (64, 128, 256, 8192, 32640)}
    assert found == {64: 1, 128: 1, 256: 2, 8192: 3, 32640: 3}


def test_other_shapes_are_left_to_others():
    case = Case([0], 16, num_heads=2)
    assert flash.flash_attend(case.q, case.rows, case.cache, sinks_Q=case.sinks) is None
    case = Case([0], 16)
    wide = LayerCache(case.cache.k.float(), case.cache.v.float())
    assert flash.flash_attend(case.q, case.rows, wide, sinks_Q=case.sinks) is None
    assert flash.hopper_attention(torch.device("cpu")) is None


@pytest.fixture
def hopper():
    if not device_limits(torch.device("cuda")).has_wgmma:
        pytest.skip("no Hopper GPU")


TRUE = {"num_heads": 64, "num_kv": 8, "device": "cuda"}


@pytest.mark.gpu
@pytest.mark.parametrize("sinks", [True, False])
@pytest.mark.parametrize(("starts", "num_rows"), [([0], 300), ([4000], 200), ([16, 1040, 0], 77)])
def test_on_the_gpu(hopper, starts, num_rows, sinks):
    """No further from sums in fp32 than Triton's kernel, give or take."""
    from eyas.kernels.triton.prompts import flash as by_triton

    case = Case(starts, num_rows, sinks=sinks, **TRUE)
    expected = case.expected()
    finite = LayerCache(case.cache.k, case.cache.v.nan_to_num(0))  # Triton's has 0 times a hidden value
    triton_out = by_triton.flash_attend(case.q, case.rows, finite, sinks_Q=case.sinks, window=None)
    found = error(case.run(), expected)
    assert found < 1.5 * error(triton_out.view_as(expected), expected), found


@pytest.mark.gpu
@pytest.mark.parametrize("start", [0, 2992, 24448])
def test_bits_do_not_depend_on_cuts(hopper, start):
    case = Case([start], 400, **TRUE)
    whole = case.run()[0]
    assert whole.isfinite().all()
    for cuts in ((0, 16, 400), (0, 208, 224, 400), tuple(range(0, 401, 80))):
        assert torch.equal(torch.cat([case.run(0, *cut) for cut in itertools.pairwise(cuts)]), whole)


@pytest.mark.gpu
def test_bits_do_not_depend_on_other_sequences(hopper):
    case = Case([640, 0, 9008, 64], 128, **TRUE)
    together = case.run()
    assert together.isfinite().all()
    assert all(torch.equal(case.run(seq), together[seq]) for seq in range(4))


@pytest.mark.gpu
def test_tiles_of_a_prompt_share_blocks(hopper):
    """Two long prompts and short ones, whose tiles do not fill the last blocks."""
    for starts, num_rows in (([4096, 0], 1088), ([0, 64, 128, 192, 256], 64)):
        case = Case(starts, num_rows, **TRUE)
        expected = case.run()
        assert expected.isfinite().all()
        assert torch.equal(case.in_tiles(64).run().view_as(expected), expected)


@pytest.mark.gpu
def test_bits_do_not_depend_on_the_warpgroups_of_a_block(hopper, monkeypatch):
    case, found = Case([3000], 200, **TRUE), []
    for warpgroups in flash.COST:
        monkeypatch.setattr(flash, "warpgroups_of", lambda *_, warpgroups=warpgroups: warpgroups)
        found.append(case.run())
    assert found[0].isfinite().all() and all(torch.equal(out, found[0]) for out in found)


@pytest.mark.gpu
@pytest.mark.parametrize("warpgroups", flash.COST)
@pytest.mark.parametrize(("starts", "num_rows"), [([0], 300), ([4000], 200), ([16, 1040, 0], 77)])
def test_8_bits_have_the_bits_of_the_same_numbers(hopper, monkeypatch, starts, num_rows, warpgroups):
    monkeypatch.setattr(flash, "warpgroups_of", lambda *_: warpgroups)
    case, same = Case(starts, num_rows, **TRUE).in_fp8()
    out = case.run()
    assert out.isfinite().all() and torch.equal(out, same.run())


@pytest.mark.gpu
@pytest.mark.parametrize("in_fp8", [False, True])
def test_bits_stay_the_same_under_load(hopper, in_fp8):
    """A stage that is overwritten before it was read, or read before it is there, shows in some launch."""
    case = Case([12_000], 4096, **TRUE)
    case = case.in_fp8()[0] if in_fp8 else case
    first = case.run()
    assert first.isfinite().all()
    assert all(torch.equal(case.run(), first) for _ in range(50))

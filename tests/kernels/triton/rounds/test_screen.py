"""Tokens drawn from the exact logits of listed tiles against those drawn from all, and what is listed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.support.rows import DEVICE, rows_of, run_beside

from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.kernels.layouts.int8 import RoughMatrix
from eyas.kernels.reference.layers.norm import Normed, inverse_rms
from eyas.kernels.reference.rounds.failures import NOT_FINITE
from eyas.kernels.reference.rounds.sample import SamplingRows
from eyas.kernels.reference.rounds.screen import error_of, screen_ref
from eyas.kernels.triton.rounds.sample import SampleSpace, draw
from eyas.kernels.triton.rounds.screen import PAUSE, ScreenSpace, screen

pytestmark = pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
V, H, EPS = 608, 96, 1e-5


class Case:
    """Exact and rough logits of rows, as products in fp32."""

    def __init__(self, weight, hidden):
        weight, rows = weight.bfloat16().to(DEVICE), hidden.bfloat16().to(DEVICE)
        self.normed = Normed(rows, hidden.float().square().unflatten(1, (-1, 16)).sum(-1).to(DEVICE))
        self.rough = RoughMatrix.of(BlockedMatrix.pack(weight))
        self.exact = self._product(weight.float())
        self.approximate = self._product(self.rough.plain().float())
        self.live = torch.ones(len(hidden), dtype=torch.bool, device=DEVICE)

    def _product(self, weight):
        return self.normed.rows_TH.float() @ weight.T * inverse_rms(self.normed, EPS)

    @property
    def num_rows(self):
        return len(self.exact)

    def screened(self, space, rows, slots=None, length=None):
        """What the exact product of the wanted tiles leaves of the rough logits, and those tiles or None for all."""
        slots = torch.arange(self.num_rows, device=DEVICE) if slots is None else slots
        length = torch.arange(self.num_rows, device=DEVICE) * 3 if length is None else length
        logits = self.approximate.clone()
        arguments = (logits, self.normed, EPS, self.rough, slots, length, self.live, rows, space)
        if space.num_chunks == 1 or DEVICE == "cuda":
            screen(*arguments)
        else:
            for tensor in (logits, space.wanted, space.pass_over, *space.scratch):
                tensor.share_memory_()
            run_beside(space.num_chunks, screen, *arguments)
        assert not space.scratch.arrived.any() and not space.scratch.num_listed.any()
        number = int(space.wanted[0])
        tiles = None if number == space.num_tiles else space.wanted[1 : 1 + number].tolist()
        for tile in range(space.num_tiles) if tiles is None else tiles:
            ids = slice(16 * tile, 16 * tile + 16)
            logits[:, ids] = self.exact[:, ids]
        return logits, tiles


def normal_case(num_rows=4, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(V, H, generator=generator) * scale
    return Case(weight, torch.randn(num_rows, H, generator=generator))


def space_of(num_rows, chunk_size=1024):
    return ScreenSpace(num_rows, V, DEVICE, chunk_size=chunk_size)


def drawn_from(logits, rows, wanted=None, live=None):
    count = torch.arange(len(logits), device=DEVICE)
    space = SampleSpace(len(logits), V, DEVICE, chunk_size=1024)
    return draw(logits, count, count * 3, rows, space, num_top_S=count * 0, wanted=wanted, live_T=live)


KINDS = st.sampled_from(["normal", "lognormal rows", "lognormal", "near ties", "ties"])


@settings(deadline=None, max_examples=12)
@given(
    kind=KINDS,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 30.0, 1e6]),
    seed=st.integers(0, 1000),
)
@pytest.mark.slow
def test_tokens_are_those_of_all_logits(kind, temperature, scale, seed):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    weight, hidden = normal(V, H), normal(3, H)
    if kind == "lognormal rows":
        weight *= normal(V, 1).mul(2).exp()
    if kind == "lognormal":
        weight *= normal(V, H).exp()
    if "ties" in kind:
        weight = weight[torch.randint(8, (V,), generator=generator)]
    if kind == "near ties":
        weight += normal(V, H) * 2.0**-7
    case, rows = Case(weight * scale, hidden), rows_of(3, temperature=temperature, seeds=True)
    assert ((case.exact - case.approximate).abs() <= error_of(case.normed, EPS, case.rough)).all()
    space = space_of(3)
    logits, _ = case.screened(space, rows)
    ours, expected = drawn_from(logits, rows, space.wanted), drawn_from(case.exact, rows)
    assert torch.equal(ours.ids_T, expected.ids_T)
    assert not ours.failed_T.any() and not expected.failed_T.any()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_listed_are_the_tiles_of_the_plain_twin(temperature):
    """The logits that no tile has are -inf, the others of the launch's rows exact."""
    case, rows = normal_case(), rows_of(4, temperature=temperature, seeds=True)
    logits, tiles = case.screened(space_of(4), rows)
    error = error_of(case.normed, EPS, case.rough)
    expected = screen_ref(case.approximate, error, torch.arange(4, device=DEVICE) * 3, rows).any(0)
    assert sorted(tiles) == expected.nonzero().flatten().tolist() and 0 < len(tiles) < 30
    assert torch.equal(logits, torch.where(expected.repeat_interleave(16), case.exact, float("-inf")))


def test_programs_meet_and_find_the_same_tiles():
    case, rows = normal_case(), rows_of(4, temperature=1.0, seeds=True)
    alone = case.screened(space_of(4), rows)
    together = case.screened(space_of(4, chunk_size=256), rows)
    assert torch.equal(alone[0], together[0]) and sorted(alone[1]) == sorted(together[1])


def test_rows_of_sequences_stand_at_their_positions():
    case, settings_S = normal_case(6), [rows_of(1, temperature=kind) for kind in (0.0, 0.7, 1.0)]
    rows = SamplingRows(*(torch.cat(field) for field in list(zip(*settings_S, strict=True))[:6]), True, False)
    slots, length = torch.tensor([2, 0, 1], device=DEVICE), torch.tensor([50, 9, 400], device=DEVICE)
    space, of_draws = space_of(6), SampleSpace(6, V, DEVICE, chunk_size=1024)
    logits, tiles = case.screened(space, rows, slots, length)
    assert tiles is not None
    ids = draw(logits, slots, length, rows, of_draws, num_top_S=length * 0, wanted=space.wanted).ids_T.clone()
    assert torch.equal(ids, draw(case.exact, slots, length, rows, of_draws, num_top_S=length * 0).ids_T)


def test_dead_rows_want_nothing():
    case, rows = normal_case(3), rows_of(3, temperature=0.0)
    alone = Case.__new__(Case)
    alone.__dict__ |= vars(case)
    alone.live = torch.tensor([False, True, False], device=DEVICE)
    case.normed.rows_TH[2, 5] = float("nan")
    _, tiles = alone.screened(space_of(3), rows)
    one = normal_case(3)
    one.live = alone.live
    assert tiles == one.screened(space_of(3), rows)[1] and tiles is not None
    alone.live = torch.zeros(3, dtype=torch.bool, device=DEVICE)
    assert alone.screened(space_of(3), rows)[1] == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_a_row_that_is_not_finite_wants_all(value):
    case, rows, space = normal_case(), rows_of(4, temperature=0.0), space_of(4)
    case.normed.rows_TH[2, 5] = value
    case.exact[2] = case._product(torch.zeros(V, H, device=DEVICE) + 1e3)[2]
    logits, tiles = case.screened(space, rows)
    assert tiles is None and not space.pass_over.any()
    drawn = drawn_from(logits, rows, space.wanted)
    assert drawn.failed_T.tolist() == [0, 0, NOT_FINITE, 0]


def test_a_screened_row_that_is_not_finite_fails():
    """A logit of a listed tile that is not a number, which no bound allows."""
    case, rows, space = normal_case(), rows_of(4, temperature=0.0), space_of(4)
    logits, tiles = case.screened(space, rows)
    logits[1, 16 * tiles[0] + 3] = float("nan")
    assert drawn_from(logits, rows, space.wanted).failed_T.tolist() == [0, NOT_FINITE, 0, 0]


def test_the_host_may_wish_for_all():
    case, rows, space = normal_case(), rows_of(4, temperature=0.0), space_of(4)
    space.pass_over[0] = 1
    logits, tiles = case.screened(space, rows)
    assert tiles is None and torch.equal(logits, case.exact) and space.pass_over.tolist() == [1, 0]


def test_a_launch_that_does_not_pay_is_followed_by_a_pause():
    case, rows, space = normal_case(2), rows_of(2, temperature=0.0), space_of(2)
    flat = Case(torch.ones(V, H), torch.ones(2, H))
    logits, tiles = flat.screened(space, rows)
    assert tiles is None and torch.equal(logits, flat.exact) and space.pass_over.tolist() == [0, PAUSE]
    for left in range(PAUSE - 1, -1, -1):
        logits, tiles = case.screened(space, rows)
        assert tiles is None and torch.equal(logits, case.exact) and space.pass_over.tolist() == [0, left]
    _, tiles = case.screened(space, rows)
    assert tiles is not None and space.pass_over.tolist() == [0, 0]

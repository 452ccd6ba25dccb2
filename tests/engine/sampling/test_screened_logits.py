"""Tokens from screened logits against those from all, in the kernels' own arithmetic: emulated, or on a GPU."""

from types import SimpleNamespace

import pytest
import torch
import triton
from tests.kernels.cuda.emulator import emulated

from eyas.base.types import Request, SamplingParams
from eyas.engine.round.state import DeviceState
from eyas.engine.sampling.screened_logits import MAX_ROWS, ScreenedLogits
from eyas.kernels.cuda.dense import linear
from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.kernels.layouts.device import Limits
from eyas.kernels.layouts.int8 import RoughMatrix
from eyas.kernels.reference.layers.norm import Normed
from eyas.kernels.reference.rounds.screen import error_of
from eyas.kernels.triton.rounds.sample import SampleSpace, draw

pytestmark = pytest.mark.filterwarnings("ignore:invalid value")  # interpreted, infinities make numpy warn
EPS = 1e-5
SIZES = {"cpu": (176, 544), "cuda": (201088, 2880)}  # emulated small; of gpt-oss
KINDS = ["normal", "lognormal rows", "lognormal", "near ties", "ties"]
TEMPERATURES = (0.0, 0.7, 1.0, 1.5)
SHAPES = [(1, 1), (4, 2)]  # sequences, rows of each


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    if request.param == "cpu":
        if not triton.knobs.runtime.interpret:
            pytest.skip("Triton interprets where there is no GPU")
        monkeypatch.setattr(linear, "load", emulated)
        monkeypatch.setattr(linear, "device_limits", lambda device: Limits(2, 99 << 10))
    return request.param


def weights_of(kind, device, generator):
    def normal(*shape):
        return torch.randn(shape, generator=generator, device=device)

    num_rows, num_columns = SIZES[device]
    weight = normal(num_rows, num_columns)
    if kind == "lognormal rows":
        weight *= normal(num_rows, 1).exp()
    if kind == "lognormal":
        weight *= normal(num_rows, num_columns).exp()
    if "ties" in kind:
        weight = weight[torch.randint(num_rows // 8, (num_rows,), generator=generator, device=device)]
    if kind == "near ties":
        weight *= 1 + normal(num_rows, num_columns) * 2.0**-8
    return BlockedMatrix.pack((weight / num_columns**0.5).bfloat16())


def screened_of(lm_head, device, temperatures):
    """A screen over the state of sequences at these temperatures, which stand at different positions."""
    state = DeviceState(
        num_slots=len(temperatures),
        max_positions=4096,
        page_size=16,
        vocab_size=lm_head.num_rows,
        tap_width=0,
        tap_ring=1,
        tap_dtype=torch.bfloat16,
        device=torch.device(device),
    )
    state.sampling.temperature[:-1] = torch.tensor(temperatures, device=device)
    state.sampling.top_p.fill_(1)
    state.sampling.seed[:-1] = torch.arange(len(temperatures), device=device) * 7919
    state.length_S[:-1] = torch.arange(len(temperatures), device=device) * 31 + 5
    return ScreenedLogits(lm_head, RoughMatrix.of(lm_head), state, EPS), state


def normed_of(num_rows, device, generator):
    hidden = torch.randn(num_rows, SIZES[device][1], generator=generator, device=device) * 3
    return Normed(hidden.bfloat16(), hidden.square().unflatten(1, (-1, 16)).sum(-1))


def drawn_from(logits_TV, state, slots_S, live_T, wanted=None):
    space = SampleSpace(len(logits_TV), logits_TV.shape[1], logits_TV.device)
    no_top = torch.zeros_like(state.num_top_S)
    return draw(
        logits_TV, slots_S, state.length_S, state.sampling, space, live_T=live_T, num_top_S=no_top, wanted=wanted
    )


@pytest.mark.parametrize(
    "kind", [kind if kind in ("normal", "near ties") else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_tokens_are_those_of_all_logits(device, kind):
    generator = torch.Generator(device).manual_seed(1)
    lm_head = weights_of(kind, device, generator)
    screened, state = screened_of(lm_head, device, TEMPERATURES)
    for num_seqs, num_rows in SHAPES:
        assert num_seqs * num_rows <= MAX_ROWS
        slots = torch.arange(num_seqs, device=device)
        live = torch.ones(num_seqs, num_rows, dtype=torch.bool, device=device)
        live[-1, 1:] = False
        for turn in range(1 if device == "cpu" else 8):
            screened.space.pass_over.zero_()
            normed = normed_of(num_seqs * num_rows, device, generator)
            whole = linear.logits(normed, lm_head, EPS)
            approximate = linear.logits(normed, screened._rough.matrix, EPS, wanted=screened.space.pass_over)
            ratio = ((whole - approximate).abs().double() / error_of(normed, EPS, screened._rough)).max().item()
            ours, wanted = screened.logits(normed, slots, live, torch.full_like(whole, 7.0))
            tiles = int(wanted[0])
            if not turn:
                print(
                    f"\n{kind}: {num_seqs} x {num_rows} rows, {tiles} tiles, error over its bound at most {ratio:.3f}"
                )
            assert ratio <= 1
            ours_live, whole_live = ours[live.flatten()], whole[live.flatten()]
            is_left = ours_live.isfinite()
            assert torch.equal(ours_live[is_left], whole_live[is_left])
            assert (ours_live[~is_left] == float("-inf")).all()
            left = drawn_from(ours, state, slots, live.flatten(), wanted)
            all_ = drawn_from(whole, state, slots, live.flatten())
            assert torch.equal(left.ids_T, all_.ids_T)
            assert not left.failed_T.any() and not all_.failed_T.any()
            assert (tiles == int(is_left[0].sum()) // 16) and tiles > 0


NEEDS_ALL = [
    {"logprobs": 0},
    {"logprobs": 5},
    {"temperature": 0.5, "top_p": 0.9},
    {"temperature": 0.5, "top_k": 20},
    {"temperature": 0.5, "min_p": 0.1},
    {"presence_penalty": 0.1},
    {"frequency_penalty": 0.1},
    {"repetition_penalty": 1.1},
    {"logit_bias": {3: 1.0}},
    {"min_tokens": 3, "max_tokens": 4},
]
NEEDS_FEW = [{}, {"temperature": 0.0, "top_p": 0.9}, {"temperature": 1.5, "seed": 3}, {"stop_token_ids": (3,)}]


def sequence_of(wishes):
    return SimpleNamespace(request=Request(request_id="1", prompt_ids=(1,), params=SamplingParams(**wishes)))


def test_requests_that_look_at_other_logits_get_all(device):
    generator = torch.Generator(device).manual_seed(2)
    lm_head = weights_of("normal", device, generator)
    screened, _ = screened_of(lm_head, device, (0.0,))
    normed, slots = normed_of(1, device, generator), torch.zeros(1, dtype=torch.int64, device=device)
    live = torch.ones(1, 1, dtype=torch.bool, device=device)
    whole = linear.logits(normed, lm_head, EPS)
    cases = [([wishes], False, False) for wishes in NEEDS_FEW]
    cases += [(pair, False, True) for wishes in NEEDS_ALL for pair in ([wishes], [NEEDS_FEW[0], wishes])]
    for wishes, has_masks, needs_all in [*cases, (NEEDS_FEW[:1], True, True), (NEEDS_FEW, False, False)]:
        screened.expect(map(sequence_of, wishes), has_masks)
        assert screened.space.pass_over.tolist() == [needs_all, 0]
        if wishes in (NEEDS_ALL[:1], NEEDS_FEW):
            ours, wanted = screened.logits(normed, slots, live, None)
            assert torch.equal(ours, whole) == needs_all == (int(wanted[0]) == lm_head.num_rows // 16)


def test_every_parameter_that_filters_or_edits_is_among_them():
    """A new field of SamplingParams must be sorted in here, and in `_needs_all` if it changes tokens or is reported."""
    known = {name for wishes in NEEDS_ALL + NEEDS_FEW for name in wishes}
    by_masks, neither = {"grammar", "allowed_token_ids", "bad_words"}, {"n", "ignore_eos", "prompt_logprobs"}
    assert set(SamplingParams.__dataclass_fields__) == known | by_masks | neither

"""Tokens, failures and log-probabilities of a launch against the plain samplers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.support.rows import DEVICE, rows_of, shared_launch

from eyas.base.types import FILTERS
from eyas.kernels.reference.rounds.failures import NO_TOKEN_LEFT, NOT_FINITE
from eyas.kernels.reference.rounds.sample import sample
from eyas.kernels.triton.rounds.edits import Masks
from eyas.kernels.triton.rounds.sample import SampleSpace, draw

# Interpreted, infinities make numpy warn.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value")
V = 600
SETTINGS = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 7},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.05},
    "all": {"temperature": 1.3, "top_k": 30, "top_p": 0.9, "min_p": 0.02},
}


def random_logits(num_rows, vocab_size=V, seed=0):
    return (torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3).to(DEVICE)


def counted(*shape):
    return torch.arange(*shape, device=DEVICE)


def test_every_filter_is_tried_alone_and_changes_tokens():
    assert set(FILTERS) <= set(SETTINGS)
    logits, position = random_logits(64), counted(64)
    off = sample(logits, position, rows_of(64, seeds=True))
    for name in FILTERS:
        assert not torch.equal(sample(logits, position, rows_of(64, seeds=True, **SETTINGS[name])), off)


@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_are_those_of_the_plain_sampler(name):
    logits, rows = random_logits(8), rows_of(8, seeds=True, **SETTINGS[name])
    drawn = draw(logits, counted(8), counted(8) * 3, rows, SampleSpace(8, V, DEVICE, chunk_size=1024))
    assert torch.equal(drawn.ids_T, sample(logits, counted(8) * 3, rows))


def test_rows_of_all_kinds_in_one_launch():
    """Several rows a sequence; slots in any order; the scratch memory is left ready for the next launch."""
    logits, space = random_logits(12), SampleSpace(12, V, DEVICE, chunk_size=1024)
    settings = [rows_of(1, **kind) for kind in SETTINGS.values()]
    rows = type(settings[0])(*(torch.cat(field) for field in list(zip(*settings, strict=True))[:6]), True, True)
    slots, length = torch.randperm(6, generator=torch.Generator().manual_seed(1)).to(DEVICE), counted(6) * 50
    for offset in (0, 3):
        drawn = draw(logits, slots, length, rows, space, offset=offset)
        positions = (length[slots].unsqueeze(1) + offset + counted(2)).flatten()
        assert torch.equal(drawn.ids_T, sample(logits, positions, rows.take(slots.repeat_interleave(2))))
        assert not space.scratch.arrived_T.any()


def test_chunks_of_a_row_are_merged():
    logits, slots = random_logits(6, 4096 + 700), counted(6)
    logits[3] = 1.5  # ties across chunks go to the lowest id
    logits[4, 4700] = logits[4, 100] = 60.0
    for kind in ("greedy", "temperature"):
        rows = rows_of(6, seeds=True, **SETTINGS[kind])
        drawn = draw(logits, slots, slots, rows, SampleSpace(6, logits.shape[1], DEVICE, chunk_size=1024))
        assert torch.equal(drawn.ids_T, sample(logits, slots, rows))


@pytest.mark.slow
def test_programs_of_a_row_meet():
    """With filters the programs of a row wait for one another."""
    logits, length = random_logits(3), counted(3) * 7
    rows = rows_of(3, seeds=True, top_k=50, top_p=0.9)
    logits[2] = (logits[2] * 2).round() / 2
    drawn = shared_launch(SampleSpace(3, V, DEVICE, chunk_size=256), draw, logits, counted(3), length, rows)
    assert torch.equal(drawn.ids_T, sample(logits, length, rows))


def test_a_row_alone_draws_what_it_draws_in_a_crowd():
    logits, space = random_logits(6), SampleSpace(6, V, DEVICE, chunk_size=1024)
    rows = rows_of(6, seeds=True, top_k=50, top_p=0.9)
    together = draw(logits, counted(6), counted(6), rows, space, num_top_S=torch.full_like(counted(6), 3))
    ids, logprobs = together.ids_T.clone(), together.logprobs_T.clone()
    for row in range(6):
        one = draw(logits[row : row + 1], counted(row, row + 1), counted(6), rows, space, num_top_S=counted(6))
        assert one.ids_T[0] == ids[row]
        assert one.logprobs_T[0] == logprobs[row]


def test_logprobs_are_of_the_raw_logits():
    logits, rows = random_logits(8, 5000), rows_of(8, seeds=True, temperature=1.6, top_k=1)
    space = SampleSpace(8, 5000, DEVICE, chunk_size=8192)
    space.drawn.top_ids_TN.fill_(-7)
    num_top = torch.tensor([0, 1, 2, 3, 5, 8, 13, 20], device=DEVICE)
    drawn = draw(logits, counted(8), counted(8), rows, space, num_top_S=num_top)
    expected = logits.log_softmax(-1)
    top = expected.topk(20)
    torch.testing.assert_close(drawn.logprobs_T, expected.gather(1, drawn.ids_T.unsqueeze(1))[:, 0])
    for row, count in enumerate(num_top.tolist()):
        torch.testing.assert_close(drawn.top_logprobs_TN[row, :count], top.values[row, :count])
        assert torch.equal(drawn.top_ids_TN[row, :count], top.indices[row, :count])
        assert (drawn.top_ids_TN[row, count:] == -7).all()


def test_equal_logits_are_ranked_by_id():
    space = SampleSpace(1, 3000, DEVICE, chunk_size=1024)
    drawn = draw(
        torch.zeros(1, 3000, device=DEVICE), counted(1), counted(1), rows_of(1), space, num_top_S=counted(5, 6)
    )
    assert drawn.top_ids_TN[0, :5].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("kind", "value"), [("greedy", float("nan")), ("temperature", float("inf")), ("all", float("-inf"))]
)
def test_rows_that_are_not_finite_fail_alone(value, kind):
    logits = random_logits(3)
    logits[1, 577] = value
    space, none = SampleSpace(3, V, DEVICE, chunk_size=1024), torch.zeros_like(counted(3))
    drawn = draw(logits, counted(3), counted(3), rows_of(3, **SETTINGS[kind]), space, num_top_S=none)
    assert drawn.failed_T.tolist() == [0, NOT_FINITE, 0]
    assert (drawn.ids_T >= 0).all() and (drawn.ids_T < V).all()


@pytest.mark.parametrize("kind", ["greedy", "temperature", "all"])
def test_masks_keep_what_they_name_or_fail_the_row(kind):
    logits, allowed = random_logits(4), torch.zeros(3, V, dtype=torch.bool)
    allowed[0, [5, 31, 32, 599]] = True
    allowed[2, 64:300] = True
    bits = torch.nn.functional.pad(allowed, (0, -V % 32)).view(3, -1, 32).long() << torch.arange(32)
    masks = Masks(bits.sum(2).to(torch.int32).to(DEVICE), torch.tensor([2, -1, 0, 1], device=DEVICE))
    rows, space = rows_of(4, seeds=True, **SETTINGS[kind]), SampleSpace(4, V, DEVICE, chunk_size=1024)
    none = torch.zeros_like(counted(4))
    drawn = draw(logits, counted(4), counted(4), rows, space, masks=masks, num_top_S=none)
    assert drawn.failed_T.tolist() == [0, 0, 0, NO_TOKEN_LEFT]
    hidden = torch.stack((allowed[2], torch.ones(V, dtype=torch.bool), allowed[0])).to(DEVICE).logical_not()
    expected = sample(logits[:3].masked_fill(hidden, -torch.inf), counted(3), rows.take(counted(3)))
    assert torch.equal(drawn.ids_T[:3], expected)


def test_dead_rows_are_left_out():
    logits, live = random_logits(4), torch.tensor([True, False, True, False], device=DEVICE)
    logits[1] = float("nan")
    space, none = SampleSpace(4, V, DEVICE, chunk_size=256), torch.zeros_like(counted(4))
    rows = rows_of(4, temperature=0.0)
    drawn = draw(logits, counted(4), counted(4), rows, space, live_T=live, num_top_S=none)
    assert drawn.ids_T.tolist() == [logits[0].argmax(), 0, logits[2].argmax(), 0]
    assert drawn.failed_T.tolist() == [0, 0, 0, 0]


def test_a_draft_vocabulary_shares_the_noise_of_its_target_ids():
    target_ids = torch.randperm(V, generator=torch.Generator().manual_seed(2))[:90].sort().values.to(DEVICE)
    scores = random_logits(20, 90)
    whole = torch.full((20, V), -torch.inf, device=DEVICE)
    whole[:, target_ids] = scores
    rows, space = rows_of(20, seeds=True), SampleSpace(20, 90, DEVICE, chunk_size=128)
    drafts = torch.full((20, 3), -1, device=DEVICE)
    draw(scores, counted(20), counted(20), rows, space, target_ids_V=target_ids, ids_T=drafts[:, 1])
    assert (drafts[:, ::2] == -1).all()
    drafted = drafts[:, 1]
    target = draw(whole, counted(20), counted(20), rows, SampleSpace(20, V, DEVICE, chunk_size=1024)).ids_T
    assert torch.equal(drafted, target)
    assert torch.equal(drafted, target_ids[sample(scores, counted(20), rows, target_ids_V=target_ids)])


@given(st.integers(0, 2**62), st.integers(0, 15), st.integers(0, 2**17))
@settings(max_examples=10, deadline=None)
def test_any_seed_choice_and_position(seed, choice, position):
    logits = random_logits(2, 64)
    rows = rows_of(2)._replace(
        seed=torch.tensor([seed, 3], device=DEVICE), choice=torch.tensor([choice, 1], device=DEVICE)
    )
    length = torch.tensor([position, 9], device=DEVICE)
    drawn = draw(logits, counted(2), length, rows, SampleSpace(2, 64, DEVICE, chunk_size=64))
    assert torch.equal(drawn.ids_T, sample(logits, length, rows))

"""Sampled tokens against the softmax, filters against transformers' warpers."""

import pytest
import scipy
import torch
import transformers

from eyas.kernels.reference.rounds.sample import SamplingRows, filter_scores, sample

FILTERS = {
    "none": {},
    "temperature": {"temperature": 1.7},
    "top_k": {"top_k": 4},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.15},
    "all": {"temperature": 0.8, "top_k": 7, "top_p": 0.9, "min_p": 0.1},
}


def rows_of(num_rows, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, choice=0):
    def full(value, dtype=torch.int64):
        return torch.full((num_rows,), value, dtype=dtype)

    return SamplingRows(
        temperature=full(temperature, torch.float32),
        top_k=full(top_k),
        top_p=full(top_p, torch.float32),
        min_p=full(min_p, torch.float32),
        seed=full(seed),
        choice=full(choice),
        any_random=temperature > 0,
        any_filter=top_k > 0 or top_p < 1 or min_p > 0,
    )


def warped(scores, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    scores = scores / temperature
    for wanted, warper in (
        (top_k > 0, lambda: transformers.TopKLogitsWarper(top_k)),
        (top_p < 1, lambda: transformers.TopPLogitsWarper(top_p)),
    ):
        scores = warper()(None, scores) if wanted else scores
    return transformers.MinPLogitsWarper(min_p)(None, scores) if min_p else scores


@pytest.mark.parametrize("name", FILTERS)
def test_filters_are_those_of_transformers(name):
    settings = FILTERS[name]
    scores = torch.randn(200, 50, generator=torch.Generator().manual_seed(1)) * 2
    rows = rows_of(200, **settings)
    ours = filter_scores(scores / settings.get("temperature", 1), rows.top_k, rows.top_p, rows.min_p)
    assert torch.equal(ours, warped(scores, **settings))


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("keyed_by", ["position", "seed", "choice"])
def test_the_sampled_distribution_is_the_softmax(name, keyed_by):
    """Chi-square over 20,000 draws that differ in position, seed or choice alone."""
    num_draws = 20_000
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(2)) * 1.5
    rows, positions = rows_of(num_draws, **FILTERS[name]), torch.full((num_draws,), 5)
    if keyed_by == "position":
        positions = torch.arange(num_draws)
    else:
        rows = rows._replace(**{keyed_by: torch.arange(num_draws)})
    drawn = sample(logits.expand(num_draws, -1), positions, rows)
    expected = warped(logits, **FILTERS[name]).softmax(-1)[0].double() * num_draws
    observed = torch.bincount(drawn, minlength=12).double()
    kept = expected > 0
    assert observed[~kept].sum() == 0
    scaled = expected[kept] * (num_draws / expected[kept].sum())
    assert scipy.stats.chisquare(observed[kept].numpy(), scaled.numpy()).pvalue > 1e-3


@pytest.mark.slow
def test_flat_logits_at_the_real_vocabulary_are_uniform():
    """Chi-square by id range, and the same over the parity of the lane in the generator's block."""
    vocab_size, num_draws, batch = 201_088, 768, 32
    drawn = []
    for start in range(0, num_draws, batch):
        flat = torch.zeros(1, vocab_size).expand(batch, -1)
        drawn.append(sample(flat, torch.arange(start, start + batch), rows_of(batch, seed=7)))
    drawn = torch.cat(drawn)
    for buckets in (drawn * 16 // vocab_size, drawn % 4):
        counts = torch.bincount(buckets)
        assert scipy.stats.chisquare(counts.numpy()).pvalue > 1e-3
    assert drawn.unique().numel() > 0.99 * num_draws


def test_greedy_rows_beside_random_ones_are_plain_argmax():
    logits = torch.randn(6, 40, generator=torch.Generator().manual_seed(3))
    rows = rows_of(6, temperature=1.0)._replace(temperature=torch.tensor([0.0, 1.0] * 3))
    drawn = sample(logits, torch.arange(6), rows)
    assert torch.equal(drawn[::2], logits[::2].argmax(-1))
    assert torch.equal(sample(logits, torch.arange(6), rows_of(6, temperature=0.0)), logits.argmax(-1))


def test_a_row_alone_draws_what_it_draws_in_a_crowd():
    logits = torch.randn(9, 300, generator=torch.Generator().manual_seed(4)) * 3
    rows, positions = rows_of(9, temperature=1.0, top_k=50, top_p=0.9), torch.arange(9) + 3
    together = sample(logits, positions, rows)
    for row in range(9):
        alone = torch.tensor([row])
        assert sample(logits[alone], positions[alone], rows.take(alone)).item() == together[row]


def test_a_draft_vocabulary_shares_the_noise_of_its_target_ids():
    """With equal scores on the draft's ids and nothing elsewhere, drafter and target draw the same token."""
    target_ids = torch.tensor([2, 3, 17, 40, 41, 99])
    scores = torch.randn(500, 6, generator=torch.Generator().manual_seed(5))
    whole = torch.full((500, 100), float("-inf"))
    whole[:, target_ids] = scores
    rows, positions = rows_of(500), torch.arange(500)
    drafted = target_ids[sample(scores, positions, rows, target_ids_V=target_ids)]
    assert torch.equal(drafted, sample(whole, positions, rows))

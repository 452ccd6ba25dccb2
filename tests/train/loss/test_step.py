"""Loss and gradients of a batch against the reference trainer, which keeps every logit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.training import (
    VARIANTS,
    head_config,
    new_head,
    packed,
    reference_batch,
    reference_of,
    states_for,
)

from eyas.train.heads.base import Share
from eyas.train.loss.kinds import LossSettings
from eyas.train.loss.step import accumulate, prepare
from eyas.train.loss.tiles import TiledLoss, normalisers
from eyas.train.reference import training_time_test

DECAY = 0.8


def gradients_of(head):
    return {name: p.grad.clone() for name, p in head.named_parameters() if p.grad is not None}


def step(head, batch, states, teacher, *, tile=512, kind="kl", rule="loose", compat="none", shares=1):
    """Loss, sums and gradients of a batch, the sum over `shares` processes with normalisers of all."""
    head.zero_grad()
    loss = TiledLoss(head.readout, teacher, LossSettings(kind=kind), tile=tile)
    parts = [Share(i, shares) for i in range(shares)]
    ready = [prepare(head, loss, batch, states, rule=rule, share=part) for part in parts]
    by = normalisers(sum(x.trained_J for x in ready), batch.num_tokens, compat)
    all_sums = [
        accumulate(head, loss, batch, states, teacher, x, normalisers_J=by, rule=rule, share=part, decay=DECAY)
        for x, part in zip(ready, parts, strict=True)
    ]
    sums = all_sums[0]
    for other in all_sums[1:]:
        sums = sums + other
    return sums.loss(by, DECAY), sums, gradients_of(head)


def expected(head, batch, states, teacher):
    reference = reference_of(head)
    result = training_time_test(
        reference, reference_batch(batch, states, teacher, head.embed_VH), num_steps=head.num_depths, decay=DECAY
    )
    result.loss.backward()
    return result, gradients_of(reference)


def assert_equal_gradients(found, wanted, tolerance=1e-10):
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert (found[name] - gradient).abs().max() <= tolerance * max(1, gradient.abs().max()), name


def assert_as_the_reference(head, batch, states, teacher, **options):
    result, gradients = expected(head, batch, states, teacher)
    loss, sums, found = step(head, batch, states, teacher, **options)
    assert abs(loss - result.loss) < 1e-10
    assert_equal_gradients(found, gradients)
    assert sums.counted_J.tolist() == result.counted_JBT.sum((1, 2)).tolist()
    assert sums.hits_J.tolist() == (result.hits_JBT & result.counted_JBT).sum((1, 2)).tolist()
    overlap = (result.overlap_JBT * result.counted_JBT).sum((1, 2))
    torch.testing.assert_close(sums.overlap_J, overlap, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_the_reference_for_every_option_of_a_head(variant):
    config = head_config(**VARIANTS[variant])
    batch = packed((9, 1, 14, 2, 7))
    states, teacher = states_for(config, batch)
    head = new_head(config, num_depths=4, rows_of_pass=5, rows_of_keys=6)
    assert_as_the_reference(head, batch, states, teacher, tile=3)


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    seed=st.integers(0, 1000),
    given_share=st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0]),
    num_depths=st.integers(1, 5),
    sizes=st.tuples(*[st.integers(1, 60)] * 3),
    variant=st.sampled_from(list(VARIANTS)),
)
def test_equals_the_reference_in_tiles_and_passes_of_any_size(lengths, seed, given_share, num_depths, sizes, variant):
    config = head_config(**VARIANTS[variant])
    batch = packed(lengths, seed=seed, given=given_share)
    states, teacher = states_for(config, batch, seed=seed)
    head = new_head(config, seed=seed, num_depths=num_depths, rows_of_pass=sizes[0], rows_of_keys=sizes[1])
    if not any(len(x.rows_N) for x in head.cells(batch, rule="loose")):
        loss, _, found = step(head, batch, states, teacher, tile=sizes[2])
        assert loss == 0 and not found
        return
    assert_as_the_reference(head, batch, states, teacher, tile=sizes[2])

"""Loss and gradients of a batch against the reference trainer, which keeps every logit."""

import itertools
from dataclasses import replace

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

from eyas.model.networks import rope
from eyas.train.heads.base import Share
from eyas.train.loss.kinds import LossSettings
from eyas.train.loss.step import accumulate, prepare
from eyas.train.loss.tiles import TiledLoss, normalisers
from eyas.train.reference import ReferenceHead, TttBatch, training_time_test

DECAY = 0.8


def gradients_of(head):
    return {name: p.grad.clone() for name, p in head.named_parameters() if p.grad is not None}


def step(head, batch, states, teacher, *, tile=512, kind="kl", rule="loose", compat="none", shares=1, **lk):
    """Loss, sums and gradients of a batch, the sum over `shares` processes with normalisers of all."""
    head.zero_grad()
    loss = TiledLoss(head.readout, teacher, LossSettings(kind=kind, **lk), tile=tile)
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


def test_equals_the_reference_on_packed_rows(monkeypatch):
    """The reference counts positions along the packed row; rotation sees differences only, exact with exact tables."""

    def exact_table(config, head_dim, num_positions, device):
        angles = torch.outer(torch.arange(num_positions).double(), rope.inverse_frequencies(config, head_dim))
        return angles.cos(), angles.sin()

    monkeypatch.setattr("eyas.train.reference.rope_table", exact_table)
    monkeypatch.setattr("eyas.train.heads.eagle3.rope_table", exact_table)
    config = head_config()
    batch = packed((9, 1, 14, 2, 7))
    states, teacher = states_for(config, batch)
    head = new_head(config, rows_of_pass=7)
    reference = reference_of(head)
    row = TttBatch(
        tokens_BT=batch.ids_T[None],
        taps_BTC=states.taps_TC[None],
        embedded_BTH=teacher.embed_VH[batch.ids_T][None],
        target_logits_BTV=(states.last_TH @ teacher.lm_head_VH.T)[None],
        generated_BT=(batch.runs_T >= 0)[None],
        documents_BT=batch.documents_T[None],
    )
    result = training_time_test(reference, row, num_steps=3, decay=DECAY)
    result.loss.backward()
    loss, _, found = step(head, batch, states, teacher, tile=4)
    assert abs(loss - result.loss) < 1e-10
    assert_equal_gradients(found, gradients_of(reference))


class Recording(ReferenceHead):
    """Keeps the logits of every depth."""

    def logits(self, hidden_BTH):
        self.seen.append(super().logits(hidden_BTH))
        return self.seen[-1]


def plain_loss(kind, logits, target_logits, ids, lk):
    """The loss of one cell as its formula says, for autograd."""
    q = logits.softmax(-1)
    alpha = torch.minimum(target_logits.softmax(-1)[ids], q).sum()
    kl = -(target_logits[ids].softmax(-1) * logits.log_softmax(-1)).sum()
    match kind:
        case "kl":
            return kl
        case "tv":
            return 1 - alpha
        case "hard":
            return -logits.log_softmax(-1)[(ids == target_logits.argmax()).nonzero()[0, 0]]
    if lk["lk"] == "alpha":
        return -alpha.log()
    weight = (lk["kl_scale"] * torch.exp(-lk["kl_decay"] * alpha)).detach()
    return weight * kl + (1 - weight) * (1 - alpha)


KINDS = [
    ("kl", {}),
    ("tv", {}),
    ("hard", {}),
    ("lk", {"lk": "alpha"}),
    ("lk", {"lk": "lambda", "kl_scale": 0.9, "kl_decay": 2.0}),
]


@pytest.mark.parametrize("rule", ["loose", "faithful"])
@pytest.mark.parametrize("compat", ["none", "specforge"])
@pytest.mark.parametrize(("kind", "lk"), KINDS)
def test_every_kind_rule_and_normaliser_equals_plain_loops_over_cells(kind, lk, compat, rule):
    config = head_config()
    batch = packed((9, 4, 13), given=0.25, seed=1)
    states, teacher = states_for(config, batch)
    states = states._replace(last_TH=states.last_TH / 3)
    head = new_head(config, rows_of_pass=6)
    reference = Recording(config, head.target_ids_V).double()
    reference.load_state_dict(head.state_dict())
    reference.seen = []
    training_time_test(reference, reference_batch(batch, states, teacher), num_steps=3)
    targets = states.last_TH @ teacher.lm_head_VH.T
    runs = batch.runs_T.tolist()
    wanted = 0
    for depth, logits in enumerate(reference.seen):
        losses = []
        for document, (start, stop) in enumerate(itertools.pairwise(batch.starts)):
            for row in range(start, stop - 2 - depth):
                known, predicted = row + 1, row + 2 + depth
                taught = runs[predicted] >= 0 and (rule == "loose" or runs[predicted] == runs[known])
                if taught and targets[predicted - 1].argmax() in head.target_ids_V:
                    cell = logits[document, row - start]
                    losses.append(plain_loss(kind, cell, targets[predicted - 1], head.target_ids_V, lk))
        wanted = wanted + DECAY**depth * sum(losses) / (batch.num_tokens if compat == "specforge" else len(losses))
    wanted.backward()
    loss, _, found = step(head, batch, states, teacher, tile=5, kind=kind, compat=compat, rule=rule, **lk)
    assert abs(loss - wanted) < 1e-10
    assert_equal_gradients(found, gradients_of(reference))


@pytest.mark.parametrize("shares", [2, 3, 40])
def test_shares_of_the_rows_sum_to_the_whole(shares):
    config = head_config(fc_norm=True, norm_output=True)
    batch = packed((9, 3, 17))
    states, teacher = states_for(config, batch)
    head = new_head(config, num_depths=4, rows_of_pass=4)
    loss, sums, gradients = step(head, batch, states, teacher, tile=4)
    shared_loss, shared_sums, found = step(head, batch, states, teacher, tile=4, shares=shares)
    assert abs(loss - shared_loss) < 1e-12
    assert_equal_gradients(found, gradients, 1e-12)
    assert sums.counted_J.tolist() == shared_sums.counted_J.tolist()
    assert sums.hits_J.tolist() == shared_sums.hits_J.tolist()


@pytest.mark.parametrize("kind", ["kl", "lk", "tv", "hard"])
def test_no_bit_depends_on_the_teacher_where_a_given_token_follows(kind):
    """Tokens of tools, users and developers are given: what the target says of them must teach nothing."""
    config = head_config()
    batch = packed((21, 12, 16), given=0.5, seed=2)
    states, teacher = states_for(config, batch)
    head = new_head(config, num_depths=4)
    before = step(head, batch, states, teacher, tile=5, kind=kind)
    teaches = torch.cat((batch.runs_T[1:] >= 0, torch.tensor([False])))
    assert 5 < (~teaches).sum() < batch.num_tokens - 5
    last = states.last_TH.clone()
    last[~teaches] = torch.nan
    after = step(head, batch, states._replace(last_TH=last), teacher, tile=5, kind=kind)
    assert torch.equal(before[0], after[0])
    assert all(torch.equal(a, b) for a, b in zip(before[2].values(), after[2].values(), strict=True))
    taught = states.last_TH.clone()
    taught[teaches.nonzero()[3]] *= 1.01  # and the test sees a change where there should be one
    moved = step(head, batch, states._replace(last_TH=taught), teacher, tile=5, kind="kl")
    assert moved[0] != step(head, batch, states, teacher, tile=5, kind="kl")[0]


def test_labels_alone_teach_what_the_states_teach_where_the_loss_is_hard():
    config = head_config()
    batch = packed((21, 12))
    states, teacher = states_for(config, batch)
    head = new_head(config)
    best = (states.last_TH @ teacher.lm_head_VH.T).argmax(-1)
    labels = states._replace(last_TH=None, best_T=best)
    loss, sums, gradients = step(head, batch, states, teacher, kind="hard")
    label_loss, label_sums, found = step(head, batch, labels, teacher, kind="hard")
    assert torch.equal(loss, label_loss)
    assert all(torch.equal(found[name], gradients[name]) for name in gradients)
    assert torch.equal(sums.hits_J, label_sums.hits_J) and label_sums.overlap_J.isnan().all()
    with pytest.raises(ValueError, match="kl needs"):
        step(head, batch, labels, teacher, kind="kl")


def test_sums_without_normalisers_are_those_of_training_and_leave_no_gradient():
    config = head_config()
    batch = packed((21, 12))
    states, teacher = states_for(config, batch)
    head = new_head(config, rows_of_pass=5)
    _, sums, _ = step(head, batch, states, teacher)
    head.zero_grad()
    loss = TiledLoss(head.readout, teacher, LossSettings())
    ready = prepare(head, loss, batch, states, rule="loose")
    seen = accumulate(head, loss, batch, states, teacher, ready, normalisers_J=None, rule="loose", decay=DECAY)
    assert all(torch.equal(getattr(seen, name), getattr(sums, name)) for name in type(sums).__slots__)
    assert all(p.grad is None for p in head.parameters())


def test_gradients_add_to_those_that_are_there():
    """Micro-batches: two halves with the normalisers of both are the whole."""
    config = head_config()
    batch = packed((12, 12))
    states, teacher = states_for(config, batch)
    head = new_head(config)
    by = step(head, batch, states, teacher)[1].trained_J.double()
    whole = step(head, batch, states, teacher)[2]
    head.zero_grad()
    loss = TiledLoss(head.readout, teacher, LossSettings())
    for half in (slice(0, 12), slice(12, 24)):
        names = ("ids_T", "runs_T", "segments_T", "positions_T")
        cut = {name: getattr(batch, name)[half] for name in names}
        one = replace(batch, **cut, documents_T=torch.zeros(12, dtype=torch.int64), starts=(0, 12), sources=("half",))
        some = states._replace(taps_TC=states.taps_TC[half], last_TH=states.last_TH[half])
        ready = prepare(head, loss, one, some, rule="loose")
        accumulate(head, loss, one, some, teacher, ready, normalisers_J=by, rule="loose", decay=DECAY)
    assert_equal_gradients(gradients_of(head), whole, 1e-12)

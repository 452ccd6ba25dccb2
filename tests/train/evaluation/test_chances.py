"""Chances of acceptance: the closed form against draws with the engine's noise, and against plain loops."""

import dataclasses

import pytest
import torch
from tests.train.support.texts import batch_of_texts
from torch.utils._python_dispatch import TorchDispatchMode

from eyas.base.errors import UserError
from eyas.kernels.reference.rounds.noise import gumbel
from eyas.model.making.presets import PRESETS, default_head
from eyas.train.evaluation.chances import accepted_chances, coupled_chance
from eyas.train.heads.eagle3 import Eagle3TrainableHead
from eyas.train.reference import ReferenceHead, TttBatch, training_time_test
from eyas.train.types import States, Teacher

DRAFT_IDS = torch.tensor([0, 2, 3, 5, 6, 9, 11])
VOCAB = 12


def logits(seed, scale=1.5):
    generator = torch.Generator().manual_seed(seed)
    target = scale * torch.randn(VOCAB, generator=generator, dtype=torch.float64)
    draft = target[DRAFT_IDS] + torch.randn(len(DRAFT_IDS), generator=generator, dtype=torch.float64)
    return target, draft


def chances_of_all(target, draft):
    return coupled_chance(target.expand(VOCAB, -1), draft.expand(VOCAB, -1), torch.arange(VOCAB), DRAFT_IDS)


def within_errors(found, expected, draws, errors=4.5):
    error = (expected * (1 - expected) / draws).sqrt()
    return bool(((found - expected).abs() <= errors * error + 1e-12).all())


@pytest.mark.parametrize("seed", range(3))
def test_chance_is_that_of_noise_drawn_given_the_token(seed):
    """Noise is drawn top-down given the target's token (Maddison, Tarlow, Minka: "A* sampling", 2014)."""
    target, draft = logits(seed)
    draws, generator = 100_000, torch.Generator().manual_seed(seed)

    def standard(*shape):
        return -(-torch.rand(shape, generator=generator, dtype=torch.float64).clamp(min=1e-300).log()).log()

    found = torch.zeros(VOCAB, dtype=torch.float64)
    for token in range(VOCAB):
        top = target.logsumexp(0) + standard(draws, 1)
        others = -((-top).exp() + (-(target + standard(draws, VOCAB))).exp()).log()  # below the top
        others[:, token] = top[:, 0]
        noise = others - target
        found[token] = (DRAFT_IDS[(draft + noise[:, DRAFT_IDS]).argmax(-1)] == token).double().mean()
    expected = chances_of_all(target, draft)
    assert within_errors(found, expected, draws)
    assert expected[[1, 4, 7, 8, 10]].eq(0).all() and expected[DRAFT_IDS].gt(0).all()


@pytest.mark.parametrize("seed", range(3))
def test_chance_is_that_of_the_engines_noise(seed):
    target, draft = logits(seed)
    draws = 100_000
    positions = torch.arange(draws)
    noise = gumbel(torch.full_like(positions, seed), torch.zeros_like(positions), positions, vocab_size=VOCAB)
    token = (target + noise).argmax(-1)
    same = DRAFT_IDS[(draft + noise[:, DRAFT_IDS]).argmax(-1)] == token
    seen = torch.bincount(token, minlength=VOCAB)
    agreed = torch.bincount(token[same], minlength=VOCAB)
    assert within_errors(agreed / seen, chances_of_all(target, draft), seen)


def test_chances_sum_to_the_formula_of_the_coupling():
    target, draft = logits(7)
    p, q = target.softmax(0), torch.zeros(VOCAB, dtype=torch.float64)
    q[DRAFT_IDS] = draft.softmax(0)
    whole = sum(1 / torch.maximum(p / p[i], q / q[i]).sum() for i in DRAFT_IDS)
    torch.testing.assert_close((p * chances_of_all(target, draft)).sum(), whole, rtol=1e-12, atol=0)


def test_extreme_logits_have_chances():
    target = torch.tensor([[0.0, -2000.0, -3.0], [0.0, 2000.0, 0.0]])
    draft = torch.tensor([[-3000.0, 0.0, 0.0], [0.0, 4000.0, 0.0]])
    found = coupled_chance(target, draft, torch.tensor([0, 1]), torch.arange(3))
    assert found.tolist() == [0.0, 1.0]


# -- whole batches ----------------------------------------------------------------------------------------------------

TARGET = dataclasses.replace(PRESETS["tiny"], vocab_size=160)
DEPTHS = 4


def example(seed=0):
    """A head, a batch of two documents, states, the frozen matrices, and the outcome of the reference trainer."""
    config = default_head(TARGET, draft_vocab_size=96, intermediate_size=64)
    torch.manual_seed(seed)
    ids = torch.randperm(TARGET.vocab_size)[: config.draft_vocab_size].sort().values
    head = Eagle3TrainableHead(config, ids, num_depths=DEPTHS).double()
    runs = [[-1] * 5 + [0] * 14 + [-1] * 3 + [1] * 6, [-1] * 2 + [0] * 20]
    texts = [(torch.randint(0, TARGET.vocab_size, (len(run),)), run, [3 * (x >= 0) for x in run]) for run in runs]
    batch = batch_of_texts(texts)
    size = batch.num_tokens
    states = States(
        torch.randn(size, 3 * config.target_hidden_size, dtype=torch.float64),
        torch.randn(size, config.hidden_size, dtype=torch.float64),
    )
    shape = (TARGET.vocab_size, config.hidden_size)
    teacher = Teacher(*(torch.randn(shape, dtype=torch.float64) for _ in range(2)))
    # A head that is right now and then: its lm_head is the target's, and its last layers do little.
    with torch.no_grad():
        head.lm_head.weight.copy_(teacher.lm_head_VH[ids] / 4)
    return head, batch, states, teacher


def chances(head, batch, states, teacher, *, temperature=1.0, tile=8):
    with torch.no_grad():
        return accepted_chances(
            head.passes(batch, states, teacher, rule="faithful"),
            head.readout,
            batch,
            states,
            teacher,
            num_depths=DEPTHS,
            temperature=temperature,
            tile=tile,
        )


class Recording(ReferenceHead):
    def logits(self, hidden_BTH):
        self.seen.append(super().logits(hidden_BTH))
        return self.seen[-1]


def reference(head, batch, states, teacher):
    plain = Recording(head.config, head.target_ids_V).double()
    plain.load_state_dict(head.state_dict())
    plain.seen = []
    made = TttBatch(
        tokens_BT=batch.ids_T[None],
        taps_BTC=states.taps_TC[None],
        embedded_BTH=teacher.embed_VH[batch.ids_T][None],
        target_logits_BTV=(states.last_TH @ teacher.lm_head_VH.T)[None],
        generated_BT=(batch.runs_T >= 0)[None],
        documents_BT=batch.documents_T[None],
    )
    with torch.no_grad():
        return training_time_test(plain, made, num_steps=DEPTHS), plain.seen, made.target_logits_BTV[0]


@pytest.mark.parametrize("tile", [1, 5, 1000])
def test_chances_of_a_batch_are_those_of_a_plain_loop(tile):
    head, batch, states, teacher = example()
    found = chances(head, batch, states, teacher, temperature=0.7, tile=tile)
    ttt, draft_logits, target_logits = reference(head, batch, states, teacher)
    ids = head.target_ids_V
    num_checked = 0
    for depth in range(DEPTHS):
        for known in range(batch.num_tokens):
            at = known + 1 + depth
            inside = at < batch.num_tokens and batch.runs_T[known] >= 0
            inside = inside and bool((batch.runs_T[known:at] == batch.runs_T[at]).all())
            inside = inside and bool(batch.documents_T[known] == batch.documents_T[at])
            if not inside:
                assert [x[depth, known] for x in found] == [0, 0, 0]
                continue
            row, token = known - 1, int(batch.ids_T[at])
            guess = int(ids[draft_logits[depth][0, row].argmax()])
            assert found.text_JT[depth, known] == (guess == token)
            assert found.target_JT[depth, known] == bool(ttt.hits_JBT[depth, 0, row])
            p = (target_logits[at - 1] / 0.7).softmax(0)
            q = torch.zeros_like(p)
            q[ids] = (draft_logits[depth][0, row] / 0.7).softmax(0)
            expected = float(1 / torch.maximum(p, q * p[token] / q[token]).sum()) if q[token] else 0.0
            assert found.sampled_JT[depth, known] == pytest.approx(expected, rel=1e-6)  # rotary tables are fp32
            num_checked += 1
    assert num_checked == sum(max(0, n - 1 - j) for n in (14, 6, 20) for j in range(DEPTHS))
    assert found.target_JT.any()


def test_no_distribution_of_a_whole_batch_exists():
    head, batch, states, teacher = example()

    class Widest(TorchDispatchMode):
        rows = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            is_table = isinstance(out, torch.Tensor) and out.ndim == 2 and out.shape[1] in (TARGET.vocab_size, 96)
            if is_table and out.shape[0] not in (64, 96):  # matrices and their transposes
                Widest.rows = max(Widest.rows, out.shape[0])
            return out

    with Widest():
        chances(head, batch, states, teacher, tile=5)
    assert Widest.rows == 5


def test_labels_alone_are_enough_at_temperature_0():
    head, batch, states, teacher = example()
    whole = chances(head, batch, states, teacher)
    labels = States(states.taps_TC, None, (states.last_TH @ teacher.lm_head_VH.T).argmax(-1))
    found = chances(head, batch, labels, teacher, temperature=None)
    assert found.sampled_JT is None
    assert (found.text_JT == whole.text_JT).all() and (found.target_JT == whole.target_JT).all()
    with pytest.raises(UserError, match="evaluate at temperature 0"):
        chances(head, batch, labels, teacher)

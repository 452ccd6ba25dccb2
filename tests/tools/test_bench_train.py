"""The study of training: its controls are what they say, its statistics compare the same seeds and prompts."""

import json
from types import SimpleNamespace

import pytest
import torch
from tests.train.support.texts import batch_of_texts

import bench_train as study
from eyas.train.evaluation.tally import Tally
from eyas.train.types import Segment, States, Teacher

DRAFTS = 3


class Target:
    """A target with random states; it is certain of the tokens that `batch` holds where `sure`."""

    config, taps, fingerprint, labels_only = None, (1,), "test", False

    def __init__(self, batch, *, vocab=40, sure=True):
        generator = torch.Generator().manual_seed(0)
        self.teacher = Teacher(torch.empty(0), torch.eye(vocab))
        last = torch.randn(batch.num_tokens, vocab, generator=generator)
        if sure:
            last.scatter_add_(1, batch.ids_T.roll(-1)[:, None], torch.full((batch.num_tokens, 1), 50.0))
        self.last_TH = last

    def states(self, batch):
        return States(torch.zeros(batch.num_tokens, 1), self.last_TH)


def batch_of_answers(*lengths, given=4):
    generator = torch.Generator().manual_seed(1)
    texts = []
    for length in lengths:
        ids = torch.randint(0, 40, (given + length,), generator=generator)
        runs = torch.tensor([-1] * given + [0] * length)
        texts.append((ids, runs, [Segment.GIVEN] * given + [Segment.FINAL] * length))
    return batch_of_texts(texts)


def lengths_of(batch, source, ids, temperature):
    sums = Tally(DRAFTS, float(temperature) or None)
    sums.add(batch, study.own_chances(batch, source, ids, DRAFTS, temperature), ids)
    reading = "sampled" if temperature else "text"
    return study.pairs_of(sums, reading, DRAFTS)


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_target_that_drafts_for_itself_loses_nothing_but_at_the_end(temperature):
    batch = batch_of_answers(13, 25)  # behind the first token of an answer, 12 and 24: whole rounds of 4
    found = lengths_of(batch, Target(batch), torch.arange(40), temperature)
    assert found == [pytest.approx((12, 3)), pytest.approx((24, 6))]


def test_its_draws_are_accepted_however_unlikely_they_are():
    """Draft and target are one distribution under one noise, so that also an unlikely token is a hit."""
    batch = batch_of_answers(13)
    assert lengths_of(batch, Target(batch, sure=False), torch.arange(40), 1) == [pytest.approx((12, 3))]
    tokens, rounds = lengths_of(batch, Target(batch, sure=False), torch.arange(40), 0)[0]
    assert tokens < 2 * rounds


def test_what_it_cannot_draft_is_a_miss():
    batch = batch_of_answers(200)
    ids = torch.arange(20)
    tokens, rounds = lengths_of(batch, Target(batch), ids, 0)[0]
    assert 1.2 < tokens / rounds < 2.6  # half of the tokens: 1 + 1/2 + 1/4 + 1/8


def test_the_shuffled_teacher_teaches_the_same_states_elsewhere():
    batch = batch_of_answers(20, 30)
    target = Target(batch)
    taps, last, best = study.ShuffledTeacher(target, 0).states(batch)
    teaches = torch.zeros(batch.num_tokens, dtype=torch.bool)
    teaches[:-1] = batch.runs_T[1:] >= 0
    assert torch.equal(last[~teaches], target.last_TH[~teaches]) and best is None and not taps.any()
    moved = (last[teaches] != target.last_TH[teaches]).any(1)
    assert moved.float().mean() > 0.8
    assert torch.equal(last[teaches].sum(1).sort().values, target.last_TH[teaches].sum(1).sort().values)


def results(tmp_path, **lengths):
    """Files of arms whose rounds commit `lengths` tokens, by seed."""
    for arm, by_seed in lengths.items():
        for seed, length in by_seed.items():
            pairs = [(length * rounds, rounds) for rounds in range(5, 25)]
            path = study.result_path(tmp_path, arm, seed)
            study.write(path, json.dumps({"arm": arm, "seed": seed, "pairs": {"0": pairs, "1": pairs}}))
    return study.read_results(tmp_path)


@pytest.mark.parametrize(("kl", "holds"), [(2.96, True), (2.94, False)])
def test_the_bar(tmp_path, kl, holds):
    found = results(tmp_path, kl={0: kl, 1: kl + 1}, hard={0: 3.0, 1: 4.0, 2: 9.0}, own={0: 4.5})
    figures = study.figures(found)
    assert figures["kl_over_hard_above_bar"] is holds
    assert figures["arms"]["kl"]["over_hard_t0"]["value"] == pytest.approx(kl - 3)  # seeds that both have
    assert figures["arms"]["kl"]["length_t1"]["value"] == pytest.approx(kl + 0.5)
    lines = study.report(found)
    assert [line.split()[0] for line in lines[2:5]] == ["kl", "hard", "own"]
    assert sum(("holds" if holds else "FAILS") in line for line in lines) == 2


def test_a_study_that_is_stopped_has_whole_seeds():
    work = list(study.order_of_work(("hard", "kl", "own"), 2))
    assert work == [(0, "own"), (0, "kl"), (0, "hard"), (1, "kl"), (1, "hard")]


def test_a_study_begins_no_run_that_would_end_too_late(tmp_path, monkeypatch, capsys):
    """Runs take 100 s: two of them fit into 5 minutes, and with what is kept in reserve no third one."""
    now, done = 0.0, []

    def run_arm(_, arm, seed):
        nonlocal now
        now += 100
        done.append((arm, seed))
        return {0: [(2.0, 1.0)], 1: [(2.0, 1.0)]}, {}

    shared = SimpleNamespace(found=SimpleNamespace(device=torch.device("cpu")), answers=[()], overrides=(), soften=1.0)
    shared.draft_tokens = DRAFTS
    monkeypatch.setattr(study, "prepare_study", lambda args: shared)
    monkeypatch.setattr(study, "run_arm", run_arm)
    certainty = {"mean_entropy_nats": 0.0, "share_above_0.99": 1.0, "share_below_0.5": 0.0}
    monkeypatch.setattr(study, "teacher_certainty", lambda _: certainty)
    monkeypatch.setattr(study, "time", SimpleNamespace(perf_counter=lambda: now))
    argv = ["bench_train.py", "--out", str(tmp_path), "--arms", "kl,hard", "--seeds", "2", "--minutes", "5"]
    monkeypatch.setattr("sys.argv", argv)
    study.main()
    assert done == [("kl", 0), ("hard", 0)] and "the time is up" in capsys.readouterr().out
    study.main()
    assert done[2:] == [("kl", 1), ("hard", 1)] and "the time is up" not in capsys.readouterr().out

"""`eyas train bench` on a small head: figures that fit each other, and memory as other counts have it."""

import json

import pytest
import torch
import torch.nn.functional as F

from eyas.bench.training.command import longest_that_fits
from eyas.bench.training.modes import Checkpoints, Ours, Plain
from eyas.bench.training.steps import open_bench
from eyas.cli import main

SETTINGS = """\
target: demo
head: {draft_vocab: 256, intermediate_size: 128, num_heads: 2, num_kv_heads: 1}
train: {depths: 3, tile: 64, chunk: 64}
"""


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(SETTINGS)
    return path


def bench(*args, capsys):
    assert main(["train", "bench", *map(str, args)]) == 0
    lines = capsys.readouterr().out.splitlines()
    return json.loads(lines[-1]), "\n".join(lines[:-1])


@pytest.mark.slow
def test_figures_fit_each_other(small, capsys):
    modes = ("ours", "checkpoints", "plain", "hard")
    found, text = bench(
        small, "--tokens", "192", "--supervised", "1,0.25", "--mode", ",".join(modes), "--repeats", "1", capsys=capsys
    )
    assert "SIMULATED" in text and found["simulated"] and found["depths"] == 3 and found["versions"]["torch"]
    assert [(one["tokens"], one["supervised"]) for one in found["results"]] == [(192, 1.0), (192, 0.25)]
    for one in found["results"]:
        ours, peaks = one["modes"]["ours"], {name: x["peak_bytes"] for name, x in one["modes"].items()}
        share = ours["supervised_tokens_per_s"]["median"] / ours["tokens_per_s"]["median"]
        assert share == pytest.approx(one["supervised"], rel=1e-3)
        assert peaks.keys() == set(modes)
        assert peaks["ours"] < peaks["checkpoints"] < peaks["plain"] and peaks["checkpoints"] < peaks["hard"]
        assert one["ours_over"]["plain"]["memory"] == pytest.approx(peaks["ours"] / peaks["plain"], abs=1e-3)
        assert min(one["parts_s"].values()) > 0 and min(one["flops"].values()) > 0
        owners = ours["bytes_by_owner"]
        assert owners["weights"] == owners["gradients"] and owners["optimiser"] >= 2 * owners["weights"]
        assert owners["states"] + owners["step"] == ours["peak_bytes"]
    whole, part = found["results"]
    assert part["modes"]["ours"]["peak_bytes"] < whole["modes"]["ours"]["peak_bytes"]  # no activations of other rows
    assert part["flops"]["attention"] < whole["flops"]["attention"] and part["flops"]["keys"] == whole["flops"]["keys"]


@pytest.mark.slow
def test_a_target_makes_the_states_in_every_step(small, capsys):
    found, _ = bench(
        small, "--tokens", "64", "--supervised", "1", "--mode", "ours", "--with-target", "--repeats", "1", capsys=capsys
    )
    (one,) = found["results"]
    assert one["parts_s"]["target"] > 1e-3 and one["modes"]["ours"]["bytes_by_owner"]["target"] > 0


def test_rows_of_a_random_target_stay_apart(small):
    """If all became alike, few experts would be read, and the most likely token could lie outside every cell's."""
    made, _ = open_bench(shape=None, file=small, device="cpu", with_target=True)
    batch = made.batch(192, 1.0)
    states = made.source(192).states(batch)
    unit_TH = F.normalize(states.last_TH.float(), dim=-1)
    assert (unit_TH @ unit_TH.T).mean() < 0.1
    assert made.weights.embed_VH.data_ptr() == made.teacher.embed_VH.data_ptr()  # once in memory


def test_supervised_tokens_lie_in_runs(small):
    made, _ = open_bench(shape=None, file=small, device="cpu")
    runs = made.batch(100, 0.2, 10).runs_T
    assert runs.unique(return_counts=True)[1].tolist() == [80, *[2] * 10] and runs[8:10].tolist() == [0, 0]
    assert made.batch(100, 0.3).runs_T.tolist() == [-1] * 70 + [0] * 30


def test_all_modes_learn_the_same(small):
    """The baselines are the same computation: equal gradients lead to equal weights after a step."""
    made, _ = open_bench(shape=None, file=small, device="cpu")
    modes = [mode(made, made.batch(64, 0.5), made.source(64)) for mode in (Ours, Checkpoints, Plain)]
    before = {name: p.clone() for name, p in modes[0].head.named_parameters()}
    for mode in modes:
        mode.step()
        mode.step()  # the warm-up begins at a learning rate above 0 by the second
    for other in modes[1:]:
        theirs = dict(other.head.named_parameters())
        for name, parameter in modes[0].head.named_parameters():
            assert not torch.equal(parameter, before[name])
            torch.testing.assert_close(parameter, theirs[name], atol=2e-5, rtol=1e-3)


def test_only_the_loss_of_the_baseline_is_compared(small, capsys):
    found, text = bench(small, "--tokens", "64", "--supervised", "1", "--loss", "hard", "--repeats", "1", capsys=capsys)
    assert "plain" in found["results"][0]["why_not"] and "plain not measured: kl of an EAGLE-3 head alone" in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--shape", "gpt-oss-7b"], "no shape 'gpt-oss-7b'"),
        (["--tokens", "8"], "at least 9 tokens"),
        (["--max-length", "4096", "--device", "cpu"], "eyas train plan"),
    ],
)
def test_wrong_use(args, message, capsys):
    assert main(["train", "bench", *args]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("largest", "found"), [(0, 0), (1024, 1024), (5000, 4096), (9_999, 9216), (10_000, 10_000)])
def test_the_longest_is_found(largest, found):
    tried = []

    def fits(length):
        tried.append(length)
        return length <= largest

    assert longest_that_fits(fits, 10_000, 1024) == found and len(tried) <= 5

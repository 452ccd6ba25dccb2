"""`eyas train bench` on a small head: figures that fit each other, and memory as other counts have it."""

import json

import pytest
import torch

from eyas.bench.training.command import longest_that_fits
from eyas.bench.training.steps import Autograd, Ours, open_bench
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
    found, text = bench(small, "--lengths", "96,192", "--supervised", "1,0.25", "--repeats", "1", capsys=capsys)
    assert "SIMULATED" in text and found["simulated"] and found["depths"] == 3 and found["versions"]["torch"]
    assert [(one["tokens"], one["supervised"]) for one in found["results"]] == [
        *((96, 1.0), (96, 0.25)),
        *((192, 1.0), (192, 0.25)),
    ]
    for one in found["results"]:
        ours = one["ours"]
        share = ours["supervised_tokens_per_s"]["median"] / ours["tokens_per_s"]["median"]
        assert share == pytest.approx(one["supervised"], rel=1e-3)
        assert sum(one["stages"].values()) == pytest.approx(1, abs=1e-3) and min(one["stages"].values()) > 0
        assert ours["peak_bytes"] < one["autograd"]["peak_bytes"]
        assert one["memory_ratio"] == pytest.approx(ours["peak_bytes"] / one["autograd"]["peak_bytes"], abs=1e-3)
    whole, part = (one["ours"]["peak_bytes"] for one in found["results"][2:])
    assert part < whole  # rows that are not taught cost no activations


def test_both_ways_learn_the_same(small):
    """The baseline is the same computation: equal gradients lead to equal weights after a step."""
    made, _ = open_bench(shape=None, file=small, device="cpu", depths=None, loss=None)
    ways = [way(made, *made.batch(64, 0.5)) for way in (Ours, Autograd)]
    before = {name: p.clone() for name, p in ways[0].head.named_parameters()}
    for way in ways:
        way.step()
        way.step()  # the warm-up begins at a learning rate above 0 by the second
    theirs = dict(ways[1].head.named_parameters())
    for name, parameter in ways[0].head.named_parameters():
        assert not torch.equal(parameter, before[name])
        torch.testing.assert_close(parameter, theirs[name], atol=2e-5, rtol=1e-3)


def test_only_the_loss_of_the_baseline_is_compared(small, capsys):
    found, text = bench(
        small, "--lengths", "64", "--supervised", "1", "--loss", "hard", "--repeats", "1", capsys=capsys
    )
    assert found["results"][0]["autograd"] is None and "autograd not measured: kl of an EAGLE-3 head alone" in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--shape", "gpt-oss-7b"], "no shape 'gpt-oss-7b'"),
        (["--lengths", "8"], "at least 9 tokens"),
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

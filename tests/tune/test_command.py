"""`eyas tune`: flags, and on the demo model the whole of it, its interruption and its resumption."""

import argparse
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from tests.fleet.support.lab import members

from eyas.bench.endpoint.journal import read_run
from eyas.cli import main
from eyas.fleet.machines.measurements import read
from eyas.tune.command import add_arguments

SHORT = ("--engine", "eyas", "--context", "128", "--concurrency", "2", "--max-tokens", "16")


def parsed(*words):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(["demo", *words])


def test_flags():
    args = parsed("--budget", "20m", "--engine", "llamacpp", "--engine", "eyas", "--context", "1k,128")
    assert (args.budget, args.engine, args.context) == (1200.0, ["llama.cpp", "eyas"], (1024, 128))
    assert [parsed("--budget", text).budget for text in ("90s", "90", "1.5h")] == [90.0, 90.0, 5400.0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--budget", "soon"], "wants a time such as 20m"),
        (["--budget", "0"], "wants a time such as 20m"),
        (["--context", "0"], "wants at least 1, got 0"),
        (["--context", "8k"], "no context fits: the model leaves 3776 tokens"),
        (["--engine", "vlm"], "unknown engine 'vlm'"),
        (["--on", "h200"], "choose from"),
        (["--binary", "x"], "--binary belongs to one engine"),
        (["--max-tokens", "2"], "--max-tokens wants at least 16"),
        (["--simulate-acceptance", "0.7"], "such as random:demo"),
        (["--engine", "vllm"], "vllm: "),
    ],
)
def test_what_it_refuses(lab, capsys, words, message):
    try:
        code = main(["tune", "demo", *words])
    except SystemExit as error:
        code = error.code
    assert code in (1, 2) and message in capsys.readouterr().err


@pytest.fixture
def eyas_on_the_path(lab, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return lab


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_model_from_the_first_start_to_a_plan_that_cites_it(eyas_on_the_path):
    lab = eyas_on_the_path
    code, out, err = lab.run("tune", "demo", *SHORT, "--budget", "4m")
    assert code == 0, out + err
    found = read(lab.home / "measurements" / "demo.json")
    assert {(row.concurrency, row.context) for row in found.rows} == {(2, 128)}
    assert {0} < {row.draft_tokens for row in found.rows}
    assert re.search(r"2 at once, prompts of 128 tokens: eyas .*tok/s", out)
    assert "measured here on" in out and "eyas serve demo" in out
    figures = json.loads(out.splitlines()[-1])
    assert figures["bench"] == "tune" and len(figures["figures"]) == len(found.rows)
    assert not members(lab.tmp)
    code, plan, _ = lab.run("plan", "demo", "--concurrency", "2", "--engine", "eyas")
    assert code == 0 and "measured here on" in plan
    code, plan, _ = lab.run("plan", "demo", "--concurrency", "2", "--engine", "eyas", "--no-measurements")
    assert code == 0 and "measured here" not in plan and "expected, not measured" in plan


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_interrupted_sweep_keeps_what_it_has_and_is_gone_on_with(eyas_on_the_path):
    lab = eyas_on_the_path
    with lab.start("tune", "demo", *SHORT, "--budget", "10m") as process:
        journal = lab.home / "tune" / "demo.jsonl"
        while process.poll() is None and not (journal.exists() and journal.read_text().count("\n") >= 3):
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130 and "go on with --resume" in err
    assert not members(lab.tmp) and read(lab.home / "measurements" / "demo.json").rows
    before = read_run(journal).windows
    code, out, err = lab.run("tune", "demo", *SHORT, "--budget", "2m", "--resume")
    assert code == 0, out + err
    after = read_run(journal).windows
    assert after[: len(before)] == before and len(after) > len(before)
    assert f"resumed   {len(before)} windows are there" in out
    code, _, err = lab.run("tune", "demo", *SHORT, "--max-tokens", "32", "--budget", "45s", "--resume")
    assert code == 1 and "was measured with another max_tokens" in err

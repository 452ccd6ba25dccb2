"""A run that is killed ends with the same losses and weights, bit for bit, as one that is not."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from eyas.train.files import PARTIAL
from eyas.train.records.metrics import read_metrics

CHATS = Path(__file__).parents[3] / "examples" / "train" / "demo_chats.jsonl"
KILLS = 10
STEPS = 24
EVALUATED_EVERY = 7
SETTINGS = f"""
target: demo
head: {{draft_vocab: 512, intermediate_size: 256, rope: default}}
data: {{chats: CHATS, held_out_share: 0.1, context: 400}}
states: {{cache: 0}}
train: {{steps: {STEPS}, depths: 2, optimizer: muon, lr: 2e-3, save_every: 1, log_every: 1}}
eval: {{every: {EVALUATED_EVERY}, documents: 4}}
out: OUT
"""


def start(folder, command, *, out):
    """Start a run in a process of its own, which writes to `out`.log."""
    settings, chats = folder / f"{out}.yaml", folder / "chats.jsonl"
    if not chats.exists():
        chats.write_text("".join(CHATS.read_text().splitlines(keepends=True)[:24]))
    settings.write_text(SETTINGS.replace("CHATS", str(chats)).replace("OUT", str(folder / out)))
    arguments = [sys.executable, "-m", "eyas", "train", command, str(settings)]
    with (folder / f"{out}.log").open("w") as log:
        return subprocess.Popen(arguments, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=log, stderr=log)


def finish(running, folder, *, out):
    """Wait for the end of a process; return its exit code and what it said."""
    return running.wait(600), (folder / f"{out}.log").read_text()


def result(out):
    rows = [
        {name: value for name, value in row.items() if not name.endswith(("_per_s", "_share", "_bytes"))}
        for row in read_metrics(out / "metrics.jsonl")
    ]
    last = sorted((out / "checkpoints").glob("step-*"))[-1]
    return (
        rows,
        {path.name: path.read_bytes() for path in last.iterdir()},
        (out / "head" / "model.safetensors").read_bytes(),
    )


def writes_checkpoint(out):
    return any(out.glob(f"checkpoints/{PARTIAL}*"))


def evaluates(out):
    """Whether the last row is of a step after which there is an evaluation."""
    rows = list(read_metrics(out / "metrics.jsonl"))
    return bool(rows) and "loss" in rows[-1] and rows[-1]["step"] % EVALUATED_EVERY == 0


def num_steps_of(out):
    return sum("loss" in row for row in read_metrics(out / "metrics.jsonl"))


def kill_at(running, out, moment, num_steps, delay):
    """Kill a process once it has taken `num_steps`, `delay` seconds passed and `moment` holds; whether it still ran."""
    steps, taken = num_steps_of(out) + num_steps, False
    while running.poll() is None:
        if not taken and num_steps_of(out) >= steps:
            taken, due = True, time.monotonic() + delay
        if taken and time.monotonic() >= due and (moment is None or moment(out)):
            running.send_signal(signal.SIGKILL)
            return running.wait() == -signal.SIGKILL
        time.sleep(1e-3)
    return False


# Counted in steps, not in seconds of a run that had the cores to itself: a run takes 13 s alone, 113 s under load.
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.soak)])
def test_kills_change_nothing(tmp_path, seed):
    began = time.monotonic()
    code, output = finish(start(tmp_path, "run", out="whole"), tmp_path, out="whole")
    duration = time.monotonic() - began
    assert code == 0, output
    rows, files, head = result(tmp_path / "whole")
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, STEPS + 1))

    rng, kills, num_runs = random.Random(seed), Counter(), 0
    moments = [None, writes_checkpoint, evaluates]
    while kills["all"] < KILLS:
        num_runs += 1
        name = f"killed-{num_runs}"
        out = tmp_path / name
        running = start(tmp_path, "run", out=name)
        while kills["all"] < KILLS:
            moment, num_steps = moments[kills["all"] % 3], rng.choice([0, 0, 1, 2])
            delay = rng.uniform(0.0, duration / 3 if num_steps == 0 else duration / STEPS)
            if not kill_at(running, out, moment, num_steps, delay):
                break
            kills["all"] += 1
            kills["in writes"] += writes_checkpoint(out)
            kills["in evaluations"] += evaluates(out)
            kills["before the first step"] += num_steps_of(out) == 0
            running = start(tmp_path, "resume" if (out / "run.json").exists() else "run", out=name)
        code, output = finish(running, tmp_path, out=name)
        assert code == 0, output
        other_rows, other_files, other_head = result(out)
        assert rows == other_rows
        assert files == other_files
        assert head == other_head
    print(f"{num_runs} runs, kills: {dict(kills)}")
    assert kills["in writes"] >= 2 and kills["in evaluations"] >= 1


@pytest.mark.slow
def test_ctrl_c_saves_and_resume_goes_on(tmp_path):
    running, log = start(tmp_path, "run", out="run"), tmp_path / "run.log"
    while "step 2/" not in log.read_text():
        assert running.poll() is None, log.read_text()
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    code, output = finish(running, tmp_path, out="run")
    assert code == 130 and "go on with: eyas train resume" in output, output
    steps = sorted(int(path.name[5:]) for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    rows = [row["step"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert steps[-1] == rows[-1] < STEPS
    code, output = finish(start(tmp_path, "run", out="run"), tmp_path, out="run")
    assert code == 1 and "holds a run already: `eyas train resume`" in output
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["settings"]["train"]["steps"] == STEPS

"""A run that is killed at random moments ends with the same losses and weights, bit for bit, as one that is not."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from eyas.train.loop.checkpoints import PARTIAL
from eyas.train.loop.metrics import read_metrics

CHATS = Path(__file__).parents[3] / "examples" / "train" / "demo_chats.jsonl"
KILLS = 20
STEPS = 24
SETTINGS = """
target: demo
head: {draft_vocab: 512, intermediate_size: 256, rope: default}
data: {chats: CHATS, held_out_share: 0.1, context: 400}
states: {cache: 0}
train: {steps: 24, depths: 2, optimizer: muon, lr: 2e-3, save_every: 1, log_every: 1}
eval: {every: 7, documents: 4}
out: OUT
"""


def start(folder, command, *, out):
    """Start a run in a process of its own."""
    settings = folder / f"{out}.yaml"
    chats = folder / "chats.jsonl"
    if not chats.exists():
        chats.write_text("".join(CHATS.read_text().splitlines(keepends=True)[:24]))
    settings.write_text(SETTINGS.replace("CHATS", str(chats)).replace("OUT", str(folder / out)))
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-m", "eyas", "train", command, str(settings)]
    return subprocess.Popen(arguments, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def result(out):
    rows = [
        {name: value for name, value in row.items() if not name.endswith(("_per_s", "_share", "_bytes"))}
        for row in read_metrics(out / "metrics.jsonl")
    ]
    last = sorted((out / "checkpoints").glob("step-*"))[-1]
    return (
        rows,
        {path.name: path.read_bytes() for path in last.iterdir()},
        load_file(out / "head" / "model.safetensors"),
    )


@pytest.mark.slow
def test_kills_change_nothing(tmp_path):
    whole = start(tmp_path, "run", out="whole")
    began = time.monotonic()
    output, _ = whole.communicate(timeout=600)
    duration = time.monotonic() - began
    assert whole.returncode == 0, output
    rng, num_kills, num_in_writes = random.Random(0), 0, 0
    out = tmp_path / "killed"
    command = "run"
    while num_kills < KILLS:
        running = start(tmp_path, command, out="killed")
        try:
            running.wait(rng.uniform(0.3, 1.0) * duration / 2)
            break  # it was quicker than the kills
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGKILL)
        running.wait()
        num_kills += 1
        num_in_writes += bool(list(out.glob(f"checkpoints/{PARTIAL}*")))
        command = "resume" if (out / "run.json").exists() else "run"
    running = start(tmp_path, "resume", out="killed")
    output, _ = running.communicate(timeout=600)
    assert running.returncode == 0, output
    print(f"{num_kills} kills, {num_in_writes} of them while a checkpoint was written")
    (rows, files, head), (other_rows, other_files, other_head) = result(tmp_path / "whole"), result(out)
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, STEPS + 1))
    assert rows == other_rows
    assert files == other_files
    assert head.keys() == other_head.keys() and all((head[name] == other_head[name]).all() for name in head)
    assert num_kills >= 5


def test_ctrl_c_saves_and_resume_goes_on(tmp_path):
    running = start(tmp_path, "run", out="run")
    for line in running.stdout:
        if line.startswith("step 2/"):
            break
    running.send_signal(signal.SIGINT)
    output, _ = running.communicate(timeout=120)
    assert running.returncode == 130 and "go on with: eyas train resume" in output, output
    steps = sorted(int(path.name[5:]) for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    rows = [row["step"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert steps[-1] == rows[-1] < STEPS
    again = start(tmp_path, "run", out="run")
    output, _ = again.communicate(timeout=120)
    assert again.returncode == 1 and "holds a run already: `eyas train resume`" in output
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["settings"]["train"]["steps"] == STEPS

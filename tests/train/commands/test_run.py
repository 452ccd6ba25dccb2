"""Runs from their start to their end: early stop, evaluation, export, plan, init, a terminal, several processes."""

import itertools
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tests.train.support.small_run import BUNDLED, example_chats, train, write_chats, write_settings

from eyas.train.records.metrics import read_metrics
from eyas.train.settings.reading import read_settings
from eyas.train.steps import trainer

ENV = os.environ | {"OMP_NUM_THREADS": "1"}


def steps_of(out):
    return sorted(int(path.name[5:]) for path in (out / "checkpoints").glob("step-*"))


def losses_of(out):
    return [row["loss"] for row in read_metrics(out / "metrics.jsonl") if "loss" in row]


@pytest.mark.slow
def test_an_early_stop_exports_the_best_checkpoint(tmp_path, capsys):
    """A rate that soon ruins a trained head makes an early evaluation the best one."""
    settings = write_settings(tmp_path, head={"init": str(BUNDLED)}, train={"depths": 1})
    overrides = ["train.steps=50", "train.lr=3e-3", "train.warmup=0.2", "train.clip=0", "train.save_every=100"]
    assert train("run", settings, *overrides, "eval.every=1", "eval.patience=2", "train.keep=1") == 0
    out = tmp_path / "out"
    rows = [row for row in read_metrics(out / "metrics.jsonl") if "acceptance_length" in row]
    lengths = [row["acceptance_length"]["target"] for row in rows]
    best = rows[lengths.index(max(lengths))]["step"]
    assert rows[-1]["step"] == best + 2 < 50
    evaluation = json.loads((out / "evaluation.json").read_text())
    assert evaluation["step"] == best and steps_of(out)[0] <= best
    stored = load_file(out / "checkpoints" / f"step-{best:08}" / "head.safetensors")
    exported = load_file(out / "head" / "model.safetensors")
    assert torch.equal(stored["fc.weight"].bfloat16(), exported["fc.weight"])
    capsys.readouterr()
    assert train("eval", settings, *overrides) == 0
    text = capsys.readouterr().out
    assert f"checkpoint of step {best}" in text
    assert json.loads(text.splitlines()[-1])["acceptance"] == evaluation["acceptance"]
    last = steps_of(out)[-1]
    assert train("eval", settings, *overrides, "--step", last) == 0
    text = capsys.readouterr().out
    assert f"checkpoint of step {last}" in text
    before = (out / "metrics.jsonl").read_bytes()
    assert train("resume", settings, *overrides, "eval.every=1", "eval.patience=2", "train.keep=1") == 0
    assert (out / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
def test_a_run_that_runs_out_of_memory_leaves_its_checkpoint_whole(tmp_path, capsys, monkeypatch):
    (tmp_path / "whole").mkdir(), (tmp_path / "full").mkdir()
    whole, full = (write_settings(tmp_path / name) for name in ("whole", "full"))
    assert train("run", whole) == 0
    accumulate, calls = trainer.accumulate, itertools.count()

    def failing(*args, **kwargs):
        sums = accumulate(*args, **kwargs)
        if next(calls) >= 2:  # from the third step on
            raise torch.OutOfMemoryError("a full GPU")
        return sums

    monkeypatch.setattr(trainer, "accumulate", failing)
    assert train("run", full) == 1
    error = capsys.readouterr().err
    assert "checkpoints are from before it" in error and re.search(r"(context and .*|context)=\d{2,3}", error)
    assert steps_of(tmp_path / "full" / "out") == [1, 2]
    monkeypatch.setattr(trainer, "accumulate", accumulate)
    assert train("resume", full) == 0
    heads = [(tmp_path / name / "out" / "head" / "model.safetensors").read_bytes() for name in ("whole", "full")]
    assert heads[0] == heads[1]


@pytest.mark.slow
def test_both_forms_of_an_exported_head_are_one_head(tmp_path, capsys):
    settings = write_settings(tmp_path)
    assert train("run", settings) == 0
    heads = {form: tmp_path / form for form in ("midlayer", "speculators")}
    for form, folder in heads.items():
        assert train("export", tmp_path / "out", folder, "--form", form, "--dtype", "float32") == 0
        assert train("eval", settings, f"head.init={folder}") == 0
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert results[0]["acceptance"] == results[1]["acceptance"]
    stored = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert results[0]["acceptance"] == stored["acceptance"]


@pytest.mark.parametrize("count", [1, pytest.param(12, marks=pytest.mark.slow)])
def test_one_step_and_more_epochs_than_batches(tmp_path, count):
    """One document in all; and steps that go on into the next epochs."""
    settings = write_settings(tmp_path, data={"held_out_share": 0, "chats": str(tmp_path / "few.jsonl")})
    write_chats(tmp_path / "few.jsonl", example_chats(count))
    assert train("run", settings, "train.steps=1", f"out={tmp_path / 'one'}") == 0
    assert train("run", settings, "train.steps=null", "train.epochs=3", "train.accumulate=4") == 0
    assert len(losses_of(tmp_path / "one")) == 1
    assert not (tmp_path / "out" / "evaluation.json").exists() and (tmp_path / "out" / "head").is_dir()
    if count == 1:
        assert len(losses_of(tmp_path / "out")) == 1  # three batches, four of them a step


def test_what_init_writes_is_a_run(tmp_path, capsys):
    chats = write_chats(tmp_path / "chats.jsonl", example_chats(12))
    settings = tmp_path / "new.yaml"
    assert train("init", settings, "--chats", chats) == 0
    small = ["head.draft_vocab=256", "head.intermediate_size=64", "train.depths=1", "train.steps=1"]
    small += ["data.held_out_share=0", f"out={tmp_path / 'out'}", "data.context=400", "target.device=cpu"]
    assert train("plan", settings, *small) == 0 and train("run", settings, *small) == 0
    assert train("init", settings) == 1 and "exists; name another file" in capsys.readouterr().err
    assert yaml.safe_load(settings.read_text())["train"]["lr"] == read_settings(settings).train.lr


def plan_of(capsys, *arguments):
    capsys.readouterr()
    assert train("plan", *arguments) == 0
    return capsys.readouterr().out


def test_the_plan_names_what_a_run_has(tmp_path, capsys):
    settings, states = write_settings(tmp_path), tmp_path / "states"
    fresh, started = plan_of(capsys, settings), plan_of(capsys, settings, f"head.init={BUNDLED}")
    owners = re.findall(r"^  (\w[\w ]*?)  +[\d.]+ ", fresh, re.M)
    assert owners[-1] == "at once" and {"target weights", "states", "head and optimiser", "head pass"} <= {*owners}
    size = {name: re.search(r"head and optimiser +([\d.]+) MiB", text)[1] for name, text in
            (("fresh", fresh), ("started", started))}  # fmt: skip
    assert float(size["started"]) > 2 * float(size["fresh"])
    numbers = load_file(BUNDLED / "model.safetensors")
    num_trained = sum(tensor.numel() for name, tensor in numbers.items() if tensor.is_floating_point())
    assert float(size["started"]) == pytest.approx(16 * num_trained / (1 << 20), rel=0.01)
    assert train("capture", settings, states) == 0
    with_folder = plan_of(capsys, settings, f"states.folder={states}")
    assert "target weights" not in with_folder and "states cache" not in with_folder and "teacher" in with_folder
    assert "too little memory" in refused(capsys, settings, "train.batch_tokens=4000000000")


def refused(capsys, *arguments):
    assert train("plan", *arguments) == 1
    return capsys.readouterr().err


@pytest.mark.slow
def test_captured_states_train_the_same_head(tmp_path):
    settings, states = write_settings(tmp_path), tmp_path / "states"
    assert train("capture", settings, states, "head.taps=[1,2,4,5]") == 0  # more than the head reads
    assert train("run", settings) == 0
    assert train("run", settings, f"states.folder={states}", f"out={tmp_path / 'again'}") == 0
    assert losses_of(tmp_path / "out") == losses_of(tmp_path / "again")


# -- a terminal -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 120])
def test_progress_stays_in_one_line_of_a_terminal(tmp_path, columns):
    settings = write_settings(tmp_path, train={"log_every": 100, "steps": 12, "save_every": 100})
    leader, follower = pty.openpty()
    ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [sys.executable, "-m", "eyas", "train", "run", str(settings)]
    running = subprocess.Popen(command, env=ENV, stderr=follower, stdout=follower)
    os.close(follower)
    text = b""
    while select.select([leader], [], [], 60)[0]:
        try:
            text += os.read(leader, 4096)
        except OSError:  # the process has gone
            break
    os.close(leader)
    assert running.wait(60) == 0, text
    renewed = [part for part in text.decode().replace("\r\n", "\n").split("\r") if part.startswith("step ")]
    lines = [part.removesuffix("\033[K") for part in renewed if "\n" not in part]
    assert len(lines) == 11 and all(len(line) < columns for line in lines)
    assert all(re.match(r"step \d+/12  left .* loss \d", line) for line in lines)


# -- several processes ------------------------------------------------------------------------------------------------


def torchrun(*arguments, processes=2, **options):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command += ["-m", "eyas", "train", *map(str, arguments)]
    return subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


@pytest.mark.slow
@pytest.mark.parametrize("share", ["rows", "sequences"])
def test_torchrun_does_what_one_process_does(tmp_path, share):
    settings = write_settings(tmp_path, train={"share": share, "log_every": 1})
    alone = ["train.accumulate=2"] if share == "sequences" else []
    assert train("run", settings, *alone) == 0
    running = torchrun("run", settings, f"out={tmp_path / 'both'}")
    output, _ = running.communicate(timeout=240)
    assert running.returncode == 0, output
    assert output.count("step 1/3") == 1  # one process speaks
    one, both = losses_of(tmp_path / "out"), losses_of(tmp_path / "both")
    assert both == pytest.approx(one, rel=1e-5)
    last = [tmp_path / out / "checkpoints" / "step-00000003" for out in ("out", "both")]
    heads = [load_file(folder / "head.safetensors") for folder in last]
    for name, tensor in heads[0].items():
        torch.testing.assert_close(heads[1][name], tensor, rtol=0, atol=3e-4)
    assert steps_of(tmp_path / "both") == steps_of(tmp_path / "out")


@pytest.mark.slow
def test_more_processes_than_documents(tmp_path):
    write_chats(tmp_path / "one.jsonl", example_chats(1))
    data = {"chats": str(tmp_path / "one.jsonl"), "held_out_share": 0}
    settings = write_settings(tmp_path, data=data, train={"share": "sequences"})
    running = torchrun("run", settings)
    output, _ = running.communicate(timeout=240)
    assert running.returncode == 0 and len(losses_of(tmp_path / "out")) == 3, output


def wait_for(running, path, step):
    while not any(row["step"] >= step for row in read_metrics(path)):
        assert running.poll() is None, running.communicate()[0]
        time.sleep(0.02)


@pytest.mark.slow
def test_ctrl_c_stops_all_processes_with_a_checkpoint(tmp_path):
    settings = write_settings(tmp_path, train={"steps": 2000, "save_every": 2000})
    running = torchrun("run", settings, start_new_session=True)
    wait_for(running, tmp_path / "out" / "metrics.jsonl", 2)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does
    output, _ = running.communicate(timeout=120)
    assert running.returncode != 0 and "go on with: eyas train resume" in output, output
    (step,) = steps_of(tmp_path / "out")
    assert step == len(losses_of(tmp_path / "out"))


@pytest.mark.slow
def test_a_process_that_dies_ends_the_others(tmp_path):
    settings = write_settings(tmp_path, train={"steps": 2000, "save_every": 2})
    running = torchrun("run", settings)
    wait_for(running, tmp_path / "out" / "metrics.jsonl", 3)
    children = subprocess.run(["pgrep", "-P", str(running.pid)], capture_output=True, text=True, check=True)
    second = max(map(int, children.stdout.split()))
    os.kill(second, signal.SIGKILL)
    output, _ = running.communicate(timeout=120)
    assert running.returncode != 0
    assert "eyas: error: another process of this run has ended or does not answer" in output, output
    assert steps_of(tmp_path / "out")

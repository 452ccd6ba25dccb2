"""Metrics: rows by step, dropped behind a checkpoint, TensorBoard and plots."""

import json
import xml.etree.ElementTree as ET

import pytest

from eyas.train.records.metrics import Metrics, read_metrics
from eyas.train.records.plots import write_plots
from eyas.train.records.progress import Progress, duration
from eyas.train.steps.report import StepReport


def report(step, **changes):
    values = {
        "loss": 3.0 / step,
        "loss_by_depth": (2.0 / step, 1.0 / step),
        "hits_by_depth": (0.5, 0.25),
        "acceptance_by_depth": (0.4, 0.2),
        "grad_norm": 1.0,
        "lr": 1e-4,
        "num_tokens": 4096,
        "num_taught": 1024,
        "seconds": 2.0,
        "target_seconds": 0.5,
        "peak_bytes": 1 << 20,
    }
    return StepReport(step=step, **values | changes)


def test_a_run_that_goes_on_drops_the_rows_behind_its_checkpoint(tmp_path):
    with Metrics(tmp_path, first_step=0, tensorboard=False) as metrics:
        for step in range(1, 6):
            metrics.add(step, report(step).row())
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "lo')  # killed while it wrote
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    with Metrics(tmp_path, first_step=3, tensorboard=False) as metrics:
        metrics.add(4, {"loss": 1.0})
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["loss"]) for row in rows] == [(1, 3.0), (2, 1.5), (3, 1.0), (4, 1.0)]


def test_rows_say_speeds_and_shares():
    row = report(2).row()
    assert row["tokens_per_s"] == 2048 and row["taught_per_s"] == 512 and row["target_share"] == 0.25


def test_tensorboard_events_are_written(tmp_path):
    pytest.importorskip("tensorboardX")
    with Metrics(tmp_path, first_step=0, tensorboard=True) as metrics:
        metrics.add(1, report(1).row())
    events = b"".join(path.read_bytes() for path in (tmp_path / "tensorboard").iterdir())
    assert all(name in events for name in (b"loss_by_depth/1", b"grad_norm", b"tokens_per_s"))


def test_plots_are_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [{"step": step} | report(step).row() for step in range(1, 30)]
    rows.append({"step": 20, "acceptance_length": {"greedy": 2.5, "sampled": 2.1}})
    paths = write_plots(rows, tmp_path / "plots")
    assert [path.name for path in paths] == ["loss.svg", "hits.svg", "speed.svg", "acceptance.svg"]
    assert all(ET.parse(path).getroot().tag.endswith("svg") for path in paths)
    assert write_plots([], tmp_path / "plots") == []


def test_progress_off_a_terminal_is_plain_lines(capsys):
    with Progress(every=10) as progress:
        for step in range(1, 26):
            progress.step(report(step), 25)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["10/25", "20/25", "25/25"]
    assert lines[-1] == (
        "step 25/25  left 0 s  loss 0.120  hits 50 25 %  2,048 tok/s (512 taught)  target 25 %  memory 1.0 MiB  "
        "loss by depth 0.08 0.04"
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(42, "42 s"), (89, "89 s"), (600, "10 min"), (7200, "2.0 h"), (200_000, "2.3 days")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text

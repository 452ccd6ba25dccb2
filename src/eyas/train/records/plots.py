"""Plots of a run as SVG files: loss and hits by depth, acceptance length, speed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["write_plots"]

FEW = 30  # points that are marked one by one
SMOOTH = 0.9  # of the exponential moving average that is drawn over single steps


def write_plots(rows: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """Write loss.svg, hits.svg, speed.svg and, once there was an evaluation, acceptance.svg; returns their paths.

    Without matplotlib nothing is written.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return []
    folder.mkdir(exist_ok=True)
    steps = [row for row in rows if "loss" in row]
    found = []

    def draw(name: str, title: str, label: str, curves: dict[str, tuple[list[int], list[float]]]) -> None:
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.add_subplot()
        for curve, (x, y) in curves.items():
            axes.plot(x, y, label=curve, linewidth=1.2, marker="o" if len(x) <= FEW else None, markersize=4)
        axes.set(title=title, xlabel="step", ylabel=label)
        axes.grid(alpha=0.3)
        if len(curves) > 1:
            axes.legend(fontsize="small", ncols=2)
        path = folder / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None})
        found.append(path)

    if steps:
        at = [row["step"] for row in steps]
        depths = range(len(steps[0]["loss_by_depth"]))
        losses = {f"depth {j}": (at, _smooth([row["loss_by_depth"][j] for row in steps])) for j in depths}
        draw("loss", "Loss by depth (moving average)", "nats per taught token", losses)
        hits = {f"depth {j}": (at, _smooth([row["hits_by_depth"][j] for row in steps])) for j in depths}
        draw("hits", "Hits by depth (moving average)", "share of taught tokens", hits)
        draw("speed", "Speed (moving average)", "tokens per second", {
            "all": (at, _smooth([row["tokens_per_s"] for row in steps])),
            "taught": (at, _smooth([row["taught_per_s"] for row in steps])),
        })  # fmt: skip
    evaluations = [row for row in rows if "acceptance_length" in row]
    if evaluations:
        at = [row["step"] for row in evaluations]
        names = sorted({name for row in evaluations for name in row["acceptance_length"]})
        curves = {
            name: (at, [row["acceptance_length"].get(name, float("nan")) for row in evaluations]) for name in names
        }
        draw("acceptance", "Acceptance length on held-out chats", "tokens per round", curves)
    return found


def _smooth(values: Sequence[float]) -> list[float]:
    """Return the exponential moving average, corrected for its start."""
    out, average, weight = [], 0.0, 0.0
    for value in values:
        average, weight = SMOOTH * average + (1 - SMOOTH) * value, SMOOTH * weight + 1 - SMOOTH
        out.append(average / weight)
    return out

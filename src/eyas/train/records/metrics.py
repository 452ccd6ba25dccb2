"""Metrics of a run: one JSON object a step in metrics.jsonl, TensorBoard events if asked for, and plots."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from eyas.base.errors import UserError
from eyas.train.records.checkpoints import write_atomically

__all__ = ["Metrics", "check_tensorboard", "read_metrics"]


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a metrics.jsonl; a last line that was cut off is left out."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


class Metrics:
    """Writes rows in order of their steps. A run that goes on from a checkpoint drops the rows behind it first."""

    def __init__(self, out: Path, *, first_step: int, tensorboard: bool) -> None:
        """Keep the rows of steps up to `first_step`. Raises UserError if they cannot be written."""
        self.path = out / "metrics.jsonl"
        kept = [row for row in read_metrics(self.path) if row["step"] <= first_step]
        write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in kept))
        self._file: TextIO = self.path.open("a", encoding="utf-8")
        self._board = _board(out / "tensorboard", first_step) if tensorboard else None

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()

    def add(self, step: int, row: Mapping[str, Any]) -> None:
        """Write one row. Lists become one curve an item, such as `loss_by_depth/0`. Raises UserError."""
        try:
            self._file.write(json.dumps({"step": step} | dict(row)) + "\n")
            self._file.flush()
        except OSError as error:
            raise UserError(
                f"cannot write {self.path}: {error.strerror}; make room, then `eyas train resume`"
            ) from error
        if self._board is None:
            return
        for name, value in row.items():
            values = enumerate(value) if isinstance(value, list) else [(None, value)]
            for index, number in values:
                if isinstance(number, int | float):
                    self._board.add_scalar(name if index is None else f"{name}/{index}", number, step)


def check_tensorboard() -> None:
    """Raises UserError if what writes TensorBoard events is not installed."""
    try:
        import tensorboardX  # noqa: F401
    except ModuleNotFoundError as error:
        raise UserError("train.tensorboard needs tensorboardX; install it with: pip install 'eyas[train]'") from error


def _board(folder: Path, first_step: int) -> Any:
    from tensorboardX import SummaryWriter

    return SummaryWriter(str(folder), purge_step=first_step + 1)

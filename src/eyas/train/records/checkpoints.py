"""Checkpoints of a run: whole or absent, in safetensors and JSON, the newest few and the best one.

`checkpoints/step-00000200/` holds head.safetensors (fp32 master weights), optimizer.safetensors and state.json. It is
written as a hidden neighbour, flushed to the disk and renamed, so a process or a machine that dies leaves the last one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from eyas.base.errors import UserError
from eyas.train.files import PARTIAL, flush_folder, write_whole

__all__ = ["Checkpoint", "Checkpoints", "save_tensors", "write_atomically"]

PREFIX = "step-"


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """The state after `step` steps. `state` is plain JSON: cursors, the best figures so far."""

    step: int
    head: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    state: Mapping[str, Any]


class Checkpoints:
    """The checkpoints of a run by step. Only one process at a time writes."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def steps(self) -> list[int]:
        """Return the steps of all whole checkpoints, ascending."""
        names = (path.name.removeprefix(PREFIX) for path in self.folder.glob(f"{PREFIX}*"))
        return sorted(int(name) for name in names if name.isdecimal())

    def best_step(self) -> int | None:
        """Return the step with the best evaluation so far, None if there was none. Raises UserError."""
        found: int | None = self._state(self._path(self._known(None)))["best"]["step"]
        return found

    def save(self, checkpoint: Checkpoint, *, best_step: int | None) -> None:
        """Write a checkpoint, then delete those that are neither among the newest nor that of `best_step`.

        Raises UserError where the disk is full or fails; all earlier checkpoints are whole then.
        """
        partial = self.folder / f"{PARTIAL}{checkpoint.step}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for old in self.folder.glob(f"{PARTIAL}*"):
                shutil.rmtree(old)
            partial.mkdir()
            save_tensors(checkpoint.head, partial / "head.safetensors")
            save_tensors(checkpoint.optimizer, partial / "optimizer.safetensors")
            _write(partial / "state.json", {"step": checkpoint.step} | dict(checkpoint.state))
            flush_folder(partial)
            final = self._path(checkpoint.step)
            if final.exists():  # a run that went back to an earlier checkpoint comes by again
                self._delete(final)
            partial.rename(final)
            flush_folder(self.folder)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            steps = self.steps()
            last = f"the checkpoint of step {steps[-1]} is whole" if steps else "there is no checkpoint yet"
            reason = getattr(error, "strerror", None) or str(error)
            raise UserError(
                f"cannot write a checkpoint to {self.folder}: {reason}; {last}. Make room, then `eyas train resume`"
            ) from error
        for step in self.steps()[: -self.keep]:
            if step != best_step:
                self._delete(self._path(step))

    def load(self, step: int | None = None) -> Checkpoint:
        """Read the checkpoint after `step` steps, by default the newest. Raises UserError if there is none."""
        path = self._path(self._known(step))
        state = self._state(path)
        try:
            head, optimizer = load_file(path / "head.safetensors"), load_file(path / "optimizer.safetensors")
        except (OSError, SafetensorError) as error:
            raise _damaged(path, error) from error
        return Checkpoint(step=state.pop("step"), head=head, optimizer=optimizer, state=state)

    def _known(self, step: int | None) -> int:
        steps = self.steps()
        if not steps or (step is not None and step not in steps):
            there = ", ".join(map(str, steps)) or "none"
            raise UserError(f"{self.folder} has no checkpoint{'' if step is None else f' of step {step}'} ({there})")
        return steps[-1] if step is None else step

    def _state(self, path: Path) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads((path / "state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise _damaged(path, error) from error
        return state

    def _delete(self, path: Path) -> None:
        """Delete a checkpoint, which is whole or absent at every moment; what cannot be deleted waits for the next."""
        going = path.with_name(f"{PARTIAL}old-{path.name}")
        shutil.rmtree(going, ignore_errors=True)
        with suppress(OSError):
            path.rename(going)
            shutil.rmtree(going)

    def _path(self, step: int) -> Path:
        return self.folder / f"{PREFIX}{step:08}"


def write_atomically(path: Path, text: str) -> None:
    """Write a text file that is whole or as it was before, whenever the process or the machine stops.

    Raises UserError if it cannot be written.
    """
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; make room, or give another `out`") from error


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a file of tensors and flush it to the disk."""
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} is damaged ({error}); delete it to go on from an earlier checkpoint")


def _write(path: Path, value: Any) -> None:
    with path.open("w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())

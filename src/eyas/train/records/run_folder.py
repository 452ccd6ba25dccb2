"""The folder of a run: taken by one process at a time, with the settings and data that it was started with."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from eyas.base.errors import UserError
from eyas.train.heads.base import TrainableHead
from eyas.train.records.checkpoints import save_tensors, write_atomically
from eyas.train.settings.reading import differences
from eyas.train.steps.processes import Processes

__all__ = ["RunFolder"]

FIXED = "fixed.safetensors"
# Keys that may change between a start and a resume: they do not say what is trained.
FREE = {
    "out",
    "target.device",
    "target.offline",
    "states.cache",
    "train.log_every",
    "train.save_every",
    "train.keep",
    "train.tensorboard",
    "eval.prompts",
}


class RunFolder:
    """`out` of a run: run.json, lock, checkpoints/, metrics.jsonl, plots/, tensorboard/, head/."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record = path / "run.json"

    @contextmanager
    def taken(self, processes: Processes) -> Iterator[None]:
        """Hold the folder for these processes. Raises UserError if another run has it."""
        if not processes.is_first:
            yield
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(f"cannot use {self.path} as the folder of a run: {error.strerror}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            raise UserError(f"{self.path} is in use by another run; give this one another `out`") from error
        try:
            yield
        finally:
            os.close(handle)

    def begin(
        self,
        settings: Mapping[str, Any],
        facts: Mapping[str, str],
        head: TrainableHead,
        notes: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Record a new run: settings, fingerprints, the fixed part of the head, notes for its model card.

        Raises UserError if there is a run already.
        """
        self.check_new()
        fixed = {"target_ids_V": head.readout.target_ids_V} | dict(head.fixed_tensors)
        save_tensors(fixed, self.path / FIXED)
        record = {"settings": settings, "facts": dict(facts), "head": asdict(head.config), "notes": dict(notes)}
        write_atomically(self.record, json.dumps(record, indent=2) + "\n")

    def head(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the fields of the head's config, and its tensors that are not trained. Raises UserError."""
        fields: dict[str, Any] = self._read()["head"]
        return fields, load_file(self.path / FIXED)

    def notes(self) -> dict[str, str]:
        """Return fingerprints and notes. Raises UserError if there is no run."""
        record = self._read()
        return {**record["facts"], **record["notes"]}

    def settings(self) -> dict[str, Any]:
        """Return the recorded settings. Raises UserError if there is no run."""
        found: dict[str, Any] = self._read()["settings"]
        return found

    def new_head(self) -> Path:
        """Return the folder for the exported head, cleared of what an earlier end of this run has left there."""
        head = self.path / "head"
        for path in (head, head.with_name("head.partial")):
            shutil.rmtree(path, ignore_errors=True)
        return head

    def check_new(self) -> None:
        """Raises UserError if there is a run already."""
        if self.record.exists():
            raise UserError(
                f"{self.path} holds a run already: `eyas train resume` goes on; for a new one give another `out`"
            )

    def check_settings(self, settings: Mapping[str, Any], *, part: str = "") -> None:
        """Raises UserError, naming the keys, where a run could not go on with these settings, or a part of them."""
        changed = [key for key in differences(self.settings(), settings) if key not in FREE and key.startswith(part)]
        if changed:
            raise UserError(
                f"{self.path} was started with other settings: {', '.join(changed)}; give them back their values "
                f"(they are in {self.record}), or start a new run with another `out`"
            )

    def check_facts(self, facts: Mapping[str, str]) -> None:
        """Raises UserError, naming what changed, where chats, vocabulary or target are not those of the run."""
        before = self._read()["facts"]
        for name, value in facts.items():
            if before.get(name) != value:
                raise UserError(f"{self.path} was started with another {name}; start a new run with another `out`")

    def _read(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self.record.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise UserError(f"{self.path} holds no run; start one with `eyas train run`") from error
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read {self.record}: {error}") from error
        return found

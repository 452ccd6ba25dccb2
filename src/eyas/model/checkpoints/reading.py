"""Reads tensors of a checkpoint: opens a folder, checks its headers, gives tensors their place and form.

Headers are checked first, all of them, so that a wrong file is refused with one error before any memory is taken.
Then tensors go one after the other to their place on the device, a GPU getting them from threads that read ahead. On a
CPU packed experts stay in the mapped file: pages come in as experts are used. Nothing in a checkpoint is executed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eyas.base.errors import UserError
from eyas.model.checkpoints.names import Part, Parts
from eyas.model.checkpoints.shards import Progress, StoredTensor, read_headers, read_json, shorten
from eyas.model.checkpoints.tensor_files import MappedTensors, StreamedTensors, TensorFiles
from eyas.model.mxfp4 import Mxfp4Tensor

__all__ = ["FLOATS", "Stored", "TensorReader", "check_tensors", "config_file", "open_checkpoint", "open_files"]

FLOATS = {"BF16", "F16", "F32", "F64"}
_INTEGERS = {"I64", "I32"}

Stored = dict[str, StoredTensor]


def config_file(folder: Path) -> Path:
    """Return the path of config.json. Raises UserError if a folder has none."""
    if folder.is_dir() and not (folder / "config.json").exists():
        raise UserError(f"{folder} is no model folder: it has no config.json")
    return folder / "config.json"


def open_checkpoint(folder: Path, stored: Stored | None) -> tuple[dict[str, Any], Stored]:
    """Return config.json and the headers, which may be elsewhere (`stored`)."""
    source = config_file(folder)
    stored = read_headers(folder) if stored is None else stored
    return read_json(source), stored


def open_files(
    folder: Path, stored: Stored, parts: Iterable[Part], device: torch.device, files: ExitStack
) -> TensorFiles:
    """Open the files of `parts`, which a GPU gets in this order."""
    if device.type == "cpu":
        return MappedTensors(folder, stored, files)
    return StreamedTensors(folder, stored, [part.name for part in parts], device, files)


def check_tensors(
    folder: Path, stored: Mapping[str, StoredTensor], expected: Iterable[Part], ignored: Sequence[str] = ()
) -> None:
    """Compare names, shapes and kinds of number; raise one UserError for all that differs."""
    wanted = {part.name: part for part in expected}
    kinds = {"BF16": FLOATS, "I64": _INTEGERS, "U8": {"U8"}}
    missing = [name for name in wanted if name not in stored]
    extra = [name for name in stored if name not in wanted and name not in ignored]
    shapes, dtypes = [], []
    for name, part in wanted.items():
        if name not in stored:
            continue
        if stored[name].shape != part.shape:
            shapes.append(f"{name} is {list(stored[name].shape)} instead of {list(part.shape)}")
        if stored[name].dtype not in kinds[part.dtype]:
            dtypes.append(f"{name} is {stored[name].dtype} instead of {part.dtype}")
    found = {"missing": missing, "wrong shape": shapes, "wrong dtype": dtypes, "not known": extra}
    if any(found.values()):
        lines = "; ".join(f"{kind}: {shorten(names, 40)}" for kind, names in found.items() if names)
        raise UserError(f"{folder}: the tensors do not fit config.json; {lines}")


class TensorReader:
    """Reads tensors of files in the place and form that the forward pass needs."""

    def __init__(
        self,
        tensors: TensorFiles,
        stored: Mapping[str, StoredTensor],
        device: torch.device,
        dtype: torch.dtype,
        progress: Progress | None = None,
    ) -> None:
        self._tensors, self._stored, self._device, self._dtype = tensors, stored, device, dtype
        self._progress = progress
        self._done, self._total = 0, sum(tensor.num_bytes for tensor in stored.values())

    def raw(self, part: Part) -> Tensor:
        """The tensor as stored."""
        tensor = self._tensors.tensor(part.name)
        self._done += self._stored[part.name].num_bytes
        if self._progress:
            self._progress(self._done, self._total)
        return tensor

    def load(self, parts: Parts) -> dict[str, Any]:
        return {field: self._field(field, group) for field, group in parts.items()}

    def _field(self, field: str, group: Sequence[Part]) -> Tensor | Mxfp4Tensor:
        if group[0].dtype == "U8":
            return Mxfp4Tensor(*(self.raw(part).to(self._device) for part in group))
        if field in ("gate_up", "down"):  # dense experts are stored [E, in, out]
            transposed = self.raw(group[0]).to(self._device, self._dtype).mT
            return transposed.contiguous()
        return self.stacked(group)

    def stacked(self, group: Sequence[Part]) -> Tensor:
        """The rows of all parts in one new tensor: a matrix in the compute dtype, biases, norms and sinks in fp32."""
        shape = (sum(part.shape[0] for part in group), *group[0].shape[1:])
        vector = len(shape) == 1 or group[0].name.endswith("bias")
        whole = torch.empty(shape, dtype=torch.float32 if vector else self._dtype, device=self._device)
        row = 0
        for part in group:
            whole[row : row + part.shape[0]].copy_(self.raw(part))
            row += part.shape[0]
        return whole

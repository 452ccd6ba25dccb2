"""Captures states into a folder of safetensors files, and reads them back instead of running the target.

    index.json               what was captured: target, taps, dtype, kind
    teacher.safetensors      embedding and lm_head of the target, so that no other file of it is needed
    states-00000.safetensors documents side by side: keys [D, 16] and lengths [D] of the documents, taps [T, C], and
                             last [T, H], or best [T] where only labels are kept

Each file is written under another name, flushed and renamed, and names the documents that it holds: whenever capturing
stops, what is there is whole, and it goes on with the documents that are missing.

Shape letters: D documents, T tokens, C taps, H hidden, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from eyas.base.errors import UserError
from eyas.model.checkpoints.shards import read_json
from eyas.model.config import GptOssConfig, RopeConfig
from eyas.train.data.packing import batches_in_order
from eyas.train.files import PARTIAL, write_whole
from eyas.train.states.documents import concatenated, document_key, mapped, num_bytes, spans_of, split
from eyas.train.states.source import HiddenStates
from eyas.train.types import Batch, Document, States, Teacher

__all__ = ["FolderStates", "capture", "open_folder"]

FORMAT = 1
INDEX, TEACHER = "index.json", "teacher.safetensors"
SHARD_BYTES = 256 << 20
BATCH_TOKENS = 4096
_TILE_ELEMENTS = 1 << 26  # of logits at a time


class Place(NamedTuple):
    file: str
    start: int
    length: int


def capture(
    source: HiddenStates,
    documents: Sequence[Document],
    folder: Path,
    *,
    labels_only: bool = False,
    progress: Callable[[int, int], None] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> int:
    """Write the states of all documents that `folder` does not hold yet; return how many these were.

    `labels_only` keeps the most likely next token of each position instead of the last hidden state. `progress` gets
    tokens done and tokens in all. A file has about `shard_bytes`. Raises UserError: the folder holds other files or
    another target's states, the disk is full.
    """
    index = _index_of(source, labels_only)
    known = _begin(source, folder, index)
    missing = {key: one for one in documents if (key := document_key(one.ids_T)) not in known}
    total, done = sum(map(len, missing.values())), 0
    number = _next_number(folder)
    waiting: list[tuple[bytes, States]] = []
    waiting_bytes = 0
    for key, states in _states(source, list(missing.items()), labels_only):
        waiting.append((key, states))
        done += len(states.taps_TC)
        waiting_bytes += num_bytes(states)
        if waiting_bytes >= shard_bytes:
            _write_shard(folder, number, waiting)
            number, waiting, waiting_bytes = number + 1, [], 0
        if progress:
            progress(done, total)
    if waiting:
        _write_shard(folder, number, waiting)
    return len(missing)


def open_folder(
    folder: Path,
    *,
    taps: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype,
    fingerprint: str | None = None,
    labels_suffice: bool = False,
) -> FolderStates:
    """Open a captured folder for a head with these taps, or some of them. `fingerprint` is the target's, where known.

    Raises UserError: no captured folder, damaged, or captured from another target, other taps, in another dtype,
    labels only where the loss needs a teacher.
    """
    index = _read_index(folder)
    if fingerprint is not None and index["target"] != fingerprint:
        raise UserError(f"{folder} was captured from another target; capture again, or name that target")
    if set(taps) - set(index["taps"]):
        raise UserError(f"{folder} holds the taps {index['taps']}, the head reads {list(taps)}; capture these")
    if index["dtype"] != _name(dtype):
        raise UserError(
            f"{folder} holds states in {index['dtype']}, {device} computes in {_name(dtype)}; capture there"
        )
    if index["kind"] == "labels" and not labels_suffice:
        raise UserError(f"{folder} holds labels only, which suffice for the loss `hard` alone; capture last states")
    return FolderStates(folder, index, device)


class FolderStates:
    """The states of a captured folder, looked up by the ids of documents. Implements `HiddenStates`."""

    def __init__(self, folder: Path, index: Mapping[str, Any], device: torch.device) -> None:
        self.folder = folder
        self.config = _config_of(folder, index)
        self.taps = tuple(index["taps"])
        self.fingerprint = str(index["target"])
        self.labels_only = index["kind"] == "labels"
        try:
            matrices = load_file(folder / TEACHER, device=str(device))
            self.teacher = Teacher(matrices["embed"], matrices.get("lm_head", matrices["embed"]))
        except (OSError, SafetensorError, KeyError) as error:
            raise _damaged(folder / TEACHER, error) from error
        self._device = device
        self._places = _places(folder)
        self._open: dict[str, Any] = {}

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self._places)

    def states(self, batch: Batch) -> States:
        """Read the states of a batch. Raises UserError that names the first document that was not captured."""
        parts = [self._read(place) for place in self._found(batch)]
        return mapped(lambda x: x.to(self._device), concatenated(parts))

    def _found(self, batch: Batch) -> list[Place]:
        found = []
        for span, source in zip(spans_of(batch), batch.sources, strict=True):
            place = self._places.get(document_key(batch.ids_T[span.start : span.end]))
            if place is None:
                raise UserError(
                    f"{source}: {self.folder} does not hold the states of these tokens; run `eyas train capture` with "
                    "the data and settings of this run"
                )
            found.append(place)
        return found

    def _read(self, place: Place) -> States:
        rows = slice(place.start, place.start + place.length)
        path = self.folder / place.file
        try:
            if place.file not in self._open:
                self._open[place.file] = safe_open(path, framework="pt")
            tensors = self._open[place.file]
            taps_TC = tensors.get_slice("taps")[rows]
            other = tensors.get_slice("best" if self.labels_only else "last")[rows]
        except (OSError, SafetensorError) as error:
            raise _damaged(path, error) from error
        return States(taps_TC, None, other) if self.labels_only else States(taps_TC, other)


def _states(
    source: HiddenStates, documents: Sequence[tuple[bytes, Document]], labels_only: bool
) -> Iterator[tuple[bytes, States]]:
    """Yield the states of each document on the CPU, in order."""
    keys = iter([key for key, _ in documents])
    longest = max((len(document) for _, document in documents), default=0)
    device = source.teacher.embed_VH.device
    for batch in batches_in_order([document for _, document in documents], max(BATCH_TOKENS, longest)):
        with torch.no_grad():
            taps_TC, last_TH, best_T = source.states(batch.to(device))
            if labels_only and best_T is None:
                assert last_TH is not None
                best_T = _most_likely(last_TH, source.teacher.lm_head_VH)
        kept = States(taps_TC, None, best_T) if labels_only else States(taps_TC, last_TH)
        for states in split(kept, spans_of(batch)):
            yield next(keys), mapped(Tensor.cpu, states)


def _most_likely(last_TH: Tensor, lm_head_VH: Tensor) -> Tensor:
    """Return the id with the largest logit of each row, int64 [T], without the logits of all rows at once."""
    tile = max(1, _TILE_ELEMENTS // len(lm_head_VH))
    return torch.cat([(rows @ lm_head_VH.T).argmax(-1) for rows in last_TH.split(tile)])


# -- files ------------------------------------------------------------------------------------------------------------


def _index_of(source: HiddenStates, labels_only: bool) -> dict[str, Any]:
    index = {
        "format": FORMAT,
        "target": source.fingerprint,
        "taps": list(source.taps),
        "dtype": _name(source.teacher.embed_VH.dtype),
        "kind": "labels" if labels_only else "last",
        "config": asdict(source.config),
    }
    plain: dict[str, Any] = json.loads(json.dumps(index))  # tuples are lists, as they will be read
    return plain


def _begin(source: HiddenStates, folder: Path, index: Mapping[str, Any]) -> Mapping[bytes, Place]:
    """Prepare a new folder, or check one that capturing goes on in; return what it holds."""
    if (folder / INDEX).exists():
        present = _read_index(folder)
        for key, what in (("target", "of another target"), ("taps", "of other taps"), ("dtype", "in another dtype")):
            if present[key] != index[key]:
                raise UserError(f"{folder} holds states {what} ({present[key]}, not {index[key]}); name another folder")
        if present["kind"] != index["kind"]:
            raise UserError(
                f"{folder} holds states of kind {present['kind']}, not {index['kind']}; name another folder"
            )
        for partial in folder.glob(f"{PARTIAL}*"):
            partial.unlink()
        return _places(folder)
    if folder.is_dir() and any(path.name != TEACHER and not path.name.startswith(PARTIAL) for path in folder.iterdir()):
        raise UserError(f"{folder} holds other files; name a new folder")
    embed, lm_head = source.teacher
    matrices = {"embed": embed} if lm_head is embed else {"embed": embed, "lm_head": lm_head}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}") from error
    _write_whole(folder / TEACHER, save({name: matrix.detach().cpu() for name, matrix in matrices.items()}))
    _write_whole(folder / INDEX, json.dumps(index, indent=2).encode())
    return {}


def _write_shard(folder: Path, number: int, documents: Sequence[tuple[bytes, States]]) -> None:
    keys, parts = zip(*documents, strict=True)
    taps_TC, last_TH, best_T = concatenated(parts)
    tensors = {
        "keys": torch.tensor([list(key) for key in keys], dtype=torch.uint8),
        "lengths": torch.tensor([len(part.taps_TC) for part in parts]),
        "taps": taps_TC,
    }
    tensors |= {name: tensor for name, tensor in (("last", last_TH), ("best", best_T)) if tensor is not None}
    _write_whole(folder / f"states-{number:05d}.safetensors", save(tensors))


def _write_whole(path: Path, data: bytes) -> None:
    """Write a file that is whole or absent, whenever process or machine stop. Raises UserError."""
    try:
        write_whole(path, data)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; what was captured is whole. Make room and run the command again"
        ) from error


def _next_number(folder: Path) -> int:
    return 1 + max((int(path.stem.removeprefix("states-")) for path in _shards(folder)), default=-1)


def _shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("states-" + "[0-9]" * 5 + ".safetensors"))


def _places(folder: Path) -> dict[bytes, Place]:
    """Return the place of every document. Raises UserError for a damaged file."""
    places = {}
    for path in _shards(folder):
        try:
            with safe_open(path, framework="pt") as tensors:
                keys_D, lengths_D = tensors.get_tensor("keys"), tensors.get_tensor("lengths")
                num_tokens = tensors.get_slice("taps").get_shape()[0]
        except (OSError, SafetensorError) as error:
            raise _damaged(path, error) from error
        lengths = lengths_D.tolist()
        if keys_D.shape != (len(lengths), 16) or sum(lengths) != num_tokens:
            raise _damaged(path, "keys, lengths and states do not fit each other")
        start = 0
        for key, length in zip(keys_D.numpy(), lengths, strict=True):
            places[key.tobytes()] = Place(path.name, start, length)
            start += length
    return places


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / INDEX
    if not path.is_file():
        raise UserError(f"{folder} is no folder of captured states: it has no {INDEX}; `eyas train capture` writes one")
    index = read_json(path)
    absent = {"format", "target", "taps", "dtype", "kind", "config"} - index.keys()
    if absent or index["format"] != FORMAT:
        raise UserError(f"{path} is of another format; capture again")
    return index


def _config_of(folder: Path, index: Mapping[str, Any]) -> GptOssConfig:
    try:
        raw: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in index["config"].items()}
        raw["rope"] = RopeConfig(**raw["rope"])
        return GptOssConfig(**raw)
    except (AttributeError, TypeError, KeyError) as error:
        raise _damaged(folder / INDEX, error) from error


def _damaged(path: Path, reason: object) -> UserError:
    return UserError(f"{path} is damaged ({reason}); delete it and capture again")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

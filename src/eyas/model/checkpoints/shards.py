"""The safetensors container: reading the headers of a folder, and writing shards as a stream.

Headers alone are parsed here (8 bytes of length, JSON, then data), so that a whole checkpoint can be checked and
described without touching its data, and written without holding it. Format: huggingface/safetensors, README.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from eyas.base.errors import UserError

__all__ = [
    "INDEX_NAME",
    "Progress",
    "StoredTensor",
    "TensorSource",
    "num_bytes_of",
    "read_headers",
    "read_json",
    "write_shards",
]

INDEX_NAME = "model.safetensors.index.json"
DTYPE_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2}
DTYPE_BYTES |= {"BF16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8}
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
_MAX_JSON_BYTES = 64_000_000

Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTensor:
    """Place of a tensor: `file` is a name inside the folder, `start` the byte of it, None if it is not here."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    start: int | None = None


def num_bytes_of(dtype: str, shape: Sequence[int]) -> int:
    """Return the bytes of a tensor; `dtype` is a name of the format. Raises KeyError for one that it lacks."""
    return DTYPE_BYTES[dtype] * prod(shape)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of bounded size. Raises UserError naming the file."""
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise UserError(f"{path} is larger than {_MAX_JSON_BYTES} bytes; this is not a checkpoint's JSON file")
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as JSON ({error}); download it again") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} holds no JSON object; download it again")
    return value


def read_headers(folder: Path) -> dict[str, StoredTensor]:
    """Read all tensors of the safetensors files at the top of `folder`, by name; checks every shard against its size.

    It follows model.safetensors.index.json where there is one, else takes every *.safetensors file.
    Raises one UserError that names every missing, truncated or damaged shard.
    """
    problems: list[str] = []
    files, expected = _shard_files(folder, problems)
    found: dict[str, StoredTensor] = {}
    for file in files:
        try:
            tensors = _read_header(folder / file)
        except (OSError, ValueError, RecursionError) as error:
            problems.append(f"{file}: {error}")
            continue
        for name, tensor in tensors.items():
            if name in found:
                problems.append(f"tensor {name} is in both {found[name].file} and {file}")
            found[name] = tensor
    if problems:
        raise UserError(f"{folder} is damaged or incomplete: {'; '.join(problems)}; download it again")
    strays = [name for name, file in expected.items() if name not in found or found[name].file != file]
    if strays:
        raise UserError(f"{folder}: {INDEX_NAME} places tensors where they are not: {shorten(strays)}")
    return found


def shorten(names: Sequence[str], limit: int = 12) -> str:
    """Format the first names, and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _shard_files(folder: Path, problems: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return file names inside `folder` and, from the index, the file of each tensor."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give a model folder or a hub id such as openai/gpt-oss-20b")
    index = folder / INDEX_NAME
    if not index.exists():
        files = sorted(path.name for path in folder.glob("*.safetensors"))
        if not files:
            pickles = any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth"))
            hint = "only pickled weights (.bin, .pt), which can run code; convert them" if pickles else "no weights"
            raise UserError(f"{folder} holds {hint}: a model folder needs *.safetensors files")
        return files, {}
    placed = read_json(index).get("weight_map")
    if not isinstance(placed, dict) or not all(isinstance(file, str) for file in placed.values()):
        raise UserError(f"{index} has no weight_map of tensor to file; download it again")
    files = sorted(set(placed.values()))
    for file in list(files):
        if Path(file).name != file or file in ("", ".", ".."):  # a name may not lead out of the folder
            problems.append(f"the index names {file!r}, which is not a plain file name")
        elif not (folder / file).is_file():
            problems.append(f"shard {file} is missing")
        else:
            continue
        files.remove(file)
    return files, placed


def _read_header(path: Path) -> dict[str, StoredTensor]:
    with path.open("rb") as stream:
        size = path.stat().st_size
        header_bytes = int.from_bytes(stream.read(8), "little")
        if size < 8 or header_bytes > _MAX_HEADER_BYTES:
            raise ValueError("not a safetensors file")
        if size < 8 + header_bytes:
            raise ValueError(f"truncated inside its header ({size} bytes)")
        header = json.loads(stream.read(header_bytes))
    if not isinstance(header, dict):
        raise ValueError("the header is no JSON object")
    tensors: dict[str, StoredTensor] = {}
    data_bytes = 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        tensors[name], end = _stored(path.name, name, entry, 8 + header_bytes)
        data_bytes = max(data_bytes, end)
    if size != 8 + header_bytes + data_bytes:
        raise ValueError(f"{size} bytes instead of {8 + header_bytes + data_bytes}: truncated or overwritten")
    return tensors


def _stored(file: str, name: str, entry: Any, data_start: int) -> tuple[StoredTensor, int]:
    """Return the tensor, and its end relative to `data_start`."""
    try:
        dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        num_bytes = num_bytes_of(dtype, shape)
        valid = 0 <= start <= end and end - start == num_bytes and all(size >= 0 for size in shape)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"bad header entry for {name}") from error
    if not valid:
        raise ValueError(f"bad header entry for {name}")
    return StoredTensor(file=file, dtype=dtype, shape=shape, num_bytes=num_bytes, start=data_start + start), end


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSource:
    """A tensor to be written: its bytes come in chunks, each made when its turn comes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    chunks: Callable[[], Iterator[bytes]]

    @property
    def num_bytes(self) -> int:
        return num_bytes_of(self.dtype, self.shape)


def write_shards(folder: Path, sources: Iterable[TensorSource], *, shard_bytes: int, progress: Progress | None) -> None:
    """Write `sources` in order, at most `shard_bytes` a file (one tensor at least), with an index if more than one.

    Names count from zero and end with the last number, as openai/gpt-oss does: model-00000-of-00002 is the first of
    three. Raises UserError if the disk has too little room.
    """
    shards: list[list[TensorSource]] = [[]]
    for source in sources:
        if shards[-1] and sum(other.num_bytes for other in shards[-1]) + source.num_bytes > shard_bytes:
            shards.append([])
        shards[-1].append(source)
    total = sum(source.num_bytes for shard in shards for source in shard)
    free = shutil.disk_usage(folder).free
    if total > free:
        raise UserError(f"{folder} needs {total / 1e9:.1f} GB, but the disk has {free / 1e9:.1f} GB free")
    last = len(shards) - 1
    files = [f"model-{i:05d}-of-{last:05d}.safetensors" for i in range(last + 1)] if last else ["model.safetensors"]
    done = 0
    for file, shard in zip(files, shards, strict=True):
        for count in _write_shard(folder / file, shard):
            done += count
            if progress:
                progress(done, total)
    if last:
        placed = {source.name: file for file, shard in zip(files, shards, strict=True) for source in shard}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(placed.items()))}
        (folder / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write_shard(path: Path, shard: Sequence[TensorSource]) -> Iterator[int]:
    """Write one file, yielding the size of each chunk."""
    ordered = sorted(shard, key=lambda source: -DTYPE_BYTES[source.dtype])  # keeps every tensor aligned to its elements
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for source in ordered:
        end = offset + source.num_bytes
        header[source.name] = {"dtype": source.dtype, "shape": source.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for source in ordered:
            for chunk in source.chunks():
                stream.write(chunk)
                yield len(chunk)
        assert stream.tell() == 8 + len(text) + offset, f"a source of {path.name} gave the wrong number of bytes"

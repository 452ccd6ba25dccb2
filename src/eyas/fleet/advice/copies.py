"""Finds several quantisations of one model on this machine's disk: in the caches of the hub, llama.cpp and Ollama.

A model is known by its name without what names a format. Its head is another model, as are its fine-tunes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from eyas.fleet.models.cache import hub_folder

__all__ = ["Copy", "copies", "family", "several"]

PREFIX = "models--"
SHARD = re.compile(r"-\d{5}-of-\d{5}$")
FORMAT = re.compile(
    r"[-_.:](?:gguf|mxfp4|nvfp4|fp8|fp4|bf16|fp16|f16|f32|awq|gptq|mlx|int[48]|[48]bit|ud|i?q\d(?:_[a-z0-9]+)*|latest)(?=[-_.:]|$)"
)
WEIGHTS = (".safetensors", ".gguf")
NO_MODEL = ("mmproj", "imatrix")  # GGUF files that belong to a model


class Copy(Struct, frozen=True, kw_only=True):
    """Weights on the disk: as they are called, the model they are of, and their bytes."""

    name: str
    family: str
    num_bytes: int


def family(name: str) -> str:
    """Return the name of the model that `name` (a repository, a file, an Ollama tag) is a copy of."""
    base = SHARD.sub("", name.lower().rpartition("/")[2].removesuffix(".gguf"))
    before = None
    while before != base:
        before, base = base, FORMAT.sub("", base)
    return base.replace(":", "-")


def several(found: Iterable[Copy]) -> dict[str, tuple[Copy, ...]]:
    """Return the models with more than one copy, those that take most first."""
    by_family: dict[str, list[Copy]] = {}
    for copy in found:
        by_family.setdefault(copy.family, []).append(copy)
    many = {name: tuple(group) for name, group in by_family.items() if len(group) > 1}
    return dict(sorted(many.items(), key=lambda item: -sum(copy.num_bytes for copy in item[1])))


def copies(environ: Mapping[str, str]) -> tuple[Copy, ...]:
    """Return what the three caches hold. Folders that are not there or may not be read hold nothing."""
    home = Path(environ.get("HOME") or "~").expanduser()
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    ollama = Path(environ.get("OLLAMA_MODELS") or home / ".ollama" / "models")
    llama = Path(environ.get("LLAMA_CACHE") or cache / "llama.cpp")
    sizes: dict[str, int] = {}
    for name, num_bytes in (*_hub(hub_folder(environ)), *_files(llama, ""), *_ollama(ollama)):
        sizes[name] = sizes.get(name, 0) + num_bytes
    return tuple(Copy(name=name, family=family(name), num_bytes=size) for name, size in sorted(sizes.items()))


def _hub(hub: Path) -> Iterator[tuple[str, int]]:
    for folder in sorted(hub.glob(f"{PREFIX}*")):
        newest = max((folder / "snapshots").glob("*"), key=lambda path: path.stat().st_mtime, default=None)
        if newest is not None:
            yield from _files(newest, folder.name.removeprefix(PREFIX).replace("--", "/", 1))


def _files(folder: Path, repo: str) -> Iterator[tuple[str, int]]:
    """Yield the weights below a folder: GGUF files each by its own name, others as `repo`."""
    for path in sorted(folder.rglob("*")):
        if path.suffix in WEIGHTS and path.is_file() and not path.name.startswith(NO_MODEL):
            is_gguf = path.suffix == ".gguf"
            if is_gguf or repo:
                yield (SHARD.sub("", path.stem) + ".gguf" if is_gguf else repo), path.stat().st_size


def _ollama(models: Path) -> Iterator[tuple[str, int]]:
    """Yield Ollama's tags; their manifests name layers, the largest of which is the model."""
    for path in sorted((models / "manifests").glob("*/*/*/*")):
        digests = re.findall(r"sha256:[0-9a-f]{64}", path.read_text(errors="replace"))
        blobs = [models / "blobs" / digest.replace(":", "-") for digest in digests]
        sizes = [blob.stat().st_size for blob in blobs if blob.is_file()]
        if sizes:
            yield f"{path.parent.name}:{path.name}", max(sizes)

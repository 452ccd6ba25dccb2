"""Reads `data/*.yaml` into records and finds them by name or alias.

A file is one mapping from names to entries. It is decoded strictly: an unknown, missing or mistyped field is an error
that names the file and the entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml
from msgspec import Struct

from eyas.base.errors import UserError, nearest
from eyas.recipes.records import Engine, Hardware, Head, KnownImage, Measurement, Model, Record

__all__ = ["DATA", "Knowledge", "find", "knowledge", "load", "read"]

DATA = Path(__file__).parents[1] / "data"
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C is ten times as fast

R = TypeVar("R", bound=Record)


class Knowledge(Struct, frozen=True, kw_only=True):
    """All records by name. The methods take a name, an alias or a repository of the hub, in any case."""

    hardware: dict[str, Hardware]
    models: dict[str, Model]
    heads: dict[str, Head]
    engines: dict[str, Engine]
    images: dict[str, KnownImage]
    measurements: tuple[Measurement, ...]

    def model(self, text: str) -> Model:
        """Find by name. Raises UserError, with the nearest name, where there is none."""
        return find(self.models, text, "model")

    def head(self, text: str) -> Head:
        """Find by name. Raises UserError, with the nearest name, where there is none."""
        return find(self.heads, text, "draft head")

    def engine(self, text: str) -> Engine:
        """Find by name. Raises UserError, with the nearest name, where there is none."""
        return find(self.engines, text, "engine")

    def heads_of(self, model: Model) -> tuple[Head, ...]:
        """The heads and draft models of `model`, the most recommended first."""
        heads = [head for head in self.heads.values() if head.target == model.name]
        return tuple(sorted(heads, key=lambda head: -head.rank))


@cache
def knowledge() -> Knowledge:
    """The knowledge that ships in the package, read once."""
    return Knowledge(
        hardware=read(DATA / "hardware.yaml", Hardware),
        models={**read(DATA / "models.yaml", Model), **read(DATA / "sidecars.yaml", Model)},
        heads=read(DATA / "heads.yaml", Head),
        engines=read(DATA / "engines.yaml", Engine),
        images=read(DATA / "images.yaml", KnownImage),
        measurements=tuple(read(DATA / "measurements.yaml", Measurement).values()),
    )


def load(path: Path) -> Any:
    """Load a YAML file as plain values. Raises yaml.YAMLError."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)


def read(path: Path, record: type[R]) -> dict[str, R]:
    """Read the entries of a file, in order. Raises ValueError that names file, entry and field where one is wrong."""
    try:
        entries = load(path)
    except yaml.YAMLError as error:
        raise ValueError(f"{path.name}: {error}") from None
    if not isinstance(entries, dict):
        raise ValueError(f"{path.name}: expected a mapping from names to entries")
    return {name: _decoded(path.name, name, entry, record) for name, entry in entries.items()}


def _decoded(file: str, name: object, entry: object, record: type[R]) -> R:
    if not isinstance(name, str) or not isinstance(entry, dict):
        raise ValueError(f"{file}: {name}: expected a name (quote it if it looks like a number) and a mapping")
    try:
        return msgspec.convert({"name": name, **entry}, record)
    except msgspec.ValidationError as error:
        raise ValueError(f"{file}: {name}: {error}") from None


def find(records: Mapping[str, R], text: str, kind: str) -> R:
    """Find the record called `text`. Raises UserError "unknown KIND" with the nearest name."""
    wanted = text.strip().casefold()
    for record in records.values():
        if wanted in (called.casefold() for called in _called(record)):
            return record
    known = {called.casefold(): record.name for record in records.values() for called in _called(record)}
    hint = nearest(wanted, known) or f"; known: {', '.join(records)}"
    raise UserError(f"unknown {kind} '{text}'{hint}")


def _called(record: Record) -> Iterable[str]:
    yield record.name
    yield from getattr(record, "aliases", ())
    repo: str = getattr(record, "repo", "")
    if repo:
        yield from (repo, repo.rpartition("/")[2])
    repos: dict[str, str] = getattr(record, "repos", {})
    yield from repos.values()

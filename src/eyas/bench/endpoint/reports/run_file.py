"""A whole run as one JSON document, with every request, and the reading of such documents and of a run's own file.

`schema()` describes the format, from the types in `records.py`. Files may come from strangers: they are data, every
value is checked, and whatever is wrong with one is one line.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from eyas.base.errors import UserError
from eyas.bench.endpoint.journal import Header, Run, read_run
from eyas.bench.endpoint.lossless.summary import Result
from eyas.bench.endpoint.records import Counts, Window

__all__ = ["FORMAT", "load_lossless", "load_run", "run_json", "schema", "warn_if_cut_short"]

FORMAT = "eyas bench endpoint 1"
MAX_BYTES = 1 << 30
MAX_VALUE = 1e15  # bytes, seconds, tokens: what is beyond was never measured
MAX_POSITIONS = 1000  # of histograms


class Document(Struct, frozen=True, kw_only=True, tag_field="format", tag=FORMAT, omit_defaults=True):
    """A run in one document. `figures` were computed from the windows, for scripts; reading ignores them."""

    header: Header
    windows: tuple[Window, ...]
    figures: dict[str, Any] | None = None


def load_run(path: Path) -> Run:
    """Read a run from the file that it wrote (JSON lines), or from a JSON document.

    Raises UserError for what is neither, for a document that was cut short, and for values that were never measured.
    The last line of a run's own file may be cut short: it is left out, as when the run goes on.
    """
    data = _read(path)
    run = _document(data, path) if data.lstrip().startswith(b'{"format"') else read_run(path)
    _check(run, path)
    return run


def load_lossless(path: Path) -> Result:
    """Read what `eyas bench endpoint --lossless` has written. Raises UserError for anything else."""
    try:
        return msgspec.json.decode(_read(path), type=Result)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{path} is no comparison of answers ({reason}); give a file of 'eyas bench endpoint --lossless --out'"
        ) from error


def warn_if_cut_short(path: Path) -> None:
    """Say on stderr that the last line of a run's own file is no whole one, and not in what `load_run` returns."""
    data = path.read_bytes()
    if not data.endswith(b"\n") and not data.lstrip().startswith(b'{"format"'):
        print(f"eyas: {path}: the last line was cut short and is left out", file=sys.stderr)


def run_json(run: Run, figures: Mapping[str, Any]) -> bytes:
    """Write one document."""
    return msgspec.json.encode(Document(header=run.header, windows=run.windows, figures=dict(figures))) + b"\n"


def schema() -> dict[str, Any]:
    """Return the JSON schema of a document."""
    return msgspec.json.schema(Document)


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"{path} has more than {MAX_BYTES >> 20:,} MiB; give a run with fewer loads or turns")
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; give the file of a run") from error


def _document(data: bytes, path: Path) -> Run:
    try:
        document = msgspec.json.decode(data, type=Document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        if "truncated" in reason or not data.rstrip().endswith(b"}"):
            raise UserError(f"{path} is cut short; write it once more by 'eyas bench report --json'") from error
        raise UserError(f"{path} is no report of a run ({reason}); give one of 'eyas bench report --json'") from error
    return Run(header=document.header, windows=document.windows)


def _check(run: Run, path: Path) -> None:
    """Raise UserError for values that no measurement has."""
    if not run.windows:
        raise UserError(f"{path} has no window yet; give a run that has measured something")
    for number, window in enumerate(run.windows, 1):
        for name, value in _values(window):
            if not (math.isfinite(value) and 0 <= value <= MAX_VALUE):
                raise UserError(f"{path}, window {number}: {name} is {value:g}, which was never measured")
        for record in window.records:
            times = [record.scheduled_s, *(chunk.at_s for chunk in record.chunks)]
            tokens = [chunk.tokens for chunk in record.chunks if chunk.tokens is not None]
            if times != sorted(times) or tokens != sorted(tokens):
                raise UserError(f"{path}, window {number}: chunks of {record.prompt!r:.60} are not in order of time")
        if window.ended_s <= window.started_s:
            raise UserError(f"{path}, window {number}: it ends at {window.ended_s:g} s, before it starts")
        load = window.load
        if (load.concurrency is None) == (load.rate is None) or not (load.concurrency or load.rate):
            raise UserError(f"{path}, window {number}: a load is a concurrency or a rate, above 0")


def _values(window: Window) -> Iterator[tuple[str, float]]:
    for item in (window, window.load, window.lag, window.counts, window.memory):
        yield from _numbers(item)
    for record in window.records:
        yield from _numbers(record)
        yield from _numbers(record.counts)
        for chunk in record.chunks:
            yield from _numbers(chunk)


def _numbers(item: Struct | None) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a struct with their names; of counts also those of its histograms."""
    if item is None:
        return
    for name in item.__struct_fields__:
        value = getattr(item, name)
        if isinstance(value, int | float):
            yield name, value
        elif isinstance(item, Counts) and isinstance(value, tuple):
            yield f"the length of {name}", len(value) if len(value) <= MAX_POSITIONS else math.inf
            yield from ((name, one) for one in value)

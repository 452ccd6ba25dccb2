"""`eyas bench load`: measures how fast a checkpoint loads to its device, against just reading the same files.

Both are timed in turn, with the files dropped from the page cache and with all of them in it.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from eyas.base.settings import config as settings
from eyas.base.settings.config import EngineConfig
from eyas.base.types import Request, SamplingParams
from eyas.base.units import readable
from eyas.bench.engine.drive import prefill_s
from eyas.bench.prompts import random_prompts
from eyas.bench.report import SIMULATED, positive_int, print_json, provenance, table
from eyas.bench.stats import Spread, paired_ratio

if TYPE_CHECKING:
    from eyas.bench.engine.parts import LoadedModel

__all__ = ["add_arguments", "run"]

CACHES = ("cold", "warm")
SAMPLE_BYTES = 64 << 20  # bytes for each page that is sampled to estimate what the page cache holds
DEFINITIONS = """\
load      from settings to weights on the device, in the form that the engine computes with
read      read() of the same files, all of them, into memory that is there: in the loader's pieces and as many at once
cold      the files were dropped from the page cache before (posix_fadvise); warm: they had just been read
GB/s      bytes over time, for a load those that it reads: on a CPU packed experts stay in their files
against   GB/s of the load over GB/s of this row, in the same repeat
first     load in this process, the page cache as it was found; the peak of resident memory (ru_maxrss) above that
          before it
memory    of an engine with these settings: its map after the start, against what the driver counts as used while a
          prompt as long as the context is read"""


class _First(NamedTuple):
    """The first load in this process: its time includes one-time costs, and it shows the peak of memory."""

    seconds: float
    host_bytes: int
    simulated: bool
    map_bytes: int | None  # of an engine, by its memory map; None on a CPU
    driver_bytes: int | None


@dataclass(kw_only=True, slots=True)
class _Way:
    """A variant to time: loading, or reading in `num_threads` threads."""

    name: str
    num_bytes: int
    num_threads: int | None = None
    seconds: dict[str, list[float]] = field(default_factory=lambda: {cache: [] for cache in CACHES})

    def rate(self, cache: str) -> Spread:
        """Bandwidth in GB/s."""
        return Spread(tuple(self.num_bytes / 1e9 / seconds for seconds in self.seconds[cache]))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("benchmark").add_argument
    add("--repeats", type=positive_int, default=3, metavar="N", help="how often to repeat the measurement (default: 3)")
    settings.add_arguments(parser, EngineConfig, positional="model")


def run(args: argparse.Namespace) -> int:
    from eyas.bench.engine.parts import THREADS, available_bytes, hardware, pick_device

    config = settings.load(EngineConfig, args, os.environ)
    device, _ = pick_device(config.device)
    files, num_loaded = _files(config, packed=device.type == "cuda")
    num_bytes = sum(file.stat().st_size for file in files)
    ways = [
        _Way(name="load", num_bytes=num_loaded),
        _Way(name="read", num_bytes=num_bytes, num_threads=THREADS),
        _Way(name="read", num_bytes=num_bytes, num_threads=1),
    ]
    lines, origin = provenance(hardware(device))
    available_bytes(device)  # starts the device's runtime, which belongs to no load
    first = _first_load(config)
    print("\n".join([f"eyas bench load {config.model}"] + [SIMULATED] * first.simulated + lines))
    print(f"files     {len(files)} with {num_bytes / 1e9:.2f} GB, of which {num_loaded / 1e9:.2f} GB are loaded")
    print(f"method    {args.repeats} repeats; in each, all rows run in turn; median (min..max)")
    print("\n".join(_first_lines(first)), flush=True)
    buffers = _buffers()
    cached = [_measure(config, files, ways, buffers, repeat) for repeat in range(args.repeats)]
    print("\n".join(["", *_table(ways), "", _cached_text(cached), "", DEFINITIONS, ""]))
    print_json(
        {
            "bench": "load",
            "simulated": first.simulated,
            "model": config.model,
            **origin,
            "repeats": args.repeats,
            "file_bytes": num_bytes,
            "loaded_bytes": num_loaded,
            "first_load_s": round(first.seconds, 4),
            "host_peak_bytes": first.host_bytes,
            "map_bytes": first.map_bytes,
            "driver_bytes": first.driver_bytes,
            "cached_when_cold": cached,
            "figures": [_figures(way, ways[0], cache) for cache in CACHES for way in ways],
        }
    )
    return 0


def _files(config: EngineConfig, *, packed: bool) -> tuple[list[Path], int]:
    """The weight files of target and head, and how many of their bytes are loaded; `packed` counts experts too."""
    from eyas.bench.engine.parts import find_checkpoints, read_headers

    folder, _, head = find_checkpoints(config)
    stored = [(where, tensor) for where in (folder, head) if where for tensor in read_headers(where).values()]
    loaded = sum(tensor.num_bytes for _, tensor in stored if packed or tensor.dtype != "U8")
    return sorted({where / tensor.file for where, tensor in stored}), loaded


def _first_load(config: EngineConfig) -> _First:
    from eyas.local import load_model

    before, start = _peak_bytes(), time.perf_counter()
    model = load_model(config)
    seconds, host_bytes = time.perf_counter() - start, max(0, _peak_bytes() - before)
    return _First(seconds, host_bytes, model.simulated, *_engine_bytes(model))


def _engine_bytes(model: LoadedModel) -> tuple[int, int] | tuple[None, None]:
    """Return the bytes of an engine's memory map, and what the driver counts while it reads the longest prompt."""
    from eyas.bench.engine.parts import driver_peak, warm_up

    device = model.weights.embed_VH.device
    if device.type == "cpu":
        return None, None
    built = model.build()
    warm_up(built.core)
    owners = built.memory_bytes
    (prompt,) = random_prompts(model.config.vocab_size, num_tokens=model.options.context - 1, count=1)
    request = Request(request_id="longest", prompt_ids=prompt, params=SamplingParams(max_tokens=1))
    peak = driver_peak(device, lambda: prefill_s(built.core, [request]))
    return sum(owners.values()) - owners["free"], peak


def _first_lines(first: _First) -> list[str]:
    lines = [f"first     {first.seconds:.2f} s, {readable(first.host_bytes)} of host memory"]
    if first.map_bytes is not None and first.driver_bytes is not None:
        by_map, by_driver = first.map_bytes / 1e9, first.driver_bytes / 1e9
        lines.append(
            f"memory    {by_map:.2f} GB by the map, {by_driver:.2f} GB by the driver: {by_map / by_driver:.3f}"
        )
    return lines


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _buffers() -> list[bytearray]:
    """Allocate buffers for as many pieces as the loader reads at once, and write to them so that they are resident."""
    from eyas.bench.engine.parts import PIECE_BYTES, THREADS

    return [bytearray(b"\1" * PIECE_BYTES) for _ in range(THREADS)]


def _measure(
    config: EngineConfig, files: Sequence[Path], ways: Sequence[_Way], buffers: Sequence[bytearray], repeat: int
) -> float | None:
    """Time every variant once with each state of the cache; return the largest share that could not be dropped."""
    from eyas.local import load_model

    cached = []
    for cache in CACHES:
        for way in ways if repeat % 2 == 0 else reversed(ways):
            gc.collect()
            if cache == "cold":
                _drop(files)
                cached.append(_cached(files))
            else:
                _read(files, buffers)
            start = time.perf_counter()
            if way.num_threads is None:
                load_model(config)
            else:
                _read(files, buffers[: way.num_threads])
            way.seconds[cache].append(time.perf_counter() - start)
    known = [share for share in cached if share is not None]
    return max(known) if known else None


def _read(files: Sequence[Path], buffers: Sequence[bytearray]) -> None:
    """Read everything once, in a thread for each buffer."""
    from eyas.bench.engine.parts import read_exactly

    free: SimpleQueue[bytearray] = SimpleQueue()
    for buffer in buffers:
        free.put(buffer)

    def read(file: Path, start: int, count: int) -> None:
        buffer = free.get()
        read_exactly(file, start, memoryview(buffer)[:count])
        free.put(buffer)

    with ThreadPoolExecutor(len(buffers)) as threads:
        pieces, most = [], len(buffers[0])
        for file in files:
            size = file.stat().st_size
            pieces += [threads.submit(read, file, start, min(most, size - start)) for start in range(0, size, most)]
        for piece in pieces:
            piece.result()


def _drop(files: Sequence[Path]) -> None:
    """Drop the files from the page cache; sync first, as dirty pages stay."""
    for file in files:
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _cached(files: Sequence[Path]) -> float | None:
    """Return the share of sampled pages in the page cache; None where the system does not report it."""
    found = total = 0
    for file in files:
        with file.open("rb") as stream:
            for start in range(0, file.stat().st_size, SAMPLE_BYTES):
                total += 1
                try:
                    found += os.preadv(stream.fileno(), [bytearray(1)], start, os.RWF_NOWAIT)
                except BlockingIOError:
                    pass
                except OSError:
                    return None
    return found / total


def _cached_text(shares: Sequence[float | None]) -> str:
    known = [share for share in shares if share is not None]
    if not known:
        return "this system does not report whether the files were dropped from the page cache"
    return f"of the dropped files {100 * max(known):.0f} % were still in the page cache"


def _table(ways: Sequence[_Way]) -> list[str]:
    rows = []
    for cache in CACHES:
        for way in ways:
            against = paired_ratio(ways[0].rate(cache), way.rate(cache)).text(2) if way.num_threads else "-"
            name = way.name if way.num_threads is None else f"{way.name}, {way.num_threads} at once"
            rows.append([cache, name, Spread(tuple(way.seconds[cache])).text(2), way.rate(cache).text(2), against])
    return table(["cache", "", "seconds", "GB/s", "load against it"], rows)


def _figures(way: _Way, load: _Way, cache: str) -> dict[str, Any]:
    """Return one row for the JSON."""
    ratio = {} if way is load else {"load_against_it": paired_ratio(load.rate(cache), way.rate(cache)).json()}
    return {
        "cache": cache,
        "what": way.name,
        "threads": way.num_threads,
        "seconds": Spread(tuple(way.seconds[cache])).json(),
        "gb_s": way.rate(cache).json(),
        **ratio,
    }

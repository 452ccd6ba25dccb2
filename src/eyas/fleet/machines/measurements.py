"""Measurement files of this machine, in `EYAS_HOME/measurements`: one a model. `eyas tune` writes, plans read them.

A file counts on the machine that it was written on, for the weights that were measured: the processor or the GPUs with
their driver, and names, sizes and times of a folder's files, are part of it.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path

import msgspec

from eyas.base.bundled import random_shape
from eyas.base.errors import UserError
from eyas.fleet.machines.machine import Machine
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.measured import FORMAT, Measurements
from eyas.recipes.plan import Measured
from eyas.recipes.planning.ask import Ask

__all__ = ["file_of", "identity", "measured_here", "read", "weights_of", "write"]

FOLDER = "measurements"
CPUINFO = Path("/proc/cpuinfo")
GIB = 1 << 30


def identity(machine: Machine) -> str:
    """Return what tells a machine from others, for people: its GPUs and driver, else processor, cores and memory."""
    if machine.gpus:
        names = [gpu.name for gpu in machine.gpus]
        gpus = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
        return f"{gpus}, driver {machine.driver}"
    model = next((line for line in _cpuinfo() if line.startswith("model name")), machine.architecture)
    cores = len(os.sched_getaffinity(0))
    return f"{model.partition(':')[2].strip() or model}, {cores} cores, {machine.memory_bytes / GIB:.0f} GiB"


def weights_of(ask: Ask) -> str:
    """Return what tells the weights that are asked for from others: a name, a digest of a folder's files, a rate."""
    if random_shape(ask.model) is not None:
        return f"{_name(ask)}, acceptance {ask.simulate_acceptance or 'of chance'}"
    folder = Path(ask.model).expanduser()
    if not folder.is_dir():
        return _name(ask)
    digest = blake2b(digest_size=8)
    for path in sorted(folder.glob("*.safetensors")) + sorted(folder.glob("config.json")):
        status = path.stat()
        digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return f"{folder.resolve()} {digest.hexdigest()}"


def file_of(home: Path, ask: Ask) -> Path:
    """Return where the measurements of the model that is asked for are kept."""
    return home / FOLDER / f"{_name(ask)}.json"


def _name(ask: Ask) -> str:
    """Return a file's name for a model, the same for all of its names."""
    shape = random_shape(ask.model)
    folder = Path(ask.model).expanduser()
    if shape is None and folder.is_dir():
        return f"{folder.resolve().name}-{blake2b(str(folder.resolve()).encode(), digest_size=4).hexdigest()}"
    name = knowledge().model(shape or ask.model).name
    return name if shape is None else f"random-{name}"


def read(path: Path) -> Measurements | None:
    """Read a measurement file; None where there is none. Raises UserError for a file that is none."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Measurements)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise UserError(f"{path} holds no measurements ({error}); move it away, or add --no-measurements") from None
    if found.format != FORMAT:
        raise UserError(f"{path} has format {found.format}, this eyas reads format {FORMAT}; measure again: eyas tune")
    return found


def write(path: Path, measurements: Measurements) -> None:
    """Write a measurement file, whole or not at all. Raises UserError where that is not possible."""
    unfinished = path.with_suffix(".partial")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(measurements), indent=1) + b"\n")
        unfinished.replace(path)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None


def measured_here(home: Path, ask: Ask, machine: Machine) -> tuple[Measured, ...]:
    """Return what was measured of the model that is asked for, on this machine. Raises UserError for a broken file."""
    found = read(file_of(home, ask))
    if found is None or (found.machine, found.weights) != (identity(machine), weights_of(ask)):
        return ()
    return found.rows


def _cpuinfo() -> list[str]:
    try:
        return CPUINFO.read_text(errors="replace").splitlines()
    except OSError:
        return []

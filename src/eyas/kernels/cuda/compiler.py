"""Compiles the .cu files of this folder's rooms with NVRTC (through cuda-core) and keeps the result on disk.

`load` is for the current device and gives kernels to launch; `compile_for` and `build` need no GPU.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import re
import uuid
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch

from eyas.kernels.cuda.launch import Kernel

__all__ = ["Build", "Module", "Usage", "build", "cache_folder", "compile_for", "device_arch", "load"]

FOLDER = Path(__file__).parent
INSTALL_HINT = "CUDA kernels need cuda-core, cuda-bindings and NVRTC: pip install 'eyas[gpu]'"
DIGEST_BYTES = 32
# What code depends on besides source and options. Patch releases of NVRTC show in its package's version alone; where
# another package or a toolkit brings it, that is not there.
COMPILER_PACKAGES = ("cuda-bindings", "cuda-core", "nvidia-cuda-nvrtc")

Defines = Mapping[str, int | str]


class Usage(NamedTuple):
    """Resources that a kernel takes of a multiprocessor, as ptxas reports them."""

    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int


class Build(NamedTuple):
    cubin: bytes
    usage: dict[str, Usage]


class Module:
    """The kernels of one compiled source on one device."""

    def __init__(self, cubin: bytes, name: str) -> None:
        from cuda.core import Device, ObjectCode

        Device(torch.cuda.current_device()).set_current()  # PyTorch makes its context with its first tensor
        self._code = ObjectCode.from_cubin(cubin, name=name)
        self._kernels: dict[str, Kernel] = {}

    def kernel(self, name: str) -> Kernel:
        """The kernel `extern "C" __global__ void name(...)`."""
        if name not in self._kernels:
            self._kernels[name] = Kernel(self._code.get_kernel(name), name)
        return self._kernels[name]


def load(source: str, defines: Defines | None = None) -> Module:
    """Load `source`.cu, such as "dense/linear", with these defines, for the current CUDA device.

    It is compiled once a machine and loaded once a process.

    Raises RuntimeError that says what to install when cuda-core or NVRTC is missing, and for devices before Hopper.
    """
    return _load(source, tuple(sorted((defines or {}).items())), torch.cuda.current_device())


@functools.cache
def _load(source: str, defines: tuple[tuple[str, int | str], ...], device: int) -> Module:
    return Module(compile_for(source, dict(defines), device_arch(device)), source)


def device_arch(device: int | None = None) -> str:
    """NVRTC's name for a device, such as sm_90 or sm_121. RuntimeError for those before Hopper."""
    major, minor = torch.cuda.get_device_capability(device)
    if major < 9:
        raise RuntimeError(f"CUDA kernels need compute capability 9.0 (Hopper) or newer, not {major}.{minor}")
    return f"sm_{major}{minor}"


def compile_for(source: str, defines: Defines | None = None, arch: str = "sm_90", *, folder: Path = FOLDER) -> bytes:
    """Machine code (a cubin) of `source`.cu for `arch`, from the disk cache where that has it."""
    cache, arch = cache_folder(), _arch_of(source, arch, folder)
    if cache is None:
        return build(source, defines, arch, folder=folder).cubin
    path = cache / f"{Path(source).name}-{arch}-{_key(folder / f'{source}.cu', _options(source, defines, arch))}.cubin"
    cubin = _read_checked(path)
    if cubin is None:
        cubin = build(source, defines, arch, folder=folder).cubin
        _write_checked(path, cubin)
    return cubin


def build(source: str, defines: Defines | None = None, arch: str = "sm_90", *, folder: Path = FOLDER) -> Build:
    """Compile without the cache, and return what each kernel uses."""
    _versions()  # a clear error first
    arch = _arch_of(source, arch, folder)
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(include_path=str(FOLDER), **_options(source, defines, arch))
    log = io.StringIO()
    code = Program((folder / f"{source}.cu").read_text(), "c++", options).compile("cubin", logs=log)
    return Build(bytes(code.code), _parse_usage(log.getvalue()))


def _arch_of(source: str, arch: str, folder: Path) -> str:
    """Return the architecture with its own instructions for what needs them: sm_90a for sources with wgmma."""
    needs_own = '#include "wgmma.cuh"' in (folder / f"{source}.cu").read_text()
    return f"{arch}a" if needs_own and not arch.endswith("a") else arch


def _options(source: str, defines: Defines | None, arch: str) -> dict[str, Any]:
    """Return fields of cuda.core.ProgramOptions; all but the folder of the headers, whose text counts instead."""
    return {
        "name": f"{source}.cu",
        "arch": arch,
        "std": "c++17",
        "define_macro": [(name, str(value)) for name, value in sorted((defines or {}).items())] or None,
        "ptxas_options": ["-v"],
        "no_cache": True,  # code from the driver's own cache comes without the report
    }


def cache_folder() -> Path | None:
    """Return the folder of compiled code; None for a user without a home."""
    given = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(given) if given else Path.home() / ".cache") / "eyas" / "kernels"
    except RuntimeError:
        return None


@functools.cache
def _versions() -> tuple[str | None, ...]:
    """NVRTC's own version and those of the packages that compile."""
    try:
        import cuda.core  # noqa: F401
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:  # the bindings are there, libnvrtc is not: RuntimeError
        raise RuntimeError(f"{INSTALL_HINT} ({error})") from error
    return f"{major}.{minor}", *map(_package_version, COMPILER_PACKAGES)


def _package_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _key(source: Path, options: Mapping[str, Any]) -> str:
    texts = [path.read_bytes() for path in (source, *sorted(FOLDER.rglob("*.cuh")))]
    parts = (texts, sorted(options.items()), _versions())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def _read_checked(path: Path) -> bytes | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, cubin = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    return cubin if hashlib.sha256(cubin).digest() == digest else None


def _write_checked(path: Path, cubin: bytes) -> None:
    """Write to the cache. A folder that cannot be written costs a compilation per start, nothing else."""
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_bytes(hashlib.sha256(cubin).digest() + cubin)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError:
        pass


def _parse_usage(log: str) -> dict[str, Usage]:
    """Parse the report of ptxas -v: a block of lines per kernel, its name on the first."""
    usage = {}
    for block in log.split("Compiling entry function ")[1:]:
        name = block.split("'")[1]
        numbers = (
            r"Used (\d+) registers",
            r"(\d+) bytes spill stores",
            r"(\d+) bytes spill loads",
            r"(\d+) bytes stack frame",
            r"(\d+) bytes smem",
        )
        registers, stores, loads, stack, shared = (
            int(found[1]) if (found := re.search(pattern, block)) else 0 for pattern in numbers
        )
        usage[name] = Usage(registers, stores + loads, stack, shared)
    return usage

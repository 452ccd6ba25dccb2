"""Runs the CUDA kernels of src/eyas/kernels/cuda on CPU tensors: g++ compiles the same text against emulate.h.

`emulated(source, defines).kernel(name).launch(grid, block, *args)` has the signature of `compiler.load(...)`, so a test
of a Python operation replaces the `load` that its module imported: `monkeypatch.setattr(linear, "load", emulated)`.
Tensors are placed before a page that nobody may touch: an access past the end of a storage is an error.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from tests.kernels.support.built_once import built_once
from torch import Tensor

from eyas.kernels.cuda.compiler import FOLDER
from eyas.kernels.cuda.launch import Parameters

__all__ = ["EmulatedKernel", "EmulatedModule", "emulated"]

HERE = Path(__file__).parent
KERNEL_NAME = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\(")
FLAGS = (
    "-std=c++17", "-O1", "-fPIC", "-w", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE", "-DEYAS_EMULATE",
    "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error",
)  # fmt: skip
PROTECT_NONE = 0


class _Launch(ctypes.Structure):
    """emulate::Launch."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("pdl", ctypes.c_uint),
        ("seed", ctypes.c_ulonglong),
        ("args", ctypes.POINTER(ctypes.c_void_p)),
        ("message", ctypes.c_char_p),
        ("message_bytes", ctypes.c_ulonglong),
    )


class EmulatedKernel:
    def __init__(self, library: ctypes.CDLL, name: str, seed: int) -> None:
        self.name = name
        self._seed = seed
        self._run = getattr(library, f"launch_{name}")
        sizes = (ctypes.c_int * 64)()
        count = getattr(library, f"sizes_{name}")(sizes)
        self._offsets = [8 * i for i in range(count)]
        self._parameters = Parameters(name, [(8 * i, sizes[i]) for i in range(count)])

    def launch(self, grid, block, *args, shared: int = 0, pdl: bool = True) -> None:
        """As Kernel.launch; RuntimeError says what the kernel did wrong and where."""
        guards = _Guards()
        params = self._parameters.pack(args, guards.address)
        pointers = (ctypes.c_void_p * 64)(*[ctypes.addressof(params) + offset for offset in self._offsets])
        message = ctypes.create_string_buffer(4096)
        launch = _Launch(
            grid=_three(grid),
            block=_three(block),
            shared_bytes=shared,
            pdl=pdl,
            seed=self._seed,
            args=pointers,
            message=ctypes.cast(message, ctypes.c_char_p),
            message_bytes=len(message),
        )
        self._run(ctypes.byref(launch))
        guards.copy_back()
        if message.value:
            raise RuntimeError(message.value.decode())


class EmulatedModule:
    def __init__(self, library: ctypes.CDLL, seed: int) -> None:
        self._library = library
        self._seed = seed

    def kernel(self, name: str) -> EmulatedKernel:
        return EmulatedKernel(self._library, name, self._seed)


def emulated(
    source: str, defines: Mapping[str, int | str] | None = None, *, seed: int = 0, folder: Path = FOLDER
) -> EmulatedModule:
    """`source`.cu for the CPU. A seed other than 0 shuffles the order of blocks, and of the threads of each block."""
    return EmulatedModule(_build(folder / f"{source}.cu", tuple(sorted((defines or {}).items()))), seed)


@functools.cache
def _build(source: Path, defines: tuple[tuple[str, int | str], ...]) -> ctypes.CDLL:
    text = f'#include "{source.name}"\n'
    text += "".join(f"EYAS_EMULATED_KERNEL({name})\n" for name in KERNEL_NAME.findall(source.read_text()))
    flags = ["-shared", *(f"-D{name}={value}" for name, value in defines)]
    return ctypes.CDLL(str(_compile(f"{source.stem}.so", text, flags, source, header=_precompiled_header())))


@functools.cache
def _precompiled_header() -> Path:
    """The words of CUDA for g++, read once: two thirds of the time of a build else."""
    return _compile("common.h.gch", '#include "common.cuh"\n', ["-x", "c++-header"]).with_suffix("")


def _compile(name: str, text: str, flags: list[str], source: Path | None = None, *, header: Path | None = None) -> Path:
    """Compile `text`, which includes `source`, unless that was done before. Skips the test without g++."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++: kernels cannot be emulated")
    own = [source] if source else []

    def build(built: Path) -> None:
        unit = built.parent / "unit.cpp"
        unit.write_text(text)
        folders = [f"-I{folder}" for folder in (FOLDER, HERE, *(path.parent for path in own))]
        included = ["-include", str(header)] if header else []
        command = [compiler, *FLAGS, *folders, *flags, *included, str(unit), "-o", str(built)]
        result = subprocess.run(command, text=True, capture_output=True)
        if result.returncode:
            raise RuntimeError(f"g++ rejects {name}:\n{result.stderr[:4000]}")

    sources = [*own, *sorted(FOLDER.rglob("*.cuh")), *sorted(HERE.glob("*.h"))]
    return built_once("emulator", name, sources, (text, FLAGS, flags), build)


class _Guards:
    """Copies of tensors' storages, each with its end at a page that nobody may touch."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[Tensor, mmap.mmap, int]] = {}  # by the storage's address

    def address(self, tensor: Tensor) -> int:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._copies:
            self._copies[storage.data_ptr()] = self._guard(storage)
        _, _, base = self._copies[storage.data_ptr()]
        return base + tensor.data_ptr() - storage.data_ptr()

    def copy_back(self) -> None:
        for whole, _, base in self._copies.values():
            ctypes.memmove(whole.data_ptr(), base, whole.numel())

    @staticmethod
    def _guard(storage: torch.UntypedStorage) -> tuple[Tensor, mmap.mmap, int]:
        whole = torch.tensor([], dtype=torch.uint8).set_(storage)
        num_bytes, page = whole.numel(), mmap.PAGESIZE
        room = -(-num_bytes // page) * page
        region = mmap.mmap(-1, room + page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(region))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(start + room), ctypes.c_size_t(page), PROTECT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
        base = start + room - -(-num_bytes // 16) * 16  # 16-byte alignment, as vector loads need
        ctypes.memmove(base, whole.data_ptr(), num_bytes)
        return whole, region, base


def _three(size) -> tuple[int, int, int]:
    return (size, 1, 1) if isinstance(size, int) else (*size, *(1,) * (3 - len(size)))

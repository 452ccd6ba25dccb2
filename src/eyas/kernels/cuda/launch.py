"""Launches a compiled kernel on PyTorch's current stream, with programmatic dependent launch, in or out of a graph.

Calls the driver's cuLaunchKernelEx through ctypes: a few microseconds of host time, which counts where prefill runs
without a graph.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Kernel", "Parameters", "Plan", "cluster_wave"]

MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CU_FUNC_ATTRIBUTE_...
PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_...
PARAM_BUFFER_POINTER, PARAM_BUFFER_SIZE = 1, 2  # CU_LAUNCH_PARAM_...

Size = int | tuple[int, ...]


class Plan(NamedTuple):
    """A launch without its arguments: a kernel, its defines, blocks, threads of each, their shared memory."""

    kernel: str
    defines: dict[str, int]
    grid: tuple[int, ...]
    threads: int
    shared_bytes: int


def cluster_wave(num_sms: int, blocks: int) -> int:
    """Return how many clusters of `blocks` blocks run at once: 30 of 4 on the 132 multiprocessors of an H200."""
    return max(1, num_sms * 10 // (11 * blocks)) if blocks > 1 else num_sms


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute of cuda.h."""

    _fields_ = (("id", ctypes.c_uint), ("padding", ctypes.c_uint), ("value", ctypes.c_uint * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig of cuda.h: grid, block, dynamic shared bytes, stream, attributes."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("num_attributes", ctypes.c_uint),
    )


class Parameters:
    """Layout of a kernel's arguments in its parameter block."""

    def __init__(self, name: str, places: list[tuple[int, int]]) -> None:
        """Take `places`: offset and size in bytes of every parameter."""
        self.num_bytes = max((offset + size for offset, size in places), default=0)
        self._name = name
        self._places = places
        self._layouts: dict[tuple[type, ...], struct.Struct] = {}

    def pack(
        self, args: tuple[Any, ...], address: Callable[[Tensor], int] = Tensor.data_ptr
    ) -> ctypes.Array[ctypes.c_char]:
        """Return the parameter block for these arguments; TypeError where they do not fit the kernel's parameters."""
        types = tuple(map(type, args))
        layout = self._layouts.get(types)
        if layout is None:
            layout = self._layouts[types] = self._layout(types)
        values = [0 if arg is None else address(arg) if isinstance(arg, Tensor) else arg for arg in args]
        block = ctypes.create_string_buffer(max(1, self.num_bytes))
        layout.pack_into(block, 0, *values)
        return block

    def _layout(self, types: tuple[type, ...]) -> struct.Struct:
        if len(types) != len(self._places):
            raise TypeError(f"{self._name} takes {len(self._places)} arguments, not {len(types)}")
        layout, end = "<", 0
        for i, ((offset, size), kind) in enumerate(zip(self._places, types, strict=True)):
            if issubclass(kind, Tensor) or kind is type(None):
                code = {8: "Q"}.get(size)
            elif issubclass(kind, float):
                code = {4: "f"}.get(size)
            else:
                code = {1: "b", 4: "i", 8: "q"}.get(size)
            if code is None:
                raise TypeError(f"argument {i} of {self._name} has {size} bytes: a {kind.__name__} does not fit")
            layout += f"{offset - end}x{code}"
            end = offset + size
        return struct.Struct(layout)


class Kernel:
    """A kernel on the device that was current when it was loaded."""

    def __init__(self, kernel: Any, name: str) -> None:
        """Take `kernel`, a cuda.core Kernel, which keeps the loaded code alive."""
        self.name = name
        self._kernel = kernel
        self._device = torch.cuda.current_device()
        self._driver = _driver()
        function = ctypes.c_void_p()
        _check(self._driver, self._driver.cuKernelGetFunction(ctypes.byref(function), int(kernel.handle)))
        self._function = function.value
        self._parameters = Parameters(name, [(info.offset, info.size) for info in kernel.arguments_info])
        self._num_bytes = ctypes.c_size_t(self._parameters.num_bytes)
        self._shared_limit = 0
        self._attribute = _Attribute(id=PROGRAMMATIC_STREAM_SERIALIZATION, value=(1,))
        self._attribute_address = ctypes.addressof(self._attribute)

    def launch(self, grid: Size, block: Size, *args: Any, shared: int = 0, pdl: bool = True) -> None:
        """Run `grid` blocks of `block` threads with `shared` bytes of dynamic shared memory.

        Arguments: tensors (their address), None (a null pointer), ints (i32 or i64, whichever the kernel declares),
        floats. Nothing is checked about a tensor: its device, type and layout are the caller's. `pdl`: the kernel may
        start while the one before it in the stream still runs; it must then call pdl_wait() before it reads or writes
        what the others write.
        """
        if shared > self._shared_limit:
            self._raise_shared_limit(shared)
        params = self._parameters.pack(args)
        extra = (ctypes.c_void_p * 5)(
            PARAM_BUFFER_POINTER,
            ctypes.addressof(params),
            PARAM_BUFFER_SIZE,
            ctypes.addressof(self._num_bytes),
            0,
        )
        config = _Config(
            *_three(grid),
            *_three(block),
            shared,
            torch._C._cuda_getCurrentRawStream(self._device),
            self._attribute_address,
            1 if pdl else 0,
        )
        result = self._driver.cuLaunchKernelEx(ctypes.byref(config), self._function, None, extra)
        if result:
            _check(self._driver, result, f"{self.name}, grid {grid}, block {block}, {shared} bytes shared")

    def _raise_shared_limit(self, shared: int) -> None:
        result = self._driver.cuFuncSetAttribute(self._function, MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
        _check(self._driver, result, f"{self.name}: {shared} bytes of dynamic shared memory")
        self._shared_limit = shared


@functools.cache
def _driver() -> ctypes.CDLL:
    driver = ctypes.CDLL("libcuda.so.1")
    pointer = ctypes.c_void_p
    driver.cuLaunchKernelEx.argtypes = (pointer, pointer, pointer, pointer)
    driver.cuKernelGetFunction.argtypes = (pointer, pointer)
    driver.cuFuncSetAttribute.argtypes = (pointer, ctypes.c_int, ctypes.c_int)
    driver.cuGetErrorString.argtypes = (ctypes.c_int, pointer)
    return driver


def _check(driver: ctypes.CDLL, result: int, what: str = "") -> None:
    if result:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(result, ctypes.byref(text))
        raise RuntimeError(f"CUDA error {result}: {(text.value or b'unknown').decode()} {what}".rstrip())


def _three(size: Size) -> tuple[int, ...]:
    return (size, 1, 1) if isinstance(size, int) else size + (1,) * (3 - len(size))

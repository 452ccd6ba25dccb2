"""Reads tensors of safetensors files by name: mapped into memory, or streamed to a GPU at the speed of the disk.

Streaming reads ahead in a known order: threads read pieces into pinned buffers, and each piece is copied to the GPU
while others are read. So host memory holds `BUFFERS * PIECE_BYTES` of the model at most. Files are read through the
page cache, from which the next start is faster; where GPU and CPU share the memory the cache is emptied as reading
goes on, because the GPU lacks what it holds.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from eyas.base.errors import UserError
from eyas.model.checkpoints.shards import StoredTensor

__all__ = ["MappedTensors", "StreamedTensors", "TensorFiles", "read_exactly"]

THREADS = 8
BUFFERS = 12  # more than threads: some are being copied
PIECE_BYTES = 16 << 20
AHEAD_BYTES = 1 << 30  # of GPU memory, for tensors that are not asked for yet

_DTYPES = {
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
}


class TensorFiles(Protocol):
    def tensor(self, name: str) -> Tensor:
        """The tensor as stored. Raises UserError for a file that cannot be read."""


class MappedTensors:
    """CPU tensors backed by the files of `folder`, which stay mapped until `files` closes."""

    def __init__(self, folder: Path, stored: Mapping[str, StoredTensor], files: ExitStack) -> None:
        self._folder, self._stored, self._files = folder, stored, files
        self._open: dict[str, Any] = {}

    def tensor(self, name: str) -> Tensor:
        file = self._stored[name].file
        path = self._folder / file
        try:
            if file not in self._open:
                self._open[file] = self._files.enter_context(safe_open(str(path), framework="pt"))
            tensor: Tensor = self._open[file].get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise _unreadable(path, error) from error
        return tensor


class _Buffer(NamedTuple):
    pinned: Tensor  # uint8
    copied: torch.cuda.Event | None  # to the device


class _Coming(NamedTuple):
    name: str
    data: Tensor  # uint8, on the device
    pieces: list[Future[None]]


class StreamedTensors:
    """Device tensors, to be asked for in the order of `names`. Reading ends when `files` closes."""

    def __init__(
        self,
        folder: Path,
        stored: Mapping[str, StoredTensor],
        names: Iterable[str],
        device: torch.device,
        files: ExitStack,
    ) -> None:
        is_cuda = device.type == "cuda"
        self._folder, self._stored, self._device = folder, stored, device
        self._waiting = deque(names)
        self._coming: deque[_Coming] = deque()
        self._ahead_bytes = 0
        self._stream = torch.cuda.Stream(device) if is_cuda else None
        self._empties_cache = is_cuda and bool(torch.cuda.get_device_properties(device).is_integrated)
        self._buffers: SimpleQueue[_Buffer | None] = SimpleQueue()
        for _ in range(BUFFERS):
            self._buffers.put(None)  # made when it is needed: pinning takes 0.5 ms a megabyte
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="eyas-load")
        files.callback(self._threads.shutdown, cancel_futures=True)

    def tensor(self, name: str) -> Tensor:
        while self._waiting and (not self._coming or self._ahead_bytes < AHEAD_BYTES):
            self._start(self._waiting.popleft())
        coming, stored = self._coming.popleft(), self._stored[name]
        assert coming.name == name, f"{name} was asked for, but {coming.name} is next"
        self._ahead_bytes -= stored.num_bytes
        try:
            for piece in coming.pieces:
                piece.result()
        except OSError as error:
            raise _unreadable(self._folder / stored.file, error) from error
        if self._stream is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_stream(self._stream)
            coming.data.record_stream(current)  # so that its memory is not filled again before it has been read
        return coming.data.view(_DTYPES[stored.dtype]).view(stored.shape)

    def _start(self, name: str) -> None:
        stored = self._stored[name]
        assert stored.start is not None, f"of {name} only the header is here"
        with torch.cuda.stream(self._stream):
            data = torch.empty(stored.num_bytes, dtype=torch.uint8, device=self._device)
        path = self._folder / stored.file
        pieces = [
            self._threads.submit(self._copy, path, stored.start + offset, data[offset : offset + PIECE_BYTES])
            for offset in range(0, stored.num_bytes, PIECE_BYTES)
        ]
        self._coming.append(_Coming(name, data, pieces))
        self._ahead_bytes += stored.num_bytes

    @torch.inference_mode()  # a mode of the thread: without it nothing may be written to what another made in it
    def _copy(self, path: Path, start: int, out: Tensor) -> None:
        """Fill `out` with the bytes of the file from `start` on; what follows on the stream finds them there."""
        buffer = self._buffers.get() or self._new_buffer()
        try:
            if buffer.copied is not None:
                buffer.copied.synchronize()
            piece = buffer.pinned[: len(out)]
            read_exactly(path, start, piece.numpy().data, empties_cache=self._empties_cache)
            with torch.cuda.stream(self._stream):
                out.copy_(piece, non_blocking=True)
                if buffer.copied is not None:
                    buffer.copied.record()
        finally:
            self._buffers.put(buffer)

    def _new_buffer(self) -> _Buffer:
        is_cuda = self._device.type == "cuda"
        pinned = torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=is_cuda)
        return _Buffer(pinned, torch.cuda.Event() if is_cuda else None)


def read_exactly(path: Path, start: int, out: memoryview, *, empties_cache: bool = False) -> None:
    """Fill `out`, which has bytes, with those of the file from `start` on. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        done = 0
        while done < len(out):
            count = os.preadv(file, [out[done:]], start + done)
            if not count:
                raise OSError(f"it ends at byte {start + done}")
            done += count
        if empties_cache:
            os.posix_fadvise(file, start, len(out), os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} cannot be read ({error}); download it again")

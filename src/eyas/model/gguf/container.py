"""Writes the GGUF container as a stream: header and tensor list first, then each tensor's bytes as they are made.

The layout of the header is the `gguf` library's. MXFP4 is repacked from the checkpoints' order of nibbles to ggml's
without touching a value: both have an E8M0 scale per 32 elements, and the same sixteen E2M1 values.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType, GGUFWriter
from torch import Tensor

from eyas.base.errors import UserError
from eyas.model.checkpoints.shards import Progress
from eyas.model.mxfp4 import Mxfp4Tensor

__all__ = ["Array", "GgufTensor", "GgufType", "ggml_mxfp4", "raw", "write_gguf"]

Array = np.ndarray[Any, Any]
GgufType = GGMLQuantizationType
Value = bool | int | float | str | Sequence[int] | Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufTensor:
    """A tensor to be written, `shape` slowest axis first; its bytes come in chunks, each made when its turn comes."""

    name: str
    shape: tuple[int, ...]
    kind: GgufType
    chunks: Callable[[], Iterator[Array]]

    @property
    def num_bytes(self) -> int:
        block, block_bytes = GGML_QUANT_SIZES[self.kind]
        return prod(self.shape) // block * block_bytes


def raw(tensor: Tensor) -> Array:
    """Return the bytes of a tensor, bf16 included, which numpy does not know."""
    array: Array = tensor.contiguous().view(torch.uint8).numpy()
    return array


def ggml_mxfp4(packed: Mxfp4Tensor) -> Array:
    """Return [..., N, K/32 * 17] bytes: per block the scale, then 16 bytes whose low nibbles are elements 0 to 15.

    The checkpoint's bytes hold elements 2k (low) and 2k + 1 (high) instead.
    """
    blocks = packed.blocks.numpy()
    codes = np.stack((blocks & 0xF, blocks >> 4), axis=-1).reshape(*blocks.shape[:-1], 32)
    bytes_ = codes[..., :16] | codes[..., 16:] << 4
    whole = np.concatenate((packed.scales.numpy()[..., None], bytes_), axis=-1)
    return whole.reshape(*whole.shape[:-2], -1)


def write_gguf(
    path: Path,
    arch: str,
    metadata: Mapping[str, Value],
    tensors: Sequence[GgufTensor],
    *,
    progress: Progress | None = None,
) -> None:
    """Write `path` whole or not at all; replaces a file. Raises UserError if the disk is too small."""
    total = sum(tensor.num_bytes for tensor in tensors)
    free = shutil.disk_usage(path.parent).free
    if total > free:
        raise UserError(f"{path} needs {total / 1e9:.1f} GB, but the disk has {free / 1e9:.1f} GB free")
    partial = path.with_name(path.name + ".partial")
    writer = GGUFWriter(partial, arch)
    for key, value in metadata.items():
        writer.add_key_value(key, value, _value_type(value))
    for tensor in tensors:
        # With a raw type given, the numpy one is not looked at.
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), tensor.num_bytes, tensor.kind)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        assert writer.fout is not None
        stream, done = writer.fout[0], 0
        for tensor in tensors:
            writer.write_padding(stream, stream.tell())
            start = stream.tell()
            for chunk in tensor.chunks():
                stream.write(chunk.data)
                done += chunk.nbytes
                if progress:
                    progress(done, total)
            assert stream.tell() - start == tensor.num_bytes, tensor.name
        writer.write_padding(stream, stream.tell())
        writer.close()
        partial.replace(path)
    finally:
        writer.close()
        partial.unlink(missing_ok=True)


def _value_type(value: Value) -> GGUFValueType:
    if isinstance(value, bool):
        return GGUFValueType.BOOL
    if isinstance(value, int):
        return GGUFValueType.UINT32
    if isinstance(value, float):
        return GGUFValueType.FLOAT32
    return GGUFValueType.STRING if isinstance(value, str) else GGUFValueType.ARRAY

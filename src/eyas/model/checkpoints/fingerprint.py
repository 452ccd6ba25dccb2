"""Names a checkpoint by its contents, so that what was made from one is not mixed with what was made from another."""

from __future__ import annotations

import hashlib
from pathlib import Path

from eyas.base.errors import UserError
from eyas.model.checkpoints.reading import Stored

__all__ = ["fingerprint"]

_SAMPLE = 1024  # bytes from the middle of each tensor: to read all of a large model would take minutes


def fingerprint(folder: Path, stored: Stored) -> str:
    """Return 32 hex digits from the name, dtype and shape of every tensor and a sample of its bytes.

    A changed checkpoint has other samples, since training changes all of a tensor. Raises UserError for a file that
    cannot be read.
    """
    digest = hashlib.sha256()
    for name in sorted(stored):
        tensor = stored[name]
        digest.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
        assert tensor.start is not None
        count = min(_SAMPLE, tensor.num_bytes)
        try:
            with (folder / tensor.file).open("rb") as stream:
                stream.seek(tensor.start + (tensor.num_bytes - count) // 2)
                digest.update(stream.read(count))
        except OSError as error:
            raise UserError(f"{folder / tensor.file} cannot be read: {error.strerror}") from error
    return digest.hexdigest()[:32]

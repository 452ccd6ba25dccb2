"""Several processes that train one head together: started by torchrun, they exchange nothing but sums."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.nn  # before a group exists: see `joined_processes`
from torch import Tensor

from eyas.base.errors import UserError

__all__ = ["Processes", "joined_processes", "local_device"]

PATIENCE = timedelta(minutes=10)  # with a process that does not come to an exchange


class Processes:
    """The processes of a run; one alone unless torchrun started this one."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over all processes; one exchange for each dtype.

        Raises UserError if another process has ended or does not answer, as all methods do.
        """
        if self.size == 1:
            return
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
        for group in by_dtype.values():
            flat = torch.cat([tensor.flatten() for tensor in group])
            with _peers():
                dist.all_reduce(flat)
            parts = flat.split([tensor.numel() for tensor in group])
            for tensor, part in zip(group, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in at least one process."""
        total = torch.tensor(int(flag), device=self._device)
        self.add([total])
        return bool(total)

    def of_first(self, value: float) -> float:
        """Return the value of the first process, so that all of them decide alike."""
        shared = torch.tensor(value if self.is_first else 0.0, dtype=torch.float64, device=self._device)
        self.add([shared])
        return float(shared)

    def wait(self) -> None:
        """Return once all processes have come here."""
        if self.size > 1:
            with _peers():
                dist.barrier()

    @property
    def _device(self) -> str:
        return "cuda" if self.size > 1 and dist.get_backend() == "nccl" else "cpu"


@contextmanager
def _peers() -> Iterator[None]:
    """Report an exchange that failed: torch raises RuntimeError when a connection breaks or the time is up."""
    try:
        yield
    except RuntimeError as error:
        raise UserError(
            "another process of this run has ended or does not answer; see its own message. "
            "`eyas train resume` goes on from the last checkpoint"
        ) from error


def local_device(name: str) -> str:
    """Return the device of this process: of several on one machine each has a GPU of its own, unless `name` says which.

    torchrun numbers them in LOCAL_RANK.
    """
    own = os.environ.get("LOCAL_RANK")
    if own is None or name not in ("auto", "cuda") or not torch.cuda.is_available():
        return name
    return f"cuda:{own}"


@contextmanager
def joined_processes(device: torch.device) -> Iterator[Processes]:
    """Join the processes that torchrun started, until the end of the block. Raises UserError.

    No thread of the group outlives the block: one that drops a tensor while Python ends aborts the process. Functions
    of `torch.distributed.nn` have a group as their default, the one that exists at their import, and so keep it for
    ever; torch's optimizers import them.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Processes()
        return
    try:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"cannot join the {size} processes of torchrun: {' '.join(str(error).split())}") from error
    try:
        yield Processes(dist.get_rank(), size)
    finally:
        dist.destroy_process_group()

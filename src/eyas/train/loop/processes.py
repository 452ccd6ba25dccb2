"""Several processes that train one head together: started by torchrun, they exchange nothing but sums."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from eyas.base.errors import UserError

__all__ = ["Processes", "joined_processes"]


class Processes:
    """The processes of a run; one alone unless torchrun started this one."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over all processes; one exchange for each dtype."""
        if self.size == 1:
            return
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
        for group in by_dtype.values():
            flat = torch.cat([tensor.flatten() for tensor in group])
            dist.all_reduce(flat)
            parts = flat.split([tensor.numel() for tensor in group])
            for tensor, part in zip(group, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in at least one process."""
        total = torch.tensor([int(flag)])
        self.add([total] if not self._on_gpu else [total := total.cuda()])
        return bool(total.item())

    def wait(self) -> None:
        """Return once all processes have come here."""
        if self.size > 1:
            dist.barrier()

    @property
    def _on_gpu(self) -> bool:
        return self.size > 1 and dist.get_backend() == "nccl"


@contextmanager
def joined_processes(device: torch.device) -> Iterator[Processes]:
    """Join the processes that torchrun started, until the end of the block. Raises UserError."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Processes()
        return
    try:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    except (RuntimeError, ValueError) as error:
        raise UserError(f"cannot join the {size} processes of torchrun: {' '.join(str(error).split())}") from error
    try:
        yield Processes(dist.get_rank(), size)
    finally:
        dist.destroy_process_group()

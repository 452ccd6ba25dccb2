"""Moves the states of a target on one GPU to another, where the head trains: 23 KB a token of gpt-oss."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from eyas.train.states.documents import mapped
from eyas.train.states.source import HiddenStates
from eyas.train.types import Batch, States, Teacher

__all__ = ["MovedStates", "current"]


def current(device: torch.device) -> AbstractContextManager[object]:
    """Return a block in which a GPU is the current device: our kernels are launched on that one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class MovedStates:
    """Another source, with its teacher and states on `device`. Implements `HiddenStates`.

    torch orders the copies behind what makes the states and before what reads them.
    """

    def __init__(self, source: HiddenStates, device: torch.device) -> None:
        self.config = source.config
        self.taps = source.taps
        self.labels_only = source.labels_only
        self.fingerprint = source.fingerprint
        self.teacher = Teacher(*(matrix.to(device) for matrix in source.teacher))
        self._source, self._device = source, device
        self._target_device = source.teacher.embed_VH.device

    def states(self, batch: Batch) -> States:
        with current(self._target_device):
            found = self._source.states(batch.to(self._target_device))
        return mapped(lambda x: x.to(self._device, non_blocking=True), found)

"""Shows some of a source's taps, and its teacher in another dtype."""

from __future__ import annotations

import torch

from eyas.train.states.source import HiddenStates
from eyas.train.types import Batch, States, Teacher

__all__ = ["SelectedStates"]


class SelectedStates:
    """The taps `taps` of a source that has them among others, in this order. Implements `HiddenStates`."""

    def __init__(self, source: HiddenStates, taps: tuple[int, ...], *, dtype: torch.dtype | None = None) -> None:
        """`dtype` is that of the teacher's matrices, in which heads compute; by default as it is."""
        self.config = source.config
        self.fingerprint = source.fingerprint
        self.taps = taps
        self.teacher = Teacher(*(matrix.to(dtype or matrix.dtype) for matrix in source.teacher))
        self._source = source
        self._places = [source.taps.index(tap) for tap in taps]

    def states(self, batch: Batch) -> States:
        states = self._source.states(batch)
        if states.last_TH is not None:  # its products with the teacher's matrices want one dtype
            states = states._replace(last_TH=states.last_TH.to(self.teacher.lm_head_VH.dtype))
        if self.taps == self._source.taps:
            return states
        parts = states.taps_TC.chunk(len(self._source.taps), dim=-1)
        return states._replace(taps_TC=torch.cat([parts[place] for place in self._places], dim=-1))

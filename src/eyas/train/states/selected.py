"""Shows some of a source's taps, and states and teacher in another dtype."""

from __future__ import annotations

import torch

from eyas.train.states.source import HiddenStates
from eyas.train.types import Batch, States, Teacher

__all__ = ["SelectedStates"]


class SelectedStates:
    """The taps `taps` of a source that has them among others, in this order. Implements `HiddenStates`."""

    def __init__(self, source: HiddenStates, taps: tuple[int, ...], *, dtype: torch.dtype | None = None) -> None:
        """`dtype` is that in which heads compute; by default the source's own."""
        self.config = source.config
        self.fingerprint = source.fingerprint
        self.labels_only = source.labels_only
        self.taps = taps
        self.teacher = Teacher(*(matrix.to(dtype or matrix.dtype) for matrix in source.teacher))
        self._source, self._dtype = source, dtype
        self._places = [source.taps.index(tap) for tap in taps]

    def states(self, batch: Batch) -> States:
        states = self._source.states(batch)
        taps_TC, last_TH = states.taps_TC, states.last_TH
        if self.taps != self._source.taps:
            parts = taps_TC.chunk(len(self._source.taps), dim=-1)
            taps_TC = torch.cat([parts[place] for place in self._places], dim=-1)
        if self._dtype is not None:
            taps_TC, last_TH = taps_TC.to(self._dtype), None if last_TH is None else last_TH.to(self._dtype)
        return States(taps_TC, last_TH, states.best_T)

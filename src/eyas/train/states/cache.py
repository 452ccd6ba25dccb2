"""Keeps the states of documents in host memory from one epoch to the next, as much of them as there is room for.

Where a GPU computes, that memory is pinned, and copies in both directions run beside the host (`host_memory.py`).
"""

from __future__ import annotations

from eyas.train.states.documents import concatenated, document_key, mapped, only, spans_of, split
from eyas.train.states.host_memory import HostMemory
from eyas.train.states.source import HiddenStates
from eyas.train.types import Batch, States

__all__ = ["CachedStates"]


class CachedStates:
    """Another source, asked once for each document that is kept. Implements `HiddenStates`.

    The values are those of the other source, bit for bit if there a document's states do not depend on its company.
    What was kept stays: each epoch comes by all documents in another order, so the least recently used one is as likely
    to come next as any other, and to make room for a new one would only lose hits (with room for half of the documents
    a cache that evicts hits 15 times in 100, this one 50 times).
    """

    def __init__(self, source: HiddenStates, budget_bytes: int) -> None:
        self.source = source
        self.config = source.config
        self.taps = source.taps
        self.teacher = source.teacher
        self.labels_only = source.labels_only
        self.fingerprint = source.fingerprint
        self._memory = HostMemory(budget_bytes, pinned=source.teacher.embed_VH.is_cuda)
        self._kept: dict[bytes, States] = {}

    @property
    def used_bytes(self) -> int:
        return self._memory.used_bytes

    def states(self, batch: Batch) -> States:
        spans = spans_of(batch)
        keys = [document_key(batch.ids_T[span.start : span.end]) for span in spans]
        missing = [number for number, key in enumerate(keys) if key not in self._kept]
        if len(missing) == len(spans):
            found = self.source.states(batch)
            for key, states in zip(keys, split(found, spans), strict=True):
                self._keep(key, states)
            return found
        device = self.teacher.embed_VH.device
        parts = {
            number: mapped(lambda x: x.to(device, non_blocking=True), self._kept[key])
            for number, key in enumerate(keys)
            if key in self._kept
        }
        if missing:
            rest = only(batch, missing)
            for number, states in zip(missing, split(self.source.states(rest), spans_of(rest)), strict=True):
                self._keep(keys[number], states)
                parts[number] = states
        return concatenated([parts[number] for number in range(len(spans))])

    def _keep(self, key: bytes, states: States) -> None:
        if key in self._kept:
            return
        # Copies also on a CPU: a view would hold the whole batch.
        copies = self._memory.copies([x for x in states if x is not None])
        if copies is not None:
            waiting = iter(copies)
            self._kept[key] = mapped(lambda _: next(waiting), states)

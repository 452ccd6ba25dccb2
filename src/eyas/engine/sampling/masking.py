"""Masks for the rows of constrained sequences, computed on the host while the device verifies.

The inputs of the masks (tokens committed since last time, drafts) are copied to the host before the verify pass is
launched, so the host waits for the drafts alone; only steps with constrained rows wait at all, for a few milliseconds
 (`engine.sequences.mask_jobs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from eyas.engine.round.state import DeviceState
from eyas.engine.round.types import Drafts, RowMasks
from eyas.engine.sequences.constraint import num_words
from eyas.engine.sequences.mask_jobs import ALL, ROUND_WAIT_S, SequenceMasks, wait_for_masks
from eyas.engine.sequences.sequence import Sequence

__all__ = ["MaskInput", "read_for_masks"]


@dataclass(slots=True)
class MaskInput:
    """Input of the constraints, being copied to the host: length, live, drafts, new tokens, draft ids [C, ...]."""

    sequences: list[SequenceMasks]
    rows: list[int]  # rows of the batch, among `num_sequences`
    num_sequences: int
    starts: list[int]  # position after the last token that each constraint has consumed
    rows_C: Tensor
    packed: Tensor
    num_new: int
    event: torch.cuda.Event | None
    _words_CRW: Tensor | None = field(default=None, init=False)
    _asked: dict[int, SequenceMasks] = field(default_factory=dict, init=False)  # by index in `sequences`

    @property
    def is_ready(self) -> bool:
        """Whether `ask` would not wait."""
        return self.event is None

    def ask(self, vocab_size: int) -> Tensor:
        """Wait for the copy and start the threads that compute masks, and return masks that allow all until then."""
        shape = len(self.sequences), self.packed.shape[1] - 3 - self.num_new + 1, num_words(vocab_size)
        words_CRW = torch.empty(shape, dtype=torch.int32, pin_memory=self.event is not None)
        out_CRW = words_CRW.numpy().view(np.uint32)
        out_CRW.fill(ALL)  # torch.full would wake all of its threads
        if self.event is not None:
            self.event.synchronize()
        for place, (masks, start) in enumerate(zip(self.sequences, self.starts, strict=True)):
            length, live, num_drafts, *rest = self.packed[place].tolist()
            if live:  # else it has ended on the device, which the host has not read yet
                drafts = rest[self.num_new :][:num_drafts]
                masks.ask(rest[: length - start], drafts, out_CRW[place, : len(drafts) + 1])
                self._asked[place] = masks
        self._words_CRW = words_CRW
        return words_CRW

    def masks(self, vocab_size: int) -> tuple[RowMasks, Mapping[int, int]]:
        """Return the masks written after a short wait, and how many there are of each sequence that lacks some."""
        words_CRW = self.ask(vocab_size) if self._words_CRW is None else self._words_CRW
        wait_for_masks(self._asked.values(), ROUND_WAIT_S)
        ready = {self.rows[place]: masks.num_ready() for place, masks in self._asked.items()}
        late, num_ready_S = {row: number for row, number in ready.items() if number is not None}, None
        device = self.rows_C.device
        if late:
            num_rows = words_CRW.shape[1]
            numbers = [late.get(row, num_rows) for row in range(self.num_sequences)]
            num_ready_S = torch.tensor(numbers, pin_memory=self.event is not None).to(device, non_blocking=True)
        return RowMasks(self.rows_C, words_CRW.to(device, non_blocking=True), num_ready_S), late


def read_for_masks(state: DeviceState, slots_S: Tensor, sequences: list[Sequence], drafts: Drafts) -> MaskInput | None:
    """Start copying the input of constraints to the host, and return None if no sequence has a constraint."""
    found = [(row, s, s.masks) for row, s in enumerate(sequences) if s.masks is not None]
    if not found:
        return None
    starts = [sequence.prompt_length + masks.num_consumed for _, sequence, masks in found]
    num_new = max(sequence.length_bound - start for (_, sequence, _), start in zip(found, starts, strict=True))
    rows = [row for row, _, _ in found]
    rows_C, starts_C = state.on_device([rows, starts])
    slots_C = slots_S[rows_C]
    columns = starts_C.unsqueeze(1) + torch.arange(num_new, device=state.device)
    new = state.tokens_SN[slots_C.unsqueeze(1), columns.clamp(max=state.tokens_SN.shape[1] - 1)]
    header_C = torch.stack((state.length_S[slots_C], state.live_S[slots_C].long(), drafts.num_valid_S[rows_C]), dim=1)
    packed, event = torch.cat((header_C, new, drafts.ids_SK[rows_C]), dim=1), None
    if packed.is_cuda:
        packed = torch.empty_like(packed, device="cpu", pin_memory=True).copy_(packed, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
    return MaskInput([masks for _, _, masks in found], rows, len(slots_S), starts, rows_C, packed, num_new, event)

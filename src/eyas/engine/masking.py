"""Masks for the rows of constrained sequences, made on the host while the device verifies.

What the masks depend on (tokens committed since last time, drafts) is copied to the host before the verify pass is
launched, so the host waits for the drafts alone; and only steps with constrained rows wait at all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from eyas.engine.constraint import Constraint, num_words
from eyas.engine.round import Drafts, RowMasks
from eyas.engine.sequence import Sequence
from eyas.engine.state import DeviceState

__all__ = ["MaskInput", "read_for_masks"]


class MaskInput(NamedTuple):
    """What the constraints must know, on its way to the host: length, live, drafts, new tokens, draft ids [C, ...]."""

    constraints: list[Constraint]
    starts: list[int]  # position behind the last token that each constraint has consumed
    rows_C: Tensor
    packed: Tensor
    num_new: int
    event: torch.cuda.Event | None

    def masks(self, vocab_size: int) -> RowMasks:
        """Waits for the copy, brings the constraints up to date and asks them."""
        if self.event is not None:
            self.event.synchronize()
        num_rows = self.packed.shape[1] - 3 - self.num_new + 1
        words = torch.full(
            (len(self.constraints), num_rows, num_words(vocab_size)),
            -1,
            dtype=torch.int32,
            pin_memory=self.event is not None,
        )
        out = words.numpy().view(np.uint32)
        for row, (constraint, start) in enumerate(zip(self.constraints, self.starts, strict=True)):
            length, live, num_drafts, *rest = self.packed[row].tolist()
            if live:  # else it ended on the device and the host does not know yet
                constraint.advance(rest[: length - start])
                constraint.fill(rest[self.num_new :][:num_drafts], out[row])
        return RowMasks(self.rows_C, words.to(self.rows_C.device, non_blocking=True))


def read_for_masks(state: DeviceState, slots_S: Tensor, sequences: list[Sequence], drafts: Drafts) -> MaskInput | None:
    """Start copying what the constraints of some sequences need; None if none of them has one."""
    found = [(row, s, s.constraint) for row, s in enumerate(sequences) if s.constraint is not None]
    if not found:
        return None
    starts = [sequence.prompt_length + constraint.num_consumed for _, sequence, constraint in found]
    num_new = max(sequence.length_bound - start for (_, sequence, _), start in zip(found, starts, strict=True))
    rows_C, starts_C = torch.tensor([[row for row, _, _ in found], starts]).to(state.device, non_blocking=True)
    slots_C = slots_S[rows_C]
    columns = starts_C.unsqueeze(1) + torch.arange(num_new, device=state.device)
    new = state.tokens_SN[slots_C.unsqueeze(1), columns.clamp(max=state.tokens_SN.shape[1] - 1)]
    told = torch.stack((state.length_S[slots_C], state.live_S[slots_C].long(), drafts.num_valid_S[rows_C]), dim=1)
    packed, event = torch.cat((told, new, drafts.ids_SK[rows_C]), dim=1), None
    if packed.is_cuda:
        packed = torch.empty_like(packed, device="cpu", pin_memory=True).copy_(packed, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
    return MaskInput([constraint for _, _, constraint in found], starts, rows_C, packed, num_new, event)

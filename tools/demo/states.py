"""Computes the states of the target for `eyas train` with its trainable form: many short documents in each pass.

The engine's own operations, which `eyas train` uses by itself, take one document at a time on a GPU. These states are
the same up to rounding.

Shape letters: T tokens of a packed batch, B rows of a pass, L tokens of a row.
"""

from __future__ import annotations

import torch
from target import TargetModel, Weights, hidden_states, rms_norm

from eyas.train.states.documents import spans_of
from eyas.train.types import Batch, States, Teacher

__all__ = ["BatchedStates"]


class BatchedStates:
    """States of a trainable target with final weights. Implements `HiddenStates`."""

    def __init__(
        self,
        model: TargetModel,
        weights: Weights,
        *,
        taps: tuple[int, ...],
        teacher: Teacher,
        fingerprint: str,
        row_tokens: int = 1024,
    ) -> None:
        """Put documents into rows of `row_tokens`, or of the longest document if that is longer."""
        self.config = model.config
        self.taps, self.teacher, self.fingerprint, self.labels_only = taps, teacher, fingerprint, False
        self._model, self._weights, self._row_tokens = model, weights, row_tokens

    @torch.no_grad()
    def states(self, batch: Batch) -> States:
        rows_T, columns_T, num_rows, width = self._places(batch)
        device, config = batch.ids_T.device, self.config
        ids_BL = torch.full((num_rows, width), config.pad_id or 0, device=device)
        documents_BL = torch.full_like(ids_BL, -1)
        ids_BL[rows_T, columns_T], documents_BL[rows_T, columns_T] = batch.ids_T, batch.documents_T
        rope = self._model.rope(width, device)
        boundaries, _ = hidden_states(self._weights, config, ids_BL, documents_BL, rope)
        last_TH = rms_norm(boundaries[-1][rows_T, columns_T], self._weights.norm_H, config.rms_norm_eps)
        taps_TC = torch.cat([boundaries[tap][rows_T, columns_T] for tap in self.taps], dim=-1)
        dtype = self.teacher.lm_head_VH.dtype
        return States(taps_TC.to(dtype), last_TH.to(dtype))

    def _places(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, int, int]:
        """Return row and column of each token [T], the number of rows, and their width: documents fill rows in turn."""
        spans = spans_of(batch)
        window = self.config.sliding_window
        width = max(self._row_tokens, *(span.length for span in spans))
        width += -width % window  # sliding layers go by blocks then
        places: list[tuple[int, int]] = []
        row = column = 0
        for span in spans:
            if column + span.length > width:
                row, column = row + 1, 0
            places.append((row, column))
            column += span.length
        device = batch.ids_T.device
        firsts_D2 = torch.tensor(places, device=device)
        rows_T, firsts_T = firsts_D2[batch.documents_T].unbind(1)
        return rows_T, firsts_T + batch.positions_T, row + 1, width

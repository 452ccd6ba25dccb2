"""Logits of a round of few rows from half of the lm_head's bytes, exact wherever a token may be drawn.

An 8-bit copy of the lm_head gives rough logits, a screen rules out the tokens that cannot be drawn, and the exact
product computes the tiles that are left (`kernels.triton.rounds.screen`). All of it follows on the device, in one
graph: where the screen is passed over, the same launches compute all logits, and with the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from eyas.base.types import FILTERS
from eyas.engine.round.state import DeviceState, uses_penalties
from eyas.engine.sequences.sequence import Sequence
from eyas.kernels.cuda.dense import linear
from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.kernels.layouts.int8 import RoughMatrix
from eyas.kernels.reference.layers.norm import Normed
from eyas.kernels.triton.rounds.screen import ScreenSpace, screen

__all__ = ["MAX_ROWS", "ScreenedLogits"]

MAX_ROWS = 8  # a row takes about 3 us of the 100 that an H200 saves (predicted); at 16 products take longer too


class ScreenedLogits:
    """Implements `engine.round.types.Screen`."""

    max_rows = MAX_ROWS

    def __init__(self, lm_head: BlockedMatrix, rough: RoughMatrix, state: DeviceState, eps: float) -> None:
        self._lm_head = lm_head
        self._rough = rough
        self._state = state
        self._eps = eps
        self._wishes_all = False
        self.space = ScreenSpace(MAX_ROWS, lm_head.num_rows, state.device)

    @property
    def nbytes(self) -> int:
        return self._rough.nbytes

    def expect(self, sequences: Iterable[Sequence], has_masks: bool) -> None:
        wishes_all = has_masks or any(map(_needs_all, sequences))
        if wishes_all != self._wishes_all:
            self.space.pass_over[:1].fill_(int(wishes_all))
            self._wishes_all = wishes_all

    def logits(self, normed: Normed, slots_S: Tensor, live_SR: Tensor, out_TV: Tensor | None) -> tuple[Tensor, Tensor]:
        space, state = self.space, self._state
        logits_TV = linear.logits(normed, self._rough.matrix, self._eps, out=out_TV, wanted=space.pass_over)
        live_T = live_SR.flatten()
        screen(logits_TV, normed, self._eps, self._rough, slots_S, state.length_S, live_T, state.sampling, space)
        return linear.logits(normed, self._lm_head, self._eps, out=logits_TV, wanted=space.wanted), space.wanted


def _needs_all(sequence: Sequence) -> bool:
    """Whether a request looks at logits beside the token's, or changes their order."""
    params = sequence.request.params
    filters = params.temperature > 0 and params.filters() != FILTERS
    edits = uses_penalties(sequence) or bool(params.logit_bias) or params.min_tokens > 0
    return filters or edits or params.logprobs is not None

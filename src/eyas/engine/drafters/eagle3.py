"""The EAGLE-3 drafter: a chain of K tokens, one head pass each, on the target's hidden states.

The pair (hidden state of t, token t + 1) has position t + 1.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from eyas.engine.drafters.base import CacheShape, DrafterNeeds, DrafterParts
from eyas.engine.drafters.head_drafter import HeadDrafter
from eyas.engine.round.state import DeviceState
from eyas.engine.round.types import Drafts, Guess
from eyas.engine.sequences.sequence import Sequence
from eyas.model.batch import PageTables, RowBatch
from eyas.model.config import Eagle3Config
from eyas.model.networks.eagle3 import Eagle3Head, HeadOutput

__all__ = ["Eagle3Drafter"]


class Eagle3Drafter(HeadDrafter):
    """Draws each token with the noise that the target will use at the same position.

    The catch-up pass reads the tokens committed since the last proposal, paired with the target's hidden states from
    the ring, so the head's cache always holds states of the target; K - 1 passes on the head's own output follow.
    """

    def __init__(self, parts: DrafterParts) -> None:
        super().__init__(parts)
        assert parts.head is not None
        self.head = Eagle3Head(parts.head, max_positions=parts.max_positions)
        (self.cache,) = parts.caches
        self._newest: dict[int, HeadOutput] = {}  # outputs at each sequence's newest token, by batch size

    @classmethod
    def needs_of(cls, config: Eagle3Config, dtype: torch.dtype) -> DrafterNeeds:
        taps = len(config.taps) * config.target_hidden_size
        wide = 2 * taps + config.intermediate_size + config.num_heads * config.head_dim
        return DrafterNeeds(
            taps=config.taps,
            tap_width=taps,
            caches=(CacheShape(config.num_kv_heads, config.head_dim),),
            # At the end of the gated matrices: residuals in fp32, matrix inputs in `dtype`.
            prompt_row_bytes=8 * config.hidden_size + dtype.itemsize * (wide + 7 * config.hidden_size),
            draft_vocab_size=config.draft_vocab_size,
        )

    def read(self, batch: RowBatch, taps_TC: Tensor) -> None:
        self.head.write(batch, self.head.fuse(taps_TC, batch.ops), self.cache)

    def propose(
        self, state: DeviceState, slots_S: Tensor, sequences: list[Sequence], num_drafts: int, max_length: int
    ) -> Drafts:
        size, num_rows = len(slots_S), self.take_backlog()

        def catch_up(slots_S: Tensor) -> None:
            batch, taps_TC = self.unseen(state, slots_S, num_rows, max_length)
            last = slice(num_rows - 1, None, num_rows)
            self._keep(size, self.head.forward(batch, self.head.fuse(taps_TC, self.ops), self.cache, wanted=last))

        def chain(slots_S: Tensor) -> Drafts:
            return self._chain(state, slots_S, sequences, self._newest[size], num_drafts, max_length)

        # Two stages: one stage would need a graph for every pair of numbers of rows and drafts.
        self.stages.run(("catch up", size, num_rows), catch_up, slots_S)
        return self.stages.run(("chain", size, num_drafts), chain, slots_S)

    def _keep(self, size: int, output: HeadOutput) -> None:
        """Copy the catch-up pass's output to where chains of that batch size begin, for any number of rows."""
        kept = self._newest.setdefault(size, output)
        if kept is not output:
            for own, new in zip(tree_flatten(kept)[0], tree_flatten(output)[0], strict=True):
                own.copy_(new)

    def _chain(
        self,
        state: DeviceState,
        slots_S: Tensor,
        sequences: list[Sequence],
        output: HeadOutput,
        num_drafts: int,
        max_length: int,
    ) -> Drafts:
        """Draw a chain: a token from the head's output, then a pass on it, and so on."""
        rows = self.gather.chain(state.book, slots_S, num_drafts)
        tables = PageTables(rows.full_SP, rows.sliding_SP)
        shape = num_drafts, -(-len(slots_S) // 4) * 4  # a step is aligned to 16 bytes, for which kernels are compiled
        both = slots_S.new_empty(shape), torch.empty(shape, dtype=torch.float32, device=slots_S.device)
        guesses_KS = Guess(*(part[:, : len(slots_S)] for part in both))
        for step in range(num_drafts):
            logits = self.head.logits(output.normed, self.ops)
            guess = Guess(*(part[step] for part in guesses_KS))
            self.sampler.draft(logits, slots_S, sequences, step, self.head.weights.target_ids_V, guess)
            if step + 1 < num_drafts:
                batch = RowBatch(
                    tokens_SR=guess.ids_T.unsqueeze(1),
                    positions_SR=rows.positions_KS[step].unsqueeze(1),
                    live_SR=rows.live_KS[step].unsqueeze(1),
                    tables=tables,
                    max_length=max_length + step + 1,
                    ops=self.ops,
                )
                output = self.head.forward(batch, self.head.recur(output.hidden_TH), self.cache)
        space = state.chain_end(len(slots_S), num_drafts)
        return Drafts(*self.sampler.end_chains(guesses_KS, rows.room_S, slots_S, space))

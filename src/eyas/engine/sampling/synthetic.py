"""Synthetic acceptance: accepts random drafts at a set rate, to time speculation without trained weights.

A draft and its outcome belong to a slot and a position, so every draft length meets the same ones. The head computes
and draws as usual, then its token is replaced: tokens drawn from random weights would repeat, and share experts as real
drafts do not. One logit makes the target agree or not. The results are not exact, and not meant to be.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from eyas.engine.round.state import DeviceState
from eyas.engine.round.types import Drafts, Guess, RoundOutput, RowMasks, Sampler, Verified
from eyas.engine.sequences.sequence import Sequence
from eyas.kernels.reference.rounds.chain import ChainEnd
from eyas.kernels.reference.rounds.synthetic import decide_ref, guess_ref

__all__ = ["SWITCH_EVERY", "SimulatedSampler"]

SWITCH_EVERY = 128  # positions between one rate and the next
COIN_BLOCK = 64
CERTAIN = 1e4  # a logit that no noise reaches


class SimulatedSampler:
    """Implements `engine.round.types.Sampler` around another sampler."""

    def __init__(self, inner: Sampler, state: DeviceState, chances: Seq[float], *, seed: int = 0) -> None:
        """`chances` are those of `simulate`."""
        self._inner = inner
        self._state = state
        generator, shape = torch.Generator().manual_seed(seed), state.tokens_SN.shape
        self._ids_SN = torch.randint(state.vocab_size, shape, generator=generator).to(state.device)
        self._right_SN = torch.empty(shape, dtype=torch.bool, device=state.device)
        self._guess, self._decide = guess_ref, decide_ref
        if state.device.type == "cuda":
            from eyas.kernels.triton.rounds.synthetic import decide, guess

            self._guess, self._decide = guess, decide
        self.simulate(chances, seed=seed)

    def simulate(self, chances: Seq[float], *, seed: int) -> None:
        """Set the chance that a draft is accepted if those before it are; `seed` draws the outcomes.

        Several chances alternate, every SWITCH_EVERY positions.
        """
        shape = self._right_SN.shape
        coins_SN = _even_coins(shape, torch.Generator().manual_seed(seed))
        turns_N = torch.arange(shape[1]) // SWITCH_EVERY % len(chances)
        self._right_SN.copy_(coins_SN < torch.tensor(chances)[turns_N])

    def draft(
        self,
        logits_TV: Tensor,
        slots_S: Tensor,
        sequences: list[Sequence],
        step: int,
        target_ids_V: Tensor | None,
        out: Guess,
    ) -> None:
        self._inner.draft(logits_TV, slots_S, sequences, step, target_ids_V, out)
        self._guess(self._ids_SN, slots_S, self._state.length_S, step, out.ids_T)

    def end_chains(self, guesses_KS: Guess, room_S: Tensor, slots_S: Tensor, out: ChainEnd) -> ChainEnd:
        return self._inner.end_chains(guesses_KS, room_S, slots_S, out)

    def finish(
        self, verified: Verified, slots_S: Tensor, sequences: list[Sequence], drafts: Drafts, masks: RowMasks | None
    ) -> RoundOutput:
        self._decide(verified.logits_SRV, self._right_SN, slots_S, self._state.length_S, drafts.ids_SK, CERTAIN)
        return self._inner.finish(verified, slots_S, sequences, drafts, masks)


def _even_coins(shape: Seq[int], generator: torch.Generator) -> Tensor:
    """Return numbers in 0 .. 1, spread evenly over every 64 positions of a slot: short runs have the set rate too."""
    num_blocks = -(-shape[1] // COIN_BLOCK)
    order = torch.rand(shape[0], num_blocks, COIN_BLOCK, generator=generator).argsort(-1)
    return ((order + 0.5) / COIN_BLOCK).flatten(1)[:, : shape[1]]

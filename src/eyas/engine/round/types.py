"""Types that the stages of a round pass on: drafts, target outputs, committed tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from torch import Tensor

from eyas.engine.sequences.sequence import Sequence
from eyas.kernels.reference.layers.norm import Normed
from eyas.kernels.reference.rounds.chain import ChainEnd

__all__ = [
    "Drafts",
    "Guess",
    "Logprobs",
    "RoundOutput",
    "RoundSpace",
    "RowMasks",
    "Sampled",
    "Sampler",
    "Screen",
    "Verified",
]


class Drafts(NamedTuple):
    """Draft tokens in target ids: the first `num_valid_S` of each row of `ids_SK`; the rest is ignored.

    `levels_SN` are the levels of a head's confidence in each draft that it drew, cut off or not
    (`engine.draft_length.confidence`).
    """

    ids_SK: Tensor
    num_valid_S: Tensor
    levels_SN: Tensor | None = None


class Guess(NamedTuple):
    """Draft tokens, and their log-probabilities under the head's raw logits."""

    ids_T: Tensor
    logprobs_T: Tensor


class RowMasks(NamedTuple):
    """Packed masks int32 [C, R, words] of the sequences at the indices `rows_C` of a batch.

    `num_ready_S` counts the rows of each sequence of the batch that have their mask, or need none; rows after them
    cannot be committed. None where all have.
    """

    rows_C: Tensor
    words_CRW: Tensor
    num_ready_S: Tensor | None = None


class Verified(NamedTuple):
    """Target outputs for the verified rows. `wanted` is that of `Screen.logits`, where a screen was asked."""

    logits_SRV: Tensor
    taps_TC: Tensor | None
    router_logits: tuple[Tensor, ...]  # [T, E] of each layer; empty unless experts are counted
    live_SR: Tensor
    wanted: Tensor | None = None


class RoundSpace(NamedTuple):
    """Memory in which rounds of all sizes leave the target's logits fp32 [T, V], tapped states [T, C], live rows."""

    logits_TV: Tensor
    taps_TC: Tensor | None
    live_T: Tensor  # bool

    def of(self, num_rows: int) -> RoundSpace:
        """Return the space of a round's rows."""
        taps_TC = None if self.taps_TC is None else self.taps_TC[:num_rows]
        return RoundSpace(self.logits_TV[:num_rows], taps_TC, self.live_T[:num_rows])


class Logprobs(NamedTuple):
    """Log-probabilities of the raw logits: the chosen token's [S, R]; values and ids of the n most likely [S, R, n]."""

    chosen_SR: Tensor
    top_SRn: Tensor
    top_ids_SRn: Tensor


class Sampled(NamedTuple):
    """The target's token for each row, whether reached or not."""

    ids_SR: Tensor
    failed_SR: Tensor  # code of why a row has no token (`kernels.reference.rounds.failures`), 0 where it has one
    logprobs: Logprobs | None


class RoundOutput(NamedTuple):
    """Results of a round: `sampled_SR[:, :num_committed]` are the new tokens, `ended_S` marks finished sequences.

    `failed_S` is the code of why a sequence ended without a token where one was due
    (`kernels.reference.rounds.failures`), else 0.
    """

    sampled_SR: Tensor
    num_committed_S: Tensor
    num_accepted_S: Tensor
    stopped_S: Tensor
    ended_S: Tensor
    failed_S: Tensor
    draft_SK: Tensor
    num_drafts_S: Tensor
    logprobs: Logprobs | None
    router_logits: tuple[Tensor, ...]
    live_T: Tensor
    # Of a prompt whose first token it is, by sequence: [positions], [positions, n].
    prompt_logprobs: Mapping[int, Logprobs] = MappingProxyType({})
    levels_SN: Tensor | None = None  # as in `Drafts`
    # Int64, all that the host reads but log-probabilities, as in `engine.step.results`; None: to be put together.
    packed_SW: Tensor | None = None
    num_ready: Mapping[int, int] = MappingProxyType({})  # on the host, by sequence: masks, where some were late


class Sampler(Protocol):
    """Draws tokens and commits them. Where stages are captured it must not read the parameters of `sequences`."""

    def draft(
        self,
        logits_TV: Tensor,
        slots_S: Tensor,
        sequences: list[Sequence],
        step: int,
        target_ids_V: Tensor | None,
        out: Guess,
    ) -> None:
        """Draw drafts into `out`, in target ids. T = S R: row r of a sequence stands `step` + r after its length."""

    def end_chains(self, guesses_KS: Guess, room_S: Tensor, slots_S: Tensor, out: ChainEnd) -> ChainEnd:
        """Return how many drafts are worth their row, at most `room_S`, and levels of confidence; perhaps in `out`."""

    def finish(
        self, verified: Verified, slots_S: Tensor, sequences: list[Sequence], drafts: Drafts, masks: RowMasks | None
    ) -> RoundOutput:
        """Draw the target's tokens, accept drafts, append what is committed and advance the sequences."""


class Screen(Protocol):
    """Computes the logits of a round that may hold its tokens, and -inf for the others."""

    @property
    def max_rows(self) -> int:
        """Rows of the largest round for which it pays."""

    @property
    def nbytes(self) -> int:
        """Bytes that it takes beside the weights."""

    def expect(self, sequences: Iterable[Sequence], has_masks: bool) -> None:
        """Say what the next rounds sample; not part of a captured stage. All logits come where a request needs them."""

    def logits(self, normed: Normed, slots_S: Tensor, live_SR: Tensor, out_TV: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return fp32 [T, V], in `out_TV` where it is given, and what was wanted (`kernels.triton.rounds.screen`)."""

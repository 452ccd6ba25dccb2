"""Walks text as the rounds of an engine would, in expectation.

A round starts at the newest known token of a generated run, p, drafts the next tokens, has the first m accepted and
commits m + 1; the next one starts at p + m + 1. The first token of a run is drawn from the prompt and belongs to no
round; the run's last token ends the last round. At temperature 0 drafts are accepted or not, and this is one walk. At
temperature 1 they are accepted with chances that are independent: the noise of different positions is, and a walk looks
at each position at most once. So the expected number of rounds that start at p is a sum over where the round before
started, exactly:

    starts(p) = sum_c starts(p - c) P(the round from p - c commits c tokens)

Shape letters: B schemes (drafts taken against text, target or noise; draft lengths), J depths, T generated tokens,
N runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from eyas.train.types import Batch, Segment

__all__ = ["Text", "expected_starts", "prefix_chances"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """The generated tokens of a batch as rounds see them; runs lie side by side.

    Tokens are counted as `eyas bench acceptance` does: content is no header.
    """

    at_T: Integers  # in the batch
    documents_T: Integers
    context_T: Integers  # tokens up to and with this one
    segments_T: Integers
    first_N: Integers  # of every run
    length_N: Integers
    left_T: Integers  # tokens after t up to the end of its run
    content_T: Integers  # of these, the content up to the first token that is none

    @staticmethod
    def of(batch: Batch) -> Text:
        runs = _integers(batch.runs_T)
        at = np.flatnonzero(runs >= 0)
        runs, documents, positions, segments = (
            runs[at],
            *(_integers(x)[at] for x in (batch.documents_T, batch.positions_T, batch.segments_T)),
        )
        is_new = np.ones(len(at), dtype=bool)
        is_new[1:] = (runs[1:] != runs[:-1]) | (documents[1:] != documents[:-1])
        starts = np.flatnonzero(is_new)
        lengths = np.diff(np.append(starts, len(at)))
        left = np.repeat(starts + lengths, lengths) - 1 - np.arange(len(at))
        is_content = (segments != Segment.HEADER) & (segments != Segment.GIVEN)
        return Text(
            at_T=at,
            documents_T=documents,
            context_T=positions + 1,
            segments_T=segments,
            first_N=starts,
            length_N=lengths,
            left_T=left,
            content_T=np.minimum(_run_lengths(is_content), left),
        )


def _integers(x_T: Tensor) -> Integers:
    return x_T.cpu().numpy().astype(np.int64)


def _run_lengths(is_T: NDArray[np.bool_]) -> Integers:
    """Return how many tokens after t hold in a row."""
    at = np.arange(len(is_T))
    stops = np.append(np.where(is_T, len(is_T), at), len(is_T))  # the first one at or after t that does not, below
    nearest = np.minimum.accumulate(stops[::-1])[::-1]
    return nearest[1:] - at - 1


def prefix_chances(chances_BJT: Floats) -> Floats:
    """Return [B, J + 2, T]: the chance that the first i drafts are accepted, for i = 0 .. J, and 0 for one more."""
    num_schemes, _, num_tokens = chances_BJT.shape
    ends = np.ones((num_schemes, 1, num_tokens)), np.zeros((num_schemes, 1, num_tokens))
    return np.concatenate((ends[0], np.cumprod(chances_BJT, axis=1), ends[1]), axis=1)


def expected_starts(prefix_BIT: Floats, text: Text) -> Floats:
    """Return [B, T]: the expected number of rounds that start with t as the newest known token.

    `prefix_BIT` are `prefix_chances`. All runs take their steps together.
    """
    num_outcomes = prefix_BIT.shape[1] - 1
    commits_BTC = np.ascontiguousarray((prefix_BIT[:, :-1] - prefix_BIT[:, 1:]).transpose(0, 2, 1))  # c - 1 at C
    starts_BT = np.zeros((len(prefix_BIT), prefix_BIT.shape[2]))
    order = np.argsort(-text.length_N, kind="stable")
    first_N, last_N = text.first_N[order], text.length_N[order] - 1  # no round starts at the last token
    starts_BT[:, first_N[last_N > 0]] = 1
    for step in range(1, int(last_N.max(initial=0))):
        at_N1 = first_N[: np.searchsorted(-last_N, -step), None] + step
        sizes_C = np.arange(1, min(num_outcomes, step) + 1)
        before_NC = at_N1 - sizes_C
        shares_BNC = commits_BTC[:, before_NC, sizes_C - 1]
        starts_BT[:, at_N1[:, 0]] = np.einsum("bnc,bnc->bn", starts_BT[:, before_NC], shares_BNC)
    return starts_BT

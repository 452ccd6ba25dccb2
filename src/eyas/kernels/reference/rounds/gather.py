"""Gathers the rows of sequences from the state of their slots: those to verify, to catch up with, and of a chain.

Shape letters: S sequences or slots, N positions, P pages, K drafts, R rows of a sequence, W tap ring, C tap width.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

__all__ = ["Book", "Chain", "Gather", "PlainGather", "SequenceRows", "draft_room"]


class Book(NamedTuple):
    """State that rows are read from, a row for each slot; `head_length_S` is written, too."""

    tokens_SN: Tensor  # int64
    length_S: Tensor  # int64
    live_S: Tensor  # bool
    remaining_S: Tensor  # int64
    draft_limit_S: Tensor  # int64
    by_lookup_S: Tensor  # bool
    head_length_S: Tensor  # int64
    full_SP: Tensor  # int64
    sliding_SP: Tensor  # int64
    tap_ring_SWC: Tensor


class SequenceRows(NamedTuple):
    """Consecutive rows of sequences, and their page tables. Rows that are not live are ignored."""

    tokens_SR: Tensor  # int64
    positions_SR: Tensor  # int64
    live_SR: Tensor  # bool
    full_SP: Tensor  # int64
    sliding_SP: Tensor  # int64


class Chain(NamedTuple):
    """Rows of a chain of drafts: those of the pass behind draft k stand at `positions_KS[k]`."""

    room_S: Tensor  # int64, as of `draft_room`
    positions_KS: Tensor  # int64
    live_KS: Tensor  # bool: no pages are reserved beyond the token budget
    full_SP: Tensor
    sliding_SP: Tensor


class Gather(Protocol):
    def verified(
        self, book: Book, slots_S: Tensor, draft_SK: Tensor, num_valid_S: Tensor, live_T: Tensor | None = None
    ) -> SequenceRows:
        """Return the last committed token and the drafts after it; rows past the valid drafts are dead.

        `live_T`, if it is given, receives which rows are live.
        """

    def unseen(self, book: Book, slots_S: Tensor, num_rows: int, *, shift: bool) -> tuple[SequenceRows, Tensor]:
        """Return the newest `num_rows` rows that have taps, live where the head has not read them; and their taps.

        Those [S R, C] stand in the ring at the position of the token after them. With `shift` that token is the row's,
        else the one before. The newest row is live in any case: drafts begin at its output, and a round that commits
        nothing leaves it read. All are read afterwards. Positions before the start are negative, and dead.
        """

    def chain(self, book: Book, slots_S: Tensor, num_drafts: int) -> Chain:
        """Return where the rows of up to `num_drafts` drafts are. Sequences with prompt lookup have no room."""


def draft_room(book: Book, slots_S: Tensor, num_drafts: int) -> Tensor:
    """Return how many drafts are wanted and can be accepted: the bonus token takes the last of the token budget."""
    wanted_S = torch.minimum(book.remaining_S[slots_S] - 1, book.draft_limit_S[slots_S])
    return wanted_S.clamp(0, num_drafts) * book.live_S[slots_S]


class PlainGather:
    """Implements `Gather` with indices."""

    def verified(
        self, book: Book, slots_S: Tensor, draft_SK: Tensor, num_valid_S: Tensor, live_T: Tensor | None = None
    ) -> SequenceRows:
        length_S1 = book.length_S[slots_S].unsqueeze(1)
        column = torch.arange(draft_SK.shape[1] + 1, device=slots_S.device)
        last = book.tokens_SN[slots_S.unsqueeze(1), length_S1 - 1]
        live_SR = (column <= num_valid_S.unsqueeze(1)) & book.live_S[slots_S].unsqueeze(1)
        if live_T is not None:
            live_SR = live_T.view_as(live_SR).copy_(live_SR)
        tokens_SR = torch.cat((last, draft_SK), dim=1)
        return SequenceRows(tokens_SR, length_S1 - 1 + column, live_SR, book.full_SP[slots_S], book.sliding_SP[slots_S])

    def unseen(self, book: Book, slots_S: Tensor, num_rows: int, *, shift: bool) -> tuple[SequenceRows, Tensor]:
        length_S, ring, slots_S1 = book.length_S[slots_S], book.tap_ring_SWC, slots_S.unsqueeze(1)
        followers_SR = length_S.unsqueeze(1) - num_rows + torch.arange(num_rows, device=slots_S.device)
        positions_SR = followers_SR if shift else followers_SR - 1
        first_S = torch.minimum(book.head_length_S[slots_S], length_S - 1)
        live_SR = (positions_SR >= first_S.unsqueeze(1)) & book.live_S[slots_S].unsqueeze(1)
        taps_TC = ring[slots_S1, followers_SR % ring.shape[1]].flatten(0, 1)
        tokens_SR = book.tokens_SN[slots_S1, positions_SR.clamp(min=0)]
        rows = SequenceRows(tokens_SR, positions_SR, live_SR, book.full_SP[slots_S], book.sliding_SP[slots_S])
        book.head_length_S[slots_S] = length_S if shift else length_S - 1
        return rows, taps_TC

    def chain(self, book: Book, slots_S: Tensor, num_drafts: int) -> Chain:
        room_S = draft_room(book, slots_S, num_drafts) * ~book.by_lookup_S[slots_S]
        step_K1 = torch.arange(num_drafts, device=slots_S.device).unsqueeze(1)
        positions_KS = book.length_S[slots_S] + step_K1
        return Chain(room_S, positions_KS, step_K1 + 1 < room_S, book.full_SP[slots_S], book.sliding_SP[slots_S])

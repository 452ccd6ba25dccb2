"""The most drafts of a sequence in a round, by the size of the round: the rows of a round are limited."""

from __future__ import annotations

__all__ = ["most_drafts"]


def most_drafts(num_sequences: int, max_drafts: int, max_rows: int | None) -> int:
    """Return how many drafts, at most `max_drafts`, each of `num_sequences` may have in a round of `max_rows` rows.

    `num_sequences` counts padding (`Stages.rows`): dead sequences take rows too. `max_rows` None: there is no limit.
    """
    if max_rows is None:
        return max_drafts
    return max(0, min(max_drafts, max_rows // num_sequences - 1))

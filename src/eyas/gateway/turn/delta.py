"""Types of a growing answer: the interface between a turn and the dialects.

A turn reads tokens and yields deltas; a dialect turns deltas into its own chunks and answers. Types that are
instantiated every round are msgspec structs, which are five times as quick to make as frozen dataclasses.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from msgspec import Struct

from eyas.base.types import FinishReason, TokenLogprob

__all__ = ["Delta", "Kind", "Piece", "PromptCounts", "ScoredToken", "Totals"]


class Kind(Enum):
    REASONING = auto()  # shown separately; never part of the answer
    CONTENT = auto()  # meant for the user
    CALL = auto()  # arguments of a function call


class Piece(Struct, frozen=True, kw_only=True):
    """More text of one message of the answer. Messages come one after the other and never interleave.

    `message` numbers the messages of one choice that have pieces, from 0. A call is announced by a piece that may have
    no text yet; every piece of a call has the `name` of its function. `channel` is the message's Harmony channel:
    content on "commentary" is a preamble to what the model does next, any other content the answer itself.
    """

    message: int
    kind: Kind
    text: str
    name: str | None = None
    channel: str | None = None


class ScoredToken(Struct, frozen=True, kw_only=True):
    """A token of the content with its log-probabilities."""

    token_id: int
    logprob: TokenLogprob


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """Counts and times of one choice. `num_tokens` counts up to the token that completed a stop string."""

    num_prompt: int
    num_cached: int
    num_tokens: int
    num_reasoning: int
    num_rounds: int
    num_drafted: int
    num_accepted: int
    accepted_per_position: tuple[int, ...]  # entry i: rounds whose draft token i was accepted
    queue_ms: float  # from submitting to the launch of its first step
    prompt_ms: float  # from submitting to the first token
    predicted_ms: float  # from the first token to the last
    num_after_first: int  # tokens that came in predicted_ms


class PromptCounts(Struct, frozen=True, kw_only=True):
    """Tokens of a prompt, those that were found in the prefix cache included."""

    num_prompt: int
    num_cached: int


class Delta(Struct, frozen=True, kw_only=True):
    """The addition of one engine event to one choice; the last delta of a choice has `finish` and `totals`.

    `token_ids` are all tokens since the choice's last delta, control tokens included. `stop_reason` is the stop string,
    or the id of the requested stop token, that ended the choice. `prompt` is in the first delta of a choice.
    """

    choice: int
    pieces: tuple[Piece, ...] = ()
    token_ids: tuple[int, ...] = ()
    scored: tuple[ScoredToken, ...] = ()
    finish: FinishReason | None = None
    stop_reason: str | int | None = None
    totals: Totals | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    prompt: PromptCounts | None = None

    def text(self, kind: Kind) -> str:
        """Return all text of one kind that this delta adds."""
        return "".join(piece.text for piece in self.pieces if piece.kind is kind)

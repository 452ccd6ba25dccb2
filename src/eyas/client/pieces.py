"""The pieces of an answer as they come, the end with its figures, and a whole answer."""

from __future__ import annotations

from msgspec import Struct

from eyas.base.serving.waiting import Waiting
from eyas.client.call import Call
from eyas.client.errors import ClientError

__all__ = ["Answer", "Asked", "Call", "Content", "End", "Piece", "Reasoning", "Timings", "Usage", "Waiting"]


class Asked(Struct, frozen=True, kw_only=True):
    """An endpoint is asked now. `reason` says why the one before was given up; `model` is None if it is yet unknown."""

    endpoint: str
    model: str | None = None
    is_fallback: bool = False
    reason: ClientError | None = None


class Reasoning(Struct, frozen=True, gc=False):
    """Text that the model reasons with."""

    text: str


class Content(Struct, frozen=True, gc=False):
    """Text of the answer, a refusal by the model included."""

    text: str


class Usage(Struct, frozen=True, kw_only=True, gc=False):
    """Tokens, as the server counts them; None is what it does not say."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int | None = None  # of the prompt
    reasoning_tokens: int | None = None  # of the completion


class Timings(Struct, frozen=True, kw_only=True, gc=False):
    """Seconds at the client, from the call on: endpoints that were given up and waits included.

    `tokens_per_s` counts those after the first from the first piece on; None where usage is unknown or time too short.
    """

    first_token_s: float | None
    total_s: float
    tokens_per_s: float | None = None


class _Outcome(Struct, frozen=True, kw_only=True):
    """Facts of an answer that is complete. `backend` is the router's, if there is one."""

    finish_reason: str | None
    usage: Usage | None
    timings: Timings
    model: str | None
    backend: str | None
    endpoint: str


class End(_Outcome, frozen=True, kw_only=True):
    """The last piece: the answer is complete."""


class Answer(_Outcome, frozen=True, kw_only=True):
    """A whole answer, with what `End` has."""

    content: str
    reasoning: str
    calls: tuple[Call, ...]


Piece = Asked | Waiting | Reasoning | Content | Call | End

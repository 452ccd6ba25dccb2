"""The interface between dialects and engines: questions without token ids, and the port that answers them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from eyas.base.errors import EyasError
from eyas.base.harmony.conversation import Conversation
from eyas.base.types import ModelInfo, SamplingParams
from eyas.gateway.grammar.checker import AnswerFormat
from eyas.gateway.question.tools import Offer
from eyas.gateway.turn.delta import Delta
from eyas.gateway.turn.stops import Stops

__all__ = ["Answer", "AnswerPort", "FieldNames", "Question"]

P = TypeVar("P")


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldNames:
    """Names of a dialect's fields for error messages. `schemas` has a place for a tool's index: `tools[{}].schema`."""

    prompt: str
    schemas: str
    answer_format: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A request, independent of any dialect.

    `conversation` describes the tools and the format of the answer to the model; `offer` says which of the tools it may
    call, and `answer_format` what its answer is bound to. `params` leave out everything that needs token ids.
    """

    request_id: str
    conversation: Conversation
    offer: Offer
    params: SamplingParams
    fields: FieldNames
    answer_format: AnswerFormat | None = None
    stops: Stops = Stops()  # noqa: RUF009 - frozen
    cache_salt: str = ""  # requests share cached prefixes with those of the same salt only
    newest: int | None = None  # oldest turns are left out until the prompt has at most this many tokens


class Answer(Protocol):
    """A running answer."""

    def deltas(self) -> AsyncGenerator[Delta, None]:
        """Yield deltas as they come. Raises InvalidRequest, Unavailable or EngineFailed when the engine ends it."""

    def close(self, error: EyasError | None = None) -> None:
        """Cancel an unfinished answer and report the outcome; idempotent. Without `error` the client disconnected."""


class AnswerPort(Protocol[P]):
    """The interface of a backend that answers questions: the local engine, or another server."""

    def prepare(self, question: Question) -> P:
        """Return the question in the form that `ask` takes. Slow for long prompts, and safe in any thread.

        Raises InvalidRequest naming the field.
        """

    def ask(self, prepared: P, *, route: str) -> Answer:
        """Send a prepared question, inside the event loop. `route` is the path under which the outcome is reported.

        Raises Busy or Unavailable.
        """

    def count(self, question: Question) -> int:
        """Return the number of tokens of the prompt that `prepare` would make. Slow, and safe in any thread."""

    def models(self) -> Sequence[ModelInfo]:
        """Return the models of this backend."""

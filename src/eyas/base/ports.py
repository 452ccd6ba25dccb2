"""Interface that the HTTP side needs from any engine, in process or at the other end of a socket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from eyas.base.histogram import Histogram
from eyas.base.types import EngineStats, ModelInfo, Request, StepReport, TokenEvent

__all__ = ["Deliver", "EnginePort", "Observe"]

Deliver = Callable[[TokenEvent], None]
Observe = Callable[[StepReport], None]


class EnginePort(Protocol):
    """Token ids in, token events out; every method may be called from any thread."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def failure(self) -> str | None:
        """Reason why the engine cannot serve now; None while it can. It may pass: an engine can be restarted."""

    @property
    def pid(self) -> int | None:
        """Id of the engine's process, while it has one of its own."""

    @property
    def step_tokens(self) -> Histogram:
        """Tokens that steps computed, of prompts and generated, from `STEP_TOKENS` bounds. Goes on over restarts."""

    def submit(self, request: Request, deliver: Deliver) -> None:
        """Queue a request. `deliver` is called from the engine's thread, once per round and choice.

        Raises InvalidRequest (prompt too long, id out of range), Busy (queue full) or Unavailable before anything is
        queued. What only the engine can judge (a grammar) comes as an event with FinishReason.INVALID instead.
        Each choice gets exactly one event with `finish`, even if the engine fails.
        """

    def cancel(self, request_id: str, choice: int | None = None) -> None:
        """Stop one choice of a request, or all, within two rounds; each ends with CANCELLED. Ignores unknown ids."""

    def stats(self) -> EngineStats: ...

    def observe(self, observe: Observe | None) -> None:
        """Have each step reported, after its events were delivered and from the same thread; None ends it."""

    def close(self) -> None:
        """Cancel what runs and stop the engine. Idempotent."""

"""What the HTTP side needs from any engine, in process or behind a socket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from eyas.base.types import EngineStats, ModelInfo, Request, TokenEvent

__all__ = ["Deliver", "EnginePort"]

Deliver = Callable[[TokenEvent], None]


class EnginePort(Protocol):
    """Token ids in, token events out; every method may be called from any thread."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def failure(self) -> str | None:
        """Why nothing can be served any more; None as long as all is well."""

    def submit(self, request: Request, deliver: Deliver) -> None:
        """Queue a request. `deliver` is called from the engine's thread, once per round and choice.

        Raises InvalidRequest (prompt too long, id out of range) or Busy (queue full) before anything is queued.
        """

    def cancel(self, request_id: str, choice: int | None = None) -> None:
        """Stop one choice of a request, or all, within two rounds; each ends with CANCELLED. Ignores unknown ids."""

    def stats(self) -> EngineStats: ...

    def close(self) -> None:
        """Cancel what runs and join the engine's thread. Idempotent."""

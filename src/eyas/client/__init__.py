"""An async client for any OpenAI endpoint that waits well; `eyas.AsyncClient`. Its parts are imported lazily."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eyas.client.client import AsyncClient

__all__ = ["AsyncClient"]


def __getattr__(name: str) -> Any:
    if name == "AsyncClient":
        from eyas.client.client import AsyncClient

        return AsyncClient
    raise AttributeError(f"module 'eyas.client' has no attribute '{name}'")

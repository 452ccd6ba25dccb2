"""Carries out what people want of backends: on the page, over HTTP."""

from __future__ import annotations

from typing import Literal

from eyas.router.backends.backends import Backends
from eyas.router.backends.orchestrator import Orchestrator
from eyas.router.memory.status import PoolStatus

__all__ = ["Controls"]


class Controls:
    """Starts and stops backends. Those in a pool are loaded where there is room for them, or others make it."""

    def __init__(self, backends: Backends, orchestrator: Orchestrator) -> None:
        self._backends, self._orchestrator = backends, orchestrator

    async def start(self, name: str) -> None:
        """Begin to start a backend; its condition tells the rest. Raises UserError."""
        if self._orchestrator.has(name):
            self._orchestrator.order(name, "load")
        else:
            await self._backends.start(name)

    async def stop(self, name: str) -> None:
        """Take a backend out at once, and end the processes of its plan when its answers are over. Raises UserError."""
        await self._backends.stop(name)

    async def order(self, name: str, order: Literal["load", "unload", "pin", "unpin"]) -> None:
        """Load, unload, pin or unpin a backend of a pool. Raises UserError."""
        self._orchestrator.order(name, order)

    def pools(self) -> tuple[PoolStatus, ...]:
        """Return how the pools of memory stand."""
        return self._orchestrator.status()

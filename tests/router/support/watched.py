"""Watched backends in the test's own loop: everything that was reported of each, and waiting for a condition."""

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from eyas.router.backends.backends import Backends
from eyas.router.backends.watcher import Pace
from eyas.router.manager.condition import Condition
from eyas.router.settings.schema import BackendSettings, ModelSettings, RouterSettings

__all__ = ["FAST", "Watched", "settings_of", "watched"]

FAST = Pace(look_s=0.05, soon_s=0.05, retry_s=0.05, max_retry_s=0.1, drain_s=0.5, poll_s=0.01)
PATIENCE_S = 30


def settings_of(*backends: BackendSettings) -> RouterSettings:
    """Return settings with one model on these backends, and a guard that acts."""
    models = (ModelSettings(name="m", backends=tuple(one.name for one in backends)),)
    return RouterSettings(backends=backends, models=models, routes=(), guard="act")


class Watched:
    """Backends that are watched, and what was said of them."""

    def __init__(self) -> None:
        self.reports: dict[str, list[Condition]] = defaultdict(list)
        self.backends: Backends

    def report(self, name: str, condition: Condition) -> None:
        """Keep a report if it is news."""
        if self.now(name) != condition:
            self.reports[name].append(condition)

    def now(self, name: str = "a") -> Condition | None:
        """Return the last report."""
        return self.reports[name][-1] if self.reports[name] else None

    def states(self, name: str = "a") -> list[str]:
        """Return the states of all reports, without repetitions."""
        states = [one.state for one in self.reports[name]]
        return [state for at, state in enumerate(states) if not at or states[at - 1] != state]

    async def until(self, state: str, name: str = "a", *, cause: str | None = None) -> Condition:
        """Wait for a state, and return its condition."""
        end = time.monotonic() + PATIENCE_S
        while (now := self.now(name)) is None or now.state != state or (cause is not None and now.cause != cause):
            assert time.monotonic() < end, self.reports[name]
            await asyncio.sleep(0.01)
        return now

    async def until_true(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, self.reports
            await asyncio.sleep(0.01)


@asynccontextmanager
async def watched(*backends: BackendSettings, **options: Any) -> AsyncIterator[Watched]:
    """Watch backends until the context ends."""
    found = Watched()
    found.backends = Backends(
        settings_of(*backends), environ=os.environ, report=found.report, **{"pace": FAST, **options}
    )
    found.backends.run()
    try:
        yield found
    finally:
        await found.backends.close()

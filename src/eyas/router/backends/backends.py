"""All backends of a router: their addresses, their watchers, and what may be wanted of them from outside."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from eyas.base.errors import UserError, nearest
from eyas.base.settings.home import home
from eyas.fleet.preflight.plan_file import read_plan
from eyas.recipes.plan import Plan
from eyas.router.backends.asking import Asker
from eyas.router.backends.planned import Planned, Starters, claim
from eyas.router.backends.watcher import Pace, Watcher
from eyas.router.manager.condition import Condition
from eyas.router.manager.happenings import Happening
from eyas.router.settings.schema import RouterSettings
from eyas.router.upstream.address import Address

__all__ = ["Backends", "Report", "addresses"]

Report = Callable[[str, Condition], None]
UNREACHED = ("refused", "broken")


def addresses(settings: RouterSettings) -> dict[str, Address]:
    """Return where each backend is. A plan's address stands in settings that were read from a file."""
    return {
        one.name: Address(name=one.name, url=one.url, key=one.key, model=one.model)
        for one in settings.backends
        if one.url is not None
    }


class Backends:
    """Watches all backends and starts those with plans. `happened` is a listener of the manager.

    Made before the event loop runs: it takes the plans of `settings` for this process. Raises UserError if another
    router has one, or if another plan of its name is up; nothing is started then. Stopping it leaves engines running.
    """

    def __init__(
        self,
        settings: RouterSettings,
        *,
        environ: Mapping[str, str],
        report: Report,
        num_in_flight: Callable[[str], int] = lambda name: 0,
        instance: str | None = None,
        pace: Pace | None = None,
        make: Callable[[Plan, Path, Mapping[str, str]], Planned] = Planned,
    ) -> None:
        self.instance = instance or uuid4().hex
        self._settings, self._report, self._num_in_flight = settings, report, num_in_flight
        self._pace = pace
        self._planned: dict[str, Planned] = {}
        self.starters = Starters(environ)
        self._claims: list[int] = []
        self._watchers: dict[str, Watcher] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._asker: Asker | None = None
        plans = {one.name: read_plan(one.plan) for one in settings.backends if one.plan is not None}
        if plans:
            folder = home(environ)
            self._planned = {name: make(plan, folder, environ) for name, plan in plans.items()}
            for planned in self._planned.values():
                planned.starters = self.starters
            self._claims = claim(folder, {name: planned.name for name, planned in self._planned.items()})
            try:
                for planned in self._planned.values():
                    planned.check()
            except BaseException:
                self.release()
                raise

    def run(self) -> None:
        """Begin to watch, inside the event loop."""
        self._asker = Asker()
        found = addresses(self._settings)
        for one in self._settings.backends:
            if one.name not in found:
                raise UserError(f"backend {one.name} has no address")
            self._watchers[one.name] = Watcher(
                one,
                found[one.name],
                self._asker,
                instance=self.instance,
                report=_of(one.name, self._report),
                num_in_flight=_of_one(one.name, self._num_in_flight),
                planned=self._planned.get(one.name),
                is_pooled=one.pool is not None,
                pace=self._pace,
            )
        self._tasks = [
            asyncio.create_task(watcher.run(), name=f"watch {name}") for name, watcher in self._watchers.items()
        ]

    async def close(self) -> None:
        """End watching, and starts that are under way. What runs goes on."""
        for planned in self._planned.values():
            planned.cancel()
        self.starters.close()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()
        if self._asker is not None:
            await self._asker.close()
        self.release()

    def release(self) -> None:
        """Give the plans to other routers."""
        while self._claims:
            os.close(self._claims.pop())

    def happened(self, event: Happening) -> None:
        """Look at a backend that could not be reached; take out one that repeats itself, where the guard acts."""
        watcher = self._watchers.get(event.backend or "")
        if watcher is None:
            return
        if event.kind == "loops":
            if self._settings.guard_of(event.backend or "") == "act":
                watcher.looped()
        elif event.kind == "failed" and event.failure in UNREACHED:
            watcher.look_now()

    @property
    def planned(self) -> Mapping[str, Planned]:
        """The plans, by backend."""
        return self._planned

    async def start(self, name: str) -> None:
        """Begin to start a backend; its condition tells the rest. Raises UserError for an unknown one."""
        self.watcher(name).start()

    async def stop(self, name: str) -> None:
        """Take a backend out at once, and end the processes of its plan when its answers are over. Raises UserError."""
        self.watcher(name).stop()

    def watcher(self, name: str) -> Watcher:
        """Return who watches a backend. Raises UserError for an unknown one."""
        if name not in self._watchers:
            raise UserError(f"no backend '{name}'{nearest(name, self._watchers)}")
        return self._watchers[name]


def _of(name: str, report: Report) -> Callable[[Condition], None]:
    return lambda condition: report(name, condition)


def _of_one(name: str, count: Callable[[str], int]) -> Callable[[], int]:
    return lambda: count(name)

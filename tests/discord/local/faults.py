"""Faults that a test scripts: answers of the next requests, connections that break, a server that says nothing."""

import asyncio
from dataclasses import dataclass, field

__all__ = ["Fault", "Faults"]


@dataclass
class Fault:
    """What happens to the next `times` requests of a route (its short name, or * for any).

    `status` is what they are answered with, "reset" breaks the connection, "slow" carries the request out after
    `retry_after_s`. With `after`, the request is carried out first, so that only its answer is lost.
    """

    route: str
    status: int | str
    times: int = 1
    retry_after_s: float = 0.5
    is_global: bool = False
    scope: str = "user"  # or shared: a limit that others use up
    after: bool = False


@dataclass
class Faults:
    """Faults that wait for their requests."""

    waiting: list[Fault] = field(default_factory=list)
    frozen: asyncio.Event | None = None  # set at the end of the freeze

    def add(self, fault: Fault) -> Fault:
        self.waiting.append(fault)
        return fault

    def take(self, name: str) -> Fault | None:
        """The fault that a request of the route `name` meets."""
        for fault in self.waiting:
            if fault.route in (name, "*"):
                fault.times -= 1
                if fault.times <= 0:
                    self.waiting.remove(fault)
                return fault
        return None

    def freeze(self, seconds: float) -> None:
        """Answer nothing for a while, neither requests nor heartbeats; what came meanwhile is answered then."""
        self.thaw()
        self.frozen = asyncio.Event()
        asyncio.get_running_loop().call_later(seconds, self.frozen.set)

    def thaw(self) -> None:
        if self.frozen is not None:
            self.frozen.set()

    async def wait(self) -> None:
        """Wait while the server is frozen."""
        if self.frozen is not None:
            await self.frozen.wait()

"""What happened: every request with its time and answer, every state of every message, and what no good client does."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.discord.local.world import Message, State

__all__ = ["Journal", "Logged", "Violation"]


@dataclass
class Logged:
    """A request of the API. `name` is the route's short name; `status` 0 means that no answer was sent."""

    at_s: float
    name: str
    method: str
    path: str
    body: Any = None
    status: int = 0
    ended_s: float = 0.0
    retry_s: float | None = None  # when a 429 lets it come again
    headers: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Violation:
    """Something that a well-behaved client does not send.

    Of requests, `what` is: limit (headers had said that nothing was left of its bucket), retry or global (before the
    end of a 429's time), again (headers had said so too, but a 429 had let this one come again at this time).
    """

    at_s: float
    what: str
    request: Logged | None = None


@dataclass
class Journal:
    """`states` has those of all messages in order; `until` waits for something to be true of them."""

    requests: list[Logged] = field(default_factory=list)
    states: list[tuple[Message, State]] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    version: int = 0
    waiting: list[asyncio.Future[None]] = field(default_factory=list, repr=False)

    def changed(self) -> None:
        """Wake those who wait for a change."""
        self.version += 1
        waiting, self.waiting = self.waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def record(self, message: Message, change: str, by: str, at_s: float) -> None:
        """Keep the state that `message` now has."""
        state = State(
            at_s,
            change,
            by,
            message.content,
            tuple((emoji, tuple(user.name for user in users)) for emoji, users in message.reactions.items()),
            tuple(one.name for one in message.attachments),
            tuple(button.get("label") or "" for button in message.buttons),
            tuple(message.embeds),
        )
        message.states.append(state)
        self.states.append((message, state))
        self.changed()

    async def next_change(self, timeout_s: float) -> bool:
        """Wait for a change; false where none came in time."""
        future = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        done, _ = await asyncio.wait([future], timeout=timeout_s)
        if not done:
            self.waiting.remove(future)
        return bool(done)

    async def until(self, is_true: Callable[[], Any], timeout_s: float = 10.0, what: str = "") -> Any:
        """Wait until `is_true` returns something true, which is returned; looks after each change and every 50 ms."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        while not (found := is_true()):
            if loop.time() > end:
                raise TimeoutError(f"not within {timeout_s} s: {what or is_true}")
            await self.next_change(0.05)
        return found

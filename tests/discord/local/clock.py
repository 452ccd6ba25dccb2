"""The local Discord's time: a test puts it forward instead of waiting. Identifiers that carry their time."""

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

__all__ = ["Clock", "Snowflakes", "timestamp"]

DISCORD_EPOCH_MS = 1_420_070_400_000  # 2015-01-01, from which identifiers count


@dataclass
class Clock:
    """Seconds since 1970, never backwards; `ahead_s` puts it forward."""

    ahead_s: float = 0.0
    zero_s: float = field(default_factory=lambda: time.time() - time.monotonic(), repr=False)

    def __call__(self) -> float:
        return self.zero_s + time.monotonic() + self.ahead_s


@dataclass
class Snowflakes:
    """Identifiers as Discord's: milliseconds in the upper bits, rising, none twice."""

    clock: Clock
    last: int = 0

    def __call__(self) -> int:
        now = int(self.clock() * 1000) - DISCORD_EPOCH_MS << 22
        self.last = max(now, self.last + 1)
        return self.last


def timestamp(at_s: float | None) -> str | None:
    """A time as Discord writes it."""
    return None if at_s is None else datetime.fromtimestamp(at_s, UTC).isoformat()

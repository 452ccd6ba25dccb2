"""Matches stop strings: decides how much of a growing text may be shown, and where it ends. Pure text, no tokens."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StopMatcher", "Stops"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stops:
    """The stop strings of a request, and whether the one that ends an answer is shown."""

    strings: tuple[str, ...] = ()
    include: bool = False


class StopMatcher:
    """Holds back text that may turn out to be the beginning of a stop string.

    It is fed token by token, so that the result does not depend on how many tokens a round commits. Of several stop
    strings that one token completes, the one that begins first wins, the longest of those; it is part of the text
    only if `include`. `stopped` is that string, None until then.
    """

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        self._include = include
        self._held = ""
        self.stopped: str | None = None

    def feed(self, text: str) -> str:
        """Add text and return what can be shown by now; sets `stopped` once a stop string is complete."""
        if not self._stops:
            return text
        self._held += text
        starts = [(start, -len(stop), stop) for stop in self._stops if (start := self._held.find(stop)) >= 0]
        if starts:
            start, _, self.stopped = min(starts)
            end = start + (len(self.stopped) if self._include else 0)
            shown, self._held = self._held[:end], ""
            return shown
        keep = self._num_open()
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def flush(self) -> str:
        """Return the held text at the end of a message."""
        held, self._held = self._held, ""
        return held

    def _num_open(self) -> int:
        """Return the length of the text's longest suffix that is a prefix of a stop string."""
        for size in range(min(self._longest - 1, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stops):
                return size
        return 0

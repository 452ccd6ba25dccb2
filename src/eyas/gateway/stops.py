"""Stop strings: how much of a growing text may be shown, and where it ends. Pure; knows no tokens."""

from __future__ import annotations

__all__ = ["StopMatcher"]


class StopMatcher:
    """Holds back text that may turn out to be the beginning of a stop string.

    Fed token by token, so that the result does not depend on how many tokens a round commits. Of several stop
    strings that one token completes, the one that begins first wins, and is not part of the text.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """Add text and return what can be shown by now; sets `stopped` once a stop string is complete."""
        self._held += text
        starts = [start for stop in self._stops if (start := self._held.find(stop)) >= 0]
        if starts:
            self.stopped = True
            shown, self._held = self._held[: min(starts)], ""
            return shown
        keep = self._num_open()
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def flush(self) -> str:
        """The held text, once it is known that nothing follows."""
        held, self._held = self._held, ""
        return held

    def _num_open(self) -> int:
        """Length of the longest end of the text with which a stop string begins."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stops):
                return size
        return 0

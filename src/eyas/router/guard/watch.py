"""Watches one answer for loops, with the patience that its request deserves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from eyas.base.serving.repetition import Detector, Loop, kind_of
from eyas.router.guard.wishes import asks_for_repetition, contains_repeated
from eyas.router.settings.schema import GuardMode

__all__ = ["Watch", "failure_of", "watch_for"]

PATIENCE = 4  # times the usual length, where a loop is wanted or costs little
FEW_TOKENS = 256  # max_tokens up to this: hardly anything is saved by ending a loop


class Watch:
    """Reads the text of one choice of one backend's answer. `is_acting`: the answer ends at a loop; else it is counted.

    `prompt` gives the newest text of the user. It is called at most once for each suspect, and rarely at all.
    """

    __slots__ = ("_detector", "_max_tokens", "_prompt", "is_acting")

    def __init__(self, *, is_acting: bool, max_tokens: int | None, prompt: Callable[[], str]) -> None:
        self.is_acting = is_acting
        self._max_tokens = max_tokens
        self._prompt = prompt
        self._detector: Detector | None = Detector(self._patience)

    def add(self, text: str) -> Loop | None:
        """Read more of the answer. Returns a loop when it is found, once; after it nothing is looked at any more."""
        if self._detector is None:
            return None
        loop = self._detector.feed(text)
        if loop is not None:
            self._detector = None
        return loop

    def _patience(self, unit: str) -> int:
        """Return by how much longer `unit` may go on. A short answer of one symbol is as wrong as a long one."""
        is_short = self._max_tokens is not None and self._max_tokens <= FEW_TOKENS
        if is_short and kind_of(unit) != "symbol":
            return PATIENCE
        prompt = self._prompt()
        return PATIENCE if asks_for_repetition(prompt) or contains_repeated(prompt, unit) else 1


def watch_for(mode: GuardMode, *, max_tokens: int | None, prompt: Callable[[], str]) -> Watch | None:
    """Return the watch for an answer in `mode`; None if it is off."""
    if mode == "off":
        return None
    return Watch(is_acting=mode == "act", max_tokens=max_tokens, prompt=prompt)


def failure_of(loop: Loop) -> Literal["degenerate", "one_symbol"]:
    """Return which kind of failure `loop` is: of the model, or most likely of its engine."""
    return "one_symbol" if loop.is_symbol else "degenerate"

"""One answer as a desk has it: what is wanted of it, and what is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from eyas.discord.conversation import Shown, Wanted
from eyas.discord.store import Kept

__all__ = ["Card", "Key", "Source"]

Key = tuple[int, int]  # a question and the place of a message in its answer; QUESTION: the question itself


class Source(Protocol):
    """The look of an answer now. To make it of a long text takes milliseconds."""

    @property
    def phase(self) -> str:
        """The phase that it is in."""

    def wanted(self) -> Wanted:
        """Return what should be seen now."""


class Card:
    """Holds what is wanted of an answer, and which of its messages are there."""

    def __init__(self, kept: Kept, source: Source, wake: Callable[[], None], number: int) -> None:
        self.kept, self.source, self._wake = kept, source, wake
        self.number = number  # messages of another try are other ones
        self.message_ids = dict(enumerate(kept.reply_ids))
        self.shown: dict[int, Shown] = {}
        self.phase = source.phase
        self.wanted = source.wanted()  # the first one is shown in any case, however fast the answer comes
        self.is_stale = False  # there is a newer one
        self.handed: Wanted | None = None  # to the pacer
        self.reaction: str | None = None
        self.may_show = False  # the first reaction is there, or was late
        self.is_gone = False  # nothing can be shown any more
        self.are_shown = asyncio.Event()  # the messages as they are wanted at the end
        self.is_settled = asyncio.Event()  # and the reactions

    @property
    def question_id(self) -> int:
        return self.kept.question_id

    def key(self, place: int) -> Key:
        return self.kept.question_id, place

    def changed(self) -> None:
        """Note that something else is wanted."""
        self.is_stale = True
        self._wake()

    def renew(self) -> None:
        """Take what is wanted now."""
        self.is_stale, self.phase, self.wanted = False, self.source.phase, self.source.wanted()

    @property
    def is_shown(self) -> bool:
        """Whether all messages are as they are wanted."""
        wanted = self.wanted.messages
        return len(wanted) == len(self.message_ids) and all(
            self.shown.get(place) == shown for place, shown in enumerate(wanted)
        )

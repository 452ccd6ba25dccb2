"""An answer that is being written, and the ways to end it early."""

from __future__ import annotations

import asyncio

from eyas.discord.conversation import Conversation
from eyas.discord.showing.desk import Desk
from eyas.discord.store import Kept

__all__ = ["Running"]


class Running:
    """An answer that is being written."""

    def __init__(self, kept: Kept, conversation: Conversation, desk: Desk, number: int, payer: int | None) -> None:
        self.kept, self.conversation, self.desk = kept, conversation, desk
        self.payer = payer  # person whose limits count; None: it was refused before it began
        self.card = desk.card(kept, conversation, number)
        self.work: asyncio.Task[None] | None = None
        self.is_done = asyncio.Event()
        self.model: str | None = None  # as it was asked for
        self.num_prompt_tokens = 0  # estimated
        self.began = asyncio.get_running_loop().time()

    def stop(self, name: str) -> None:
        """End it since a person wants so."""
        self.conversation.stop(name)
        self._cancel()

    def abandon(self, line: str) -> None:
        """End it for a reason of the bot's own."""
        self.conversation.end_unfinished(line)
        self._cancel()

    def _cancel(self) -> None:
        self.card.changed()
        if self.work is not None:
            self.work.cancel()

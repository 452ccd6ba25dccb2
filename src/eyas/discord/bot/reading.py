"""Reads messages of Discord as turns for the model: names for mentions, attached files, answers put together again."""

from __future__ import annotations

from collections.abc import Callable

import discord
from eyas.discord.bot.history import Entry, History
from eyas.discord.memory import Turn
from eyas.discord.settings.schema import Settings
from eyas.discord.words import said_by_model

__all__ = ["Reading"]


class Reading:
    """Turns of a conversation. `bot` is the one whose messages are the model's."""

    def __init__(self, bot: discord.Client, history: History, settings: Callable[[], Settings]) -> None:
        self._bot, self._history, self._settings = bot, history, settings

    async def turns(self, question: discord.Message) -> tuple[list[Turn], list[str]]:
        """Return the turns up to a question, and what is to be said below the answer: which files were not read.

        Nothing but the turns of others, or nothing at all, comes back for a message that asks nothing.
        """
        notes: list[str] = []
        turns = []
        for entry in await self._history.before(question):
            if (turn := await self._turn(entry, [])) is not None:
                turns.append(turn)
        if (turn := await self._turn(Entry(messages=(question,), is_ours=False), notes)) is not None:
            turns.append(turn)
        elif turns and turns[-1].role == "assistant":
            return [], notes
        return turns, notes

    async def _turn(self, entry: Entry, notes: list[str]) -> Turn | None:
        name = entry.messages[0].author.display_name
        if entry.is_ours:
            display = self._settings().display
            parts = [said_by_model(message.content, display) for message in entry.messages]
            text = "\n".join(part for part in parts if part)
            return Turn(role="assistant", text=text, name=name) if text else None
        text = self._plain(entry.messages[0])
        return Turn(role="user", text=text, name=name) if text else None

    def _plain(self, message: discord.Message) -> str:
        """Return the text of a person with names for mentions, and without the mention that calls the bot."""
        text = message.content
        me = self._bot.user
        for person in message.mentions:
            name = f"@{person.display_name}"
            for mention in (f"<@{person.id}>", f"<@!{person.id}>"):
                if me is not None and person.id == me.id:
                    text = text.strip().removeprefix(mention).removesuffix(mention)
                text = text.replace(mention, name)
        return text.strip()

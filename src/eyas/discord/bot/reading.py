"""Reads messages of Discord as turns for the model: names for mentions, attached files, answers put together again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import aiohttp

import discord
from eyas.discord.attachments import Attached, Contents, read_attachments
from eyas.discord.bot.history import Entry, History
from eyas.discord.memory import Turn
from eyas.discord.settings.schema import Settings
from eyas.discord.words import said_by_model

__all__ = ["Reading"]

MAX_CACHED = 200  # messages whose files are kept
MAX_CACHED_CHARS = 200_000  # of the files of one of them


class Reading:
    """Turns of a conversation. `bot` is the one whose messages are the model's."""

    def __init__(self, bot: discord.Client, history: History, settings: Callable[[], Settings]) -> None:
        self._bot, self._history, self._settings = bot, history, settings
        self._session: aiohttp.ClientSession | None = None
        self._contents: OrderedDict[tuple[int, ...], Contents] = OrderedDict()

    async def close(self) -> None:
        """Close the connections to the hosts of attachments."""
        if self._session is not None:
            await self._session.close()

    async def turns(self, question: discord.Message) -> tuple[list[Turn], list[str]]:
        """Return the turns up to a question, and what is to be said below the answer: which files were not read.

        No turns come back where nothing is asked. A mention without words asks about what it replies to.
        """
        turns: list[Turn] = []
        most = self._settings().memory.messages - 1  # older ones do not go on, so their files need not be read
        for entry in reversed(await self._history.before(question)):
            if (turn := await self._turn(entry, [], with_files=len(turns) < most)) is not None:
                turns.insert(0, turn)
        notes: list[str] = []
        turn = await self._turn(Entry(messages=(question,), is_ours=False), notes)
        if turn is not None:
            return [*turns, turn], notes
        return (turns if turns and turns[-1].role == "user" else []), notes

    async def _turn(self, entry: Entry, notes: list[str], *, with_files: bool = True) -> Turn | None:
        name = entry.messages[0].author.display_name
        files = [file for message in entry.messages for file in message.attachments] if with_files else []
        contents = await self._read(files)
        if entry.is_ours:
            display = self._settings().display
            parts = [said_by_model(message.content, display) for message in entry.messages]
            text = "\n".join([*(part for part in parts if part), *(file.text for file in contents.texts)])
            return Turn(role="assistant", text=text, name=name) if text else None
        notes += [f"{one}." for one in contents.unread]
        quoted = [f"File {file.name}:\n{file.text}" for file in contents.texts]
        text = "\n\n".join(part for part in (self._plain(entry.messages[0]), *quoted) if part)
        images = tuple(image.part for image in contents.images)
        return Turn(role="user", text=text, name=name, images=images) if text or images else None

    async def _read(self, files: Sequence[discord.Attachment]) -> Contents:
        """Return what is in files. A file of Discord never changes, so small ones are read once."""
        if not files:
            return Contents()
        key = tuple(file.id for file in files)
        if (found := self._contents.get(key)) is not None:
            return found
        if self._session is None:
            self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        settings = self._settings().files
        attached = [
            Attached(name=one.filename, url=one.url, num_bytes=one.size, content_type=one.content_type) for one in files
        ]
        found = await read_attachments(self._session, attached, settings, takes_images=settings.images)
        if not found.unread and not found.images and sum(len(one.text) for one in found.texts) <= MAX_CACHED_CHARS:
            self._contents[key] = found
            if len(self._contents) > MAX_CACHED:
                self._contents.popitem(last=False)
        return found

    def _plain(self, message: discord.Message) -> str:
        """Return the text of a person with names for mentions, and without the mention that calls the bot."""
        text = message.content
        me = self._bot.user
        for person in message.mentions:
            for mention in (f"<@{person.id}>", f"<@!{person.id}>"):
                if me is not None and person.id == me.id:
                    text = text.strip().removeprefix(mention).removesuffix(mention)
                text = text.replace(mention, f"@{person.display_name}")
        return text.strip()

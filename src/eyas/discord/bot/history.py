"""Reads from Discord what was said before a question: the chain of replies, or the thread that it stands in."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import discord
from eyas.discord.showing.troubles import PASSING
from eyas.discord.store import Kept, Store

__all__ = ["Entry", "History"]

logger = logging.getLogger(__name__)

MAX_SEEN = 2000  # messages in memory
MAX_CHAIN = 100  # messages that a chain is followed back
PAGE = 100  # messages that Discord gives at once


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One message of a conversation, before its attachments are read; an answer of several messages is one."""

    messages: tuple[discord.Message, ...]
    is_ours: bool
    question_id: int | None = None  # of an answer: what it replies to

    @property
    def person_id(self) -> int:
        """The author's id."""
        return self.messages[0].author.id


class History:
    """Messages as they stand now: what was edited or deleted since it was read is read again."""

    def __init__(self, bot: discord.Client, store: Store) -> None:
        self._bot = bot
        self._store = store
        self._seen: OrderedDict[int, discord.Message] = OrderedDict()

    def changed(self, message_id: int) -> None:
        """Forget a message since it was edited or deleted."""
        self._seen.pop(message_id, None)

    def clear(self) -> None:
        """Forget all: what happened while there was no connection is not known."""
        self._seen.clear()

    async def before(self, question: discord.Message) -> list[Entry]:
        """Return what was said before, oldest first, without what is forgotten.

        Of a private channel or a thread it is all that Discord gives at once, of others the chain of replies.
        """
        is_whole = isinstance(question.channel, discord.DMChannel | discord.Thread)
        steps = self._all(question) if is_whole else self._chain(question)
        found: list[Entry] = []
        try:
            async for entry in steps:
                found.append(entry)
        except (discord.HTTPException, *PASSING) as error:
            logger.warning("channel %s: cannot read what was said before: %s", question.channel.id, error)
        return self._remembered(found[::-1], is_whole=is_whole)

    async def message(self, channel: Any, message_id: int) -> discord.Message | None:
        """Return a message as it stands now; None if it is gone or may not be read."""
        if (found := self._seen.get(message_id)) is None:
            try:
                found = await channel.fetch_message(message_id)
            except (discord.NotFound, discord.Forbidden):
                return None
            self._keep(found)
        return found

    async def _chain(self, question: discord.Message) -> AsyncIterator[Entry]:
        """Yield the chain of replies from the newest on."""
        channel, step = question.channel, question
        for _ in range(MAX_CHAIN):
            parent_id = _parent_of(step)
            if parent_id is None:
                return
            if (kept := self._store.find_reply(parent_id)) is not None:
                if (answer := await self._answer(channel, kept)) is not None:
                    yield answer
                parent_id = kept.question_id
            parent = await self.message(channel, parent_id)
            if parent is None:
                return
            step = parent
            yield self._single(step)

    async def _all(self, question: discord.Message) -> AsyncIterator[Entry]:
        """Yield the messages of a thread or private channel from the newest on, and the message that it began with."""
        answers: set[int] = set()
        async for message in question.channel.history(limit=PAGE, before=question):
            self._keep(message)
            kept = self._store.find_reply(message.id) if self._is_ours(message) else None
            if kept is None:
                yield self._single(message)
            elif kept.question_id not in answers:
                answers.add(kept.question_id)
                if (answer := await self._answer(question.channel, kept)) is not None:
                    yield answer
        thread = question.channel
        if not isinstance(thread, discord.Thread) or thread.parent is None:
            return
        # a thread that was begun from a message has its id (https://discord.com/developers/docs/topics/threads)
        if (starter := await self.message(thread.parent, thread.id)) is not None:
            yield self._single(starter)

    async def _answer(self, channel: Any, kept: Kept) -> Entry | None:
        """Return an answer with all of its messages that are still there; None while it is being written."""
        if kept.state == "answering":
            return None
        found = [await self.message(channel, reply_id) for reply_id in kept.reply_ids]
        messages = tuple(message for message in found if message is not None)
        return Entry(messages=messages, is_ours=True, question_id=kept.question_id) if messages else None

    def _remembered(self, entries: list[Entry], *, is_whole: bool) -> list[Entry]:
        """Return the entries without those that people want forgotten, and without answers to what is gone."""
        ids = {message.id for entry in entries for message in entry.messages}
        kept: list[Entry] = []
        gone: set[int] = set()
        for entry in entries:
            first = entry.messages[0]
            if entry.is_ours:
                asked = entry.question_id
                # a question that is older than what was read of a whole channel need not be gone
                is_gone = asked is not None and asked not in ids and (not is_whole or asked > min(ids))
                is_forgotten = is_gone or asked in gone
            else:
                is_forgotten = first.id <= self._store.forgotten_to(entry.person_id)
            if is_forgotten:
                gone.update(message.id for message in entry.messages)
            else:
                kept.append(entry)
        return kept

    def _single(self, message: discord.Message) -> Entry:
        is_ours = self._is_ours(message)
        return Entry(messages=(message,), is_ours=is_ours, question_id=_parent_of(message) if is_ours else None)

    def _is_ours(self, message: discord.Message) -> bool:
        return self._bot.user is not None and message.author.id == self._bot.user.id

    def _keep(self, message: discord.Message) -> None:
        self._seen[message.id] = message
        self._seen.move_to_end(message.id)
        if len(self._seen) > MAX_SEEN:
            self._seen.popitem(last=False)


def _parent_of(message: discord.Message) -> int | None:
    """Return the id of the message that this one replies to; a forwarded message is no reply."""
    reference = message.reference
    if reference is None or reference.type is not discord.MessageReferenceType.default:
        return None
    return reference.message_id

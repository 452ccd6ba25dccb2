"""Shows the answers in one channel: tells its pacer what is wanted, and carries out what the pacer lets go."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any, cast

import discord
from eyas.discord.conversation import Shown
from eyas.discord.pacer import Pacer, Send
from eyas.discord.showing.buttons import view_of
from eyas.discord.showing.card import Card, Key, Source
from eyas.discord.showing.rates import Heard
from eyas.discord.showing.troubles import PASSING
from eyas.discord.store import Kept, Store

__all__ = ["Desk", "nonce_of"]

logger = logging.getLogger(__name__)

FIRST_REACTION_S = 0.5  # how long a reply waits for the reaction before it
IDLE_S = 60.0  # after which nothing holds any more that Discord has said of a channel's limits
AGAIN_S = 2.0  # after an error of Discord's own
NO_HISTORY = 160002  # error code: a reply needs Read Message History
FILE_NAME = "answer.md"
NO_PINGS = discord.AllowedMentions.none()
QUESTION = -1
MAX_TRIES = 100_000  # that differ: a try is numbered by its second, and Discord knows a nonce for minutes


class Desk:
    """The answers of one channel. `gone` takes a question whose answer cannot be shown; `edited` counts edits."""

    def __init__(
        self,
        bot: discord.Client,
        channel_id: int,
        store: Store,
        edit_every_s: Callable[[], float],
        gone: Callable[[int], None],
        edited: Callable[[], None],
    ) -> None:
        self._bot, self._store, self._edit_every_s = bot, store, edit_every_s
        self._gone, self._edited = gone, edited
        self._channel_id = channel_id
        self._channel = bot.get_partial_messageable(channel_id)
        self._loop = asyncio.get_running_loop()
        self._pacer: Pacer[Shown] = Pacer(edit_every_s=edit_every_s())
        self._cards: dict[int, Card] = {}
        self._changed = asyncio.Event()
        self._sending: set[asyncio.Task[None]] = set()
        self._pacing: asyncio.Task[None] | None = None
        self._is_forbidden = False
        self._idle_since = self._loop.time()

    @property
    def is_forsaken(self) -> bool:
        """Whether nothing of it is wanted any more, the limits of its channel included: they are old."""
        is_idle = self._pacing is None and not self._sending and self._loop.time() >= self._idle_since + IDLE_S
        return is_idle and not self._is_forbidden  # the log says once where the bot may not write

    def card(self, kept: Kept, source: Source, number: int) -> Card:
        """Put an answer on the desk; `number` is that of the try to answer."""
        card = Card(kept, source, self._changed.set, number)
        self._cards[card.question_id] = card
        self._pacer.edit_every_s = self._edit_every_s()
        self._pacer.adopt(card.key(QUESTION))
        for place in card.message_ids:
            self._pacer.adopt(card.key(place))
        self._loop.call_later(FIRST_REACTION_S, self._let_show, card)
        if self._pacing is None:
            self._pacing = asyncio.create_task(self._pace())
        self._changed.set()
        return card

    def remove(self, card: Card) -> None:
        """Take a card away as it is."""
        for place in (QUESTION, *card.message_ids, *range(len(card.wanted.messages))):
            self._pacer.forget(card.key(place))
        self._cards.pop(card.question_id, None)
        self._changed.set()

    def close(self) -> None:
        """Send nothing more."""
        for task in (*self._sending, *([] if self._pacing is None else [self._pacing])):
            task.cancel()

    async def _pace(self) -> None:
        """Send what may go, until no answer is left."""
        while self._cards:
            self._changed.clear()
            now = self._loop.time()
            for card in self._cards.values():
                self._want(card, now, is_going=False)
            while (at := self._pacer.next_at()) is not None and at <= now:
                for card in self._cards.values():
                    self._want(card, now, is_going=True)
                if (send := self._pacer.next(now)) is None:
                    break
                task = asyncio.create_task(self._send(send))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)
            try:
                async with asyncio.timeout_at(self._pacer.next_at()):
                    await self._changed.wait()
            except TimeoutError:
                pass
        self._pacing, self._idle_since = None, self._loop.time()

    def _want(self, card: Card, now: float, *, is_going: bool) -> None:
        """Tell the pacer what is wanted of an answer: at first the reaction, at the end the reaction last.

        A text that grows is cut into messages when a request may go, not with each piece that comes.
        """
        if card.is_gone:
            return
        if card.is_stale and card.shown and (is_going or card.source.phase != card.phase or not self._waits(card)):
            card.renew()
        wanted = card.wanted
        if card.may_show and wanted != card.handed:
            card.handed = wanted
            for place, shown in enumerate(wanted.messages):
                is_full = place + 1 < len(wanted.messages)  # and stays as it is
                self._pacer.want(card.key(place), shown, now, is_final=wanted.is_final or is_full)
            for place in card.message_ids:
                if place >= len(wanted.messages):
                    self._pacer.remove(card.key(place))
        if card.reaction != wanted.reaction and (not wanted.is_final or card.is_shown):
            if card.reaction is not None:
                self._pacer.react(card.key(QUESTION), card.reaction, now, is_added=False)
            if wanted.reaction is not None:
                self._pacer.react(card.key(QUESTION), wanted.reaction, now)
            card.reaction = wanted.reaction
        if wanted.is_final and card.is_shown:
            card.are_shown.set()
            if card.reaction == wanted.reaction:
                self._pacer.release(card.key(QUESTION))
                if not self._pacer.knows(card.key(QUESTION)):
                    card.is_settled.set()

    def _waits(self, card: Card) -> bool:
        """Return whether a message of an answer waits to show something else already."""
        return any(self._pacer.is_due(card.key(place)) for place in range(len(card.wanted.messages)))

    async def _send(self, send: Send[Shown]) -> None:
        """Carry one request out, and tell the pacer and the card what became of it."""
        question_id, place = cast(Key, send.key)
        card = self._cards.get(question_id)
        heard = Heard.here(None if card is None or place != QUESTION else partial(self._let_show, card))
        try:
            if card is None:
                self._pacer.failed(send, self._loop.time())
                return
            await self._carry_out(send, card, place)
            self._pacer.done(send, self._loop.time(), heard.rate)
            self._is_forbidden = False
        except (discord.Forbidden, discord.NotFound) as error:
            self._pacer.failed(send, self._loop.time(), heard.rate)
            self._lose(card, send, error)
        except PASSING as error:
            logger.warning("channel %s: Discord did not take a request (%s): %s", self._channel_id, send.kind, error)
            self._pacer.postpone(send, self._loop.time(), getattr(error, "retry_after", AGAIN_S))
        except discord.HTTPException as error:
            if error.status == HTTPStatus.TOO_MANY_REQUESTS:  # the library has tried five times
                self._pacer.postpone(send, self._loop.time(), AGAIN_S)
                return
            logger.error("channel %s: Discord refused a request (%s): %s", self._channel_id, send.kind, error)
            self._pacer.failed(send, self._loop.time(), heard.rate)
            self._lose(card, send, error)
        finally:
            self._changed.set()

    async def _carry_out(self, send: Send[Shown], card: Card, place: int) -> None:
        message_id = card.question_id if place == QUESTION else card.message_ids.get(place)
        if send.kind == "create":
            assert send.content is not None
            message = await self._create(send.content, card, place)
            card.message_ids[place] = message.id
            self._store.set_replies(card.question_id, list(card.message_ids.values()))
            if message.content.strip() != send.content.text.strip():  # sent before, the answer was lost: it is that one
                await self._edit(message, send.content, card)
            card.shown[place] = send.content
            return
        assert message_id is not None
        target = self._channel.get_partial_message(message_id)
        if send.kind == "react" and send.is_added:
            await target.add_reaction(send.emoji)
        elif send.kind == "react":
            assert self._bot.user is not None
            await target.remove_reaction(send.emoji, self._bot.user)
        elif send.kind == "delete":
            with suppress(discord.NotFound):  # others have deleted it
                await target.delete()
            del card.message_ids[place]
            card.shown.pop(place, None)
            self._store.set_replies(card.question_id, list(card.message_ids.values()))
        else:
            assert send.content is not None
            await self._edit(target, send.content, card)
            card.shown[place] = send.content

    async def _edit(self, message: discord.Message | discord.PartialMessage, shown: Shown, card: Card) -> None:
        await message.edit(
            content=shown.text,
            attachments=_files(shown),
            view=view_of(shown.buttons, card.question_id, card.kept.person_id),
            allowed_mentions=NO_PINGS,
        )
        self._edited()

    async def _create(self, shown: Shown, card: Card, place: int) -> discord.Message:
        """Send a message that replies to the question, or to the message before it, and return it."""
        parent = card.question_id if place == 0 else card.message_ids[place - 1]
        options: dict[str, Any] = {
            "content": shown.text,
            "nonce": nonce_of(card.question_id, place, card.number),
            "allowed_mentions": NO_PINGS,
        }
        if (view := view_of(shown.buttons, card.question_id, card.kept.person_id)) is not None:
            options["view"] = view
        if shown.file is not None:
            options["files"] = _files(shown)
        reference = discord.MessageReference(message_id=parent, channel_id=self._channel_id, fail_if_not_exists=False)
        try:
            return await self._channel.send(reference=reference, mention_author=False, **options)
        except discord.HTTPException as error:
            if error.code != NO_HISTORY:
                raise
        return await self._channel.send(**options)

    def _lose(self, card: Card | None, send: Send[Shown], error: discord.HTTPException) -> None:
        """Give up what cannot be shown: reactions are only that, a message is all of the answer."""
        if card is None or send.kind == "react":
            return
        if isinstance(error, discord.Forbidden):
            if not self._is_forbidden:
                logger.warning(
                    "channel %s: no right to answer here (%s); the bot needs View Channel, Send Messages, Read Message "
                    "History and, in threads, Send Messages in Threads",
                    self._channel_id,
                    error,
                )
            self._is_forbidden = True
        elif isinstance(error, discord.NotFound):
            logger.info("channel %s: an answer was deleted while it was written", self._channel_id)
        card.is_gone = True
        card.are_shown.set()
        card.is_settled.set()
        self._gone(card.question_id)

    def _let_show(self, card: Card) -> None:
        card.may_show = True
        self._changed.set()


def nonce_of(question_id: int, place: int, number: int = 1) -> str:
    """Return what makes a message the same if it is sent twice; Discord takes 25 characters."""
    return f"{question_id:x}-{place}-{number % MAX_TRIES}"


def _files(shown: Shown) -> list[discord.File]:
    return [] if shown.file is None else [discord.File(io.BytesIO(shown.file.encode()), FILE_NAME)]

"""Shows answers in one channel: carries out their steps one at a time, as fast as the channel's pacer lets them."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Callable
from contextlib import suppress

import discord

from eyas.discord.bot.buttons import view_of
from eyas.discord.card import CardState, Step
from eyas.discord.conversation import Shown, Wanted
from eyas.discord.pacer import Pacer
from eyas.discord.store import Kept, Store

__all__ = ["Card", "Desk"]

logger = logging.getLogger(__name__)

FIRST_REACTION_S = 0.5  # how long the reply waits for the reaction before it
FILE_NAME = "answer.md"
NO_PINGS = discord.AllowedMentions.none()


class Card:
    """One answer on a desk. `wanted` returns what should be seen now."""

    def __init__(self, desk: Desk, kept: Kept, wanted: Callable[[], Wanted]) -> None:
        self._desk, self._kept, self._wanted = desk, kept, wanted
        self._state = CardState(kept.reply_ids)
        self._num_sent = 0
        self._changed = asyncio.Event()
        self._reacting = asyncio.create_task(self._react())
        self._showing = asyncio.create_task(self._show())

    def changed(self) -> None:
        """Take in that something else is wanted."""
        self._changed.set()
        self._desk.wake()

    async def settled(self) -> None:
        """Wait until what is wanted at the end is shown, as far as Discord lets it be."""
        await asyncio.wait([self._showing, self._reacting])

    async def _show(self) -> None:
        """Carry out the steps of the messages until all is shown, or the place for them is gone."""
        await asyncio.wait([self._reacting], timeout=FIRST_REACTION_S)
        while True:
            self._changed.clear()
            wanted = self._wanted()
            step = self._state.message_step(wanted)
            if step is None:
                if wanted.is_final:
                    return
                await self._changed.wait()
            elif await self._desk.turn(step, is_last=wanted.is_final, changed=self._changed):
                step = self._state.message_step(self._wanted())  # the newest one
                if step is not None and not await self._carry_out(step):
                    return

    async def _carry_out(self, step: Step) -> bool:
        """Return whether the answer can still be shown."""
        try:
            self._state.done(step, await self._desk.carry_out(step, self._kept, self._state.message_ids))
        except discord.NotFound:
            logger.info("channel %s: an answer was deleted while it was written", self._kept.channel_id)
            return False
        except discord.Forbidden as error:
            self._desk.forbidden(error)
            return False
        except discord.HTTPException as error:
            logger.error("channel %s: Discord refused to %s a message: %s", self._kept.channel_id, step.kind, error)
            return False
        return True

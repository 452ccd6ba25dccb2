"""Finishes off answers that an earlier process of the bot was writing when it ended: a line, and the Again button."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

import discord
from eyas.discord.settings.schema import MAX_MESSAGE_CHARS, Display
from eyas.discord.showing.buttons import view_of
from eyas.discord.showing.desk import nonce_of
from eyas.discord.showing.troubles import PASSING
from eyas.discord.store import Kept, Store
from eyas.discord.text.chunks import units
from eyas.discord.words import note, said_by_model

__all__ = ["finish_off"]

logger = logging.getLogger(__name__)

AGAIN_S = 10.0
LOOKED_AT = 100  # messages after a question
NO_TEXT = note("The bot was restarted before the answer came.")
CUT_OFF = note("The bot was restarted while it wrote this; the answer may be cut off.")
NO_PINGS = discord.AllowedMentions.none()


async def finish_off(bot: discord.Client, store: Store, left: Sequence[Kept], display: Display) -> None:
    """Finish off the answers to the questions in `left`, one after the other; again while Discord has troubles."""
    num_left, rest = len(left), list(left)
    while rest:
        rest = [kept for kept in rest if not await _finish(bot, store, kept, display)]
        if rest:
            await asyncio.sleep(AGAIN_S)
    if num_left:
        logger.info("finished off %d answers that were being written when the bot ended", num_left)


async def _finish(bot: discord.Client, store: Store, kept: Kept, display: Display) -> bool:
    """Finish off one answer and return whether that is over, well or not."""
    channel = bot.get_partial_messageable(kept.channel_id)
    try:
        if kept.state == "answering":
            store.set_replies(kept.question_id, await _close(bot, channel, kept, display))
        await _clear_reactions(bot, channel, kept, display)
    except PASSING as error:
        logger.warning("question %s: its answer cannot be finished off now: %s", kept.question_id, error)
        return False
    except discord.HTTPException as error:
        logger.warning("question %s: its answer cannot be finished off: %s", kept.question_id, error)
    store.end(kept.question_id)
    return True


async def _close(
    bot: discord.Client, channel: discord.PartialMessageable, kept: Kept, display: Display
) -> Sequence[int]:
    """Say in the answer that it was cut off, and return the ids of its messages."""
    view = view_of(("again",), kept.question_id, kept.person_id)
    assert view is not None
    found = await _messages(bot, channel, kept)
    if not found:
        return [(await _reply(channel, kept, view)).id]
    *earlier, last = found
    ids = [message.id for message in found]
    if last.content.endswith((NO_TEXT, CUT_OFF)):  # it was said already, and the answer of Discord was lost
        return ids
    for message in earlier:
        if message.components:
            await message.edit(view=None, allowed_mentions=NO_PINGS)
    has_text = bool(said_by_model(last.content, display))
    content = f"{last.content}\n{CUT_OFF}" if has_text else NO_TEXT if not earlier else CUT_OFF
    if units(content) <= MAX_MESSAGE_CHARS:
        await last.edit(content=content, view=view, allowed_mentions=NO_PINGS)
        return ids
    await last.edit(view=None, allowed_mentions=NO_PINGS)
    more = await channel.send(
        CUT_OFF, view=view, allowed_mentions=NO_PINGS, nonce=nonce_of(kept.question_id, len(ids), 0)
    )
    return [*ids, more.id]


async def _reply(channel: discord.PartialMessageable, kept: Kept, view: discord.ui.View) -> discord.Message:
    """Send the reply that is not there, or get the one whose sending was not kept: it has the same nonce."""
    reference = discord.MessageReference(
        message_id=kept.question_id, channel_id=kept.channel_id, fail_if_not_exists=False
    )
    nonce = nonce_of(kept.question_id, 0)
    message = await channel.send(
        NO_TEXT, reference=reference, mention_author=False, view=view, allowed_mentions=NO_PINGS, nonce=nonce
    )
    if message.content != NO_TEXT:
        await message.edit(content=NO_TEXT, view=view, allowed_mentions=NO_PINGS)
    return message


async def _messages(bot: discord.Client, channel: discord.PartialMessageable, kept: Kept) -> list[discord.Message]:
    """Return the messages of the answer that are there, also those whose sending was not kept."""
    found: dict[int, discord.Message] = {}
    chain = {kept.question_id, *kept.reply_ids}
    try:
        after = discord.Object(kept.question_id)
        async for message in channel.history(limit=LOOKED_AT, after=after, oldest_first=True):
            reference = message.reference
            is_ours = bot.user is not None and message.author.id == bot.user.id
            if is_ours and (message.id in chain or (reference is not None and reference.message_id in chain)):
                found[message.id] = message
                chain.add(message.id)
    except discord.Forbidden:
        pass  # no right to read the history: what was kept has to do
    for reply_id in kept.reply_ids:
        if reply_id not in found:
            with suppress(discord.NotFound, discord.Forbidden):
                found[reply_id] = await channel.fetch_message(reply_id)
    return [found[message_id] for message_id in sorted(found)]


async def _clear_reactions(
    bot: discord.Client, channel: discord.PartialMessageable, kept: Kept, display: Display
) -> None:
    question = channel.get_partial_message(kept.question_id)
    for emoji in (display.thinking_reaction, display.writing_reaction):
        if emoji is not None and bot.user is not None:
            try:
                await question.remove_reaction(emoji, bot.user)
            except PASSING:
                raise
            except discord.HTTPException:
                pass  # it is not there, or the question is not

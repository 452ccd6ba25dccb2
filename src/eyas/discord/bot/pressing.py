"""Buttons below answers, pressed: Stop and Again by who asked and by operators, Reasoning by anybody in the channel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import discord
from eyas.discord.bot.answering import Answering
from eyas.discord.bot.history import History
from eyas.discord.conversation import Button
from eyas.discord.showing.troubles import PASSING
from eyas.discord.store import Kept, Store

__all__ = ["Pressable", "press"]

MAX_SHOWN = 1900  # characters in one message
NOT_YOURS = "Only who asked, and those who run the bot, can do that."
NOT_HERE = "You are not answered here."
ALREADY = "This question is being answered already."
NOT_NOW = "Discord does not show me the question now. Try again a little later."
NO_REASONING = "The reasoning behind this answer is not kept any more: only that of the newest answers is, in memory."


class Pressable(Protocol):
    """The bot, as far as pressed buttons need it."""

    answering: Answering
    history: History
    store: Store

    def is_operator(self, interaction: discord.Interaction[Any]) -> bool:
        """Return whether the person behind an interaction runs the bot."""

    def may_use(self, interaction: discord.Interaction[Any]) -> bool:
        """Return whether the person behind an interaction is answered here."""


async def press(
    bot: Pressable, interaction: discord.Interaction[Any], button: Button, question_id: int, person_id: int
) -> None:
    """Do what a button says. The interaction is acknowledged first; all else takes its time."""
    if not bot.may_use(interaction):
        await _whisper(interaction, NOT_HERE)
    elif button == "reasoning":
        await _show_reasoning(bot, interaction, question_id)
    elif interaction.user.id != person_id and not bot.is_operator(interaction):
        await _whisper(interaction, NOT_YOURS)
    elif button == "stop":
        await _stop(bot, interaction, question_id)
    else:
        await _again(bot, interaction, question_id, person_id)


async def _stop(bot: Pressable, interaction: discord.Interaction[Any], question_id: int) -> None:
    running = bot.answering.find(question_id)
    if running is None or running.conversation.is_over:
        await _whisper(interaction, "This answer is not being written any more.")
        return
    running.stop(interaction.user.display_name)
    await interaction.response.defer()


async def _again(bot: Pressable, interaction: discord.Interaction[Any], question_id: int, person_id: int) -> None:
    running = bot.answering.find(question_id)
    if running is not None and not running.conversation.is_over:
        await _whisper(interaction, ALREADY)
        return
    await interaction.response.defer()
    if running is not None:
        await running.is_done.wait()  # its last reaction
    channel, message = interaction.channel, interaction.message
    assert channel is not None and message is not None
    old = bot.store.find(question_id)
    if old is None:  # of a time that is not remembered
        old = Kept(question_id=question_id, channel_id=channel.id, person_id=person_id, reply_ids=(message.id,))
    bot.history.changed(question_id)
    try:
        question = await bot.history.message(channel, question_id)
        found = [await bot.history.message(channel, reply_id) for reply_id in old.reply_ids]
    except (discord.HTTPException, *PASSING):
        await _follow(interaction, NOT_NOW)
        return
    is_operator = bot.is_operator(interaction)
    if question is None:
        refusal: str | None = "The question is gone, or I may not read it."
    elif question_id <= bot.store.forgotten_to(question.author.id):
        refusal = "The question is forgotten, since who asked it wanted so. Ask it once more."
    else:
        refusal = bot.answering.refusal(interaction.user.id, is_operator=is_operator)
    if question is None or refusal is not None:
        await _follow(interaction, refusal or "")
    elif not (bot.store.begin(replace(old, reply_ids=())) or bot.store.begin_again(question_id) is not None):
        await _follow(interaction, ALREADY)
    else:
        kept = replace(old, state="answering", reply_ids=tuple(one.id for one in found if one is not None))
        bot.store.set_replies(question_id, kept.reply_ids)
        bot.answering.ask_again(question, kept, interaction.user.id, is_operator=is_operator)


async def _show_reasoning(bot: Pressable, interaction: discord.Interaction[Any], question_id: int) -> None:
    text = bot.answering.reasoning(question_id, interaction.channel_id or 0)
    if not text or not text.strip():
        await _whisper(interaction, NO_REASONING)
    elif len(text) <= MAX_SHOWN:
        await _whisper(interaction, text)
    else:
        import io

        await interaction.response.send_message(
            file=discord.File(io.BytesIO(text.encode()), "reasoning.md"), ephemeral=True
        )


async def _whisper(interaction: discord.Interaction[Any], text: str) -> None:
    await interaction.response.send_message(
        text, ephemeral=True, allowed_mentions=discord.AllowedMentions.none(), suppress_embeds=True
    )


async def _follow(interaction: discord.Interaction[Any], text: str) -> None:
    await interaction.followup.send(text, ephemeral=True, allowed_mentions=discord.AllowedMentions.none())

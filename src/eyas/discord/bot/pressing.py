"""Buttons below answers, pressed: Stop and Again by who asked and by operators, Reasoning by anybody in the channel."""

from __future__ import annotations

from typing import Any, Protocol

import discord
from eyas.discord.bot.answering import Answering
from eyas.discord.bot.history import History
from eyas.discord.conversation import Button
from eyas.discord.store import Kept, Store

__all__ = ["Pressable", "press"]

MAX_SHOWN = 1900  # characters in one message
NOT_YOURS = "Only who asked, and those who run the bot, can do that."
NOT_HERE = "You are not answered here."
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
        await _whisper(interaction, "This question is being answered already.")
        return
    await interaction.response.defer()
    if running is not None:
        await running.is_done.wait()  # its last reaction
    channel, message = interaction.channel, interaction.message
    assert channel is not None and message is not None
    bot.history.changed(question_id)
    question = await bot.history.message(channel, question_id)
    if question is None:
        await _follow(interaction, "The question is gone, or I may not read it.")
        return
    kept = bot.store.begin_again(question_id)
    if kept is None and bot.store.find(question_id) is None:  # of a time that is not remembered
        kept = Kept(question_id=question_id, channel_id=channel.id, person_id=person_id, reply_ids=(message.id,))
        bot.store.begin(kept)
    if kept is not None:
        bot.answering.ask_again(question, kept, interaction.user.id, is_operator=bot.is_operator(interaction))


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

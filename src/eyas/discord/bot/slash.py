"""Slash commands: /model and /effort of a channel, /forget, /status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import discord
from discord import app_commands
from eyas.base.errors import nearest
from eyas.discord.store import Choice, Store

__all__ = ["Chooser", "tree_of"]

FORGOTTEN = "What you have said up to now, and the answers to it, are not sent to the model any more."
NOT_HERE = "You are not answered here."
DEFAULT = "default"
MAX_CHOICES, MAX_CHOICE_CHARS = 25, 100  # of an autocomplete, by Discord
COMPLETE_S = 1.5  # Discord waits 3 s for choices


class Chooser(Protocol):
    """The bot, as far as the commands need it."""

    store: Store

    async def models(self, *, within_s: float | None = None) -> tuple[str, ...]:
        """Return the models and routes that may be chosen; those that are known if the list takes longer."""

    def efforts(self) -> tuple[str, ...]:
        """Return the efforts that may be chosen."""

    async def report(self) -> str:
        """Return the state of the endpoint and of the bot."""

    def forget(self, person_id: int, to: int) -> None:
        """Forget what a person has said up to a message id."""

    def may_use(self, interaction: discord.Interaction[Any]) -> bool:
        """Return whether a person is answered here."""

    def may_choose(self, interaction: discord.Interaction[Any]) -> bool:
        """Return whether a person may choose for the channel."""

    def default_model(self) -> str:
        """Return the model of channels without a choice."""


def tree_of(client: discord.Client, bot: Chooser) -> app_commands.CommandTree[Any]:
    """Return the commands, which answer to who called them alone."""
    tree = _Tree(client, bot)

    async def complete_model(interaction: discord.Interaction[Any], current: str) -> list[app_commands.Choice[str]]:
        return _choices(await bot.models(within_s=COMPLETE_S), current)

    async def complete_effort(interaction: discord.Interaction[Any], current: str) -> list[app_commands.Choice[str]]:
        return _choices(bot.efforts(), current)

    @tree.command(name="model", description="Choose the model or route that answers in this channel")
    @app_commands.describe(name="a model, a route, or default; without it: which one answers now")
    @app_commands.autocomplete(name=complete_model)
    @app_commands.default_permissions(manage_channels=True)
    async def model(interaction: discord.Interaction[Any], name: str | None = None) -> None:
        await _model(bot, interaction, name)

    @tree.command(name="effort", description="Choose how much the model reasons in this channel")
    @app_commands.describe(level="low, medium, high, or default; without it: which one holds now")
    @app_commands.autocomplete(level=complete_effort)
    @app_commands.default_permissions(manage_channels=True)
    async def effort(interaction: discord.Interaction[Any], level: str | None = None) -> None:
        await _effort(bot, interaction, level)

    @tree.command(name="forget", description="Make the bot forget what you have said to it so far, everywhere")
    async def forget(interaction: discord.Interaction[Any]) -> None:
        bot.forget(interaction.user.id, interaction.id)
        await _say(interaction, FORGOTTEN)

    @tree.command(name="status", description="Show how the model's servers stand")
    async def status(interaction: discord.Interaction[Any]) -> None:
        await interaction.response.defer(ephemeral=True, thinking=True)
        await interaction.followup.send(
            (await bot.report())[:2000], ephemeral=True, allowed_mentions=discord.AllowedMentions.none()
        )

    return tree


class _Tree(app_commands.CommandTree[Any]):
    """Commands for those who are answered."""

    def __init__(self, client: discord.Client, bot: Chooser) -> None:
        super().__init__(client)
        self._bot = bot

    async def interaction_check(self, interaction: discord.Interaction[Any], /) -> bool:
        """Say to others that they are not."""
        if self._bot.may_use(interaction):
            return True
        if interaction.type is not discord.InteractionType.autocomplete:
            await _say(interaction, NOT_HERE)
        return False


async def _model(bot: Chooser, interaction: discord.Interaction[Any], name: str | None) -> None:
    await interaction.response.defer(ephemeral=True, thinking=True)  # the list may take longer than Discord waits
    names = await bot.models()
    if name is None:
        text = f"Here answers `{_here(bot, interaction).model or bot.default_model()}`. There is {_listed(names)}."
    elif not bot.may_choose(interaction):
        text = "To choose the model of this channel you need the permission Manage Channels."
    elif name != DEFAULT and names and name not in names:
        text = f"There is no model or route `{name[:80]}`{nearest(name, names)}. There is {_listed(names)}."
    elif (channel_id := interaction.channel_id) is not None:
        effort = bot.store.choice(channel_id).effort
        bot.store.choose(channel_id, Choice(model=None if name == DEFAULT else name, effort=effort))
        now = _here(bot, interaction).model or bot.default_model()
        text = f"From now on `{now}` answers in this channel."
    await interaction.followup.send(text[:2000], ephemeral=True, allowed_mentions=discord.AllowedMentions.none())


async def _effort(bot: Chooser, interaction: discord.Interaction[Any], level: str | None) -> None:
    if level is None:
        text = f"The effort here is {_here(bot, interaction).effort or DEFAULT}. There is {_listed(bot.efforts())}."
    elif not bot.may_choose(interaction):
        text = "To choose the effort of this channel you need the permission Manage Channels."
    elif level != DEFAULT and level not in bot.efforts():
        text = f"There is no effort `{level[:80]}`{nearest(level, bot.efforts())}. There is {_listed(bot.efforts())}."
    elif (channel_id := interaction.channel_id) is not None:
        model = bot.store.choice(channel_id).model
        bot.store.choose(channel_id, Choice(model=model, effort=None if level == DEFAULT else level))
        text = f"From now on the effort in this channel is {_here(bot, interaction).effort or DEFAULT}."
    await _say(interaction, text)


def _here(bot: Chooser, interaction: discord.Interaction[Any]) -> Choice:
    """Return the choice that holds in the channel of an interaction."""
    if interaction.channel_id is None:
        return Choice()
    return bot.store.choice(interaction.channel_id, getattr(interaction.channel, "parent_id", None))


async def _say(interaction: discord.Interaction[Any], text: str) -> None:
    await interaction.response.send_message(
        text[:2000], ephemeral=True, allowed_mentions=discord.AllowedMentions.none()
    )


def _choices(names: Sequence[str], typed: str) -> list[app_commands.Choice[str]]:
    found = [name for name in (DEFAULT, *names) if typed.lower() in name.lower() and len(name) <= MAX_CHOICE_CHARS]
    return [app_commands.Choice(name=name, value=name) for name in found[:MAX_CHOICES]]


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:20])
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"{shown}{more}" if names else "no list of models, since the endpoint does not answer"

"""A client of discord.py for tests of the local Discord: it keeps what it was told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.discord.local.client import pointed_at
from tests.discord.server import LocalDiscord, local_discord

import discord

__all__ = ["Bot", "at_work", "meeting"]


class Bot(discord.Client):
    """`heard` has the messages of others, `events` the names of all events."""

    def __init__(self, intents: discord.Intents | None = None, **options: Any) -> None:
        super().__init__(intents=intents or discord.Intents.default(), guild_ready_timeout=0.02, **options)
        self.heard: list[discord.Message] = []
        self.events: list[str] = []
        self.interactions: list[discord.Interaction] = []

    def dispatch(self, event: str, /, *args: Any, **kwargs: Any) -> None:
        self.events.append(event)
        super().dispatch(event, *args, **kwargs)

    async def on_message(self, message: discord.Message) -> None:
        if message.author != self.user:
            self.heard.append(message)

    async def on_interaction(self, interaction: discord.Interaction) -> None:
        self.interactions.append(interaction)

    def text_channel(self, name: str = "general") -> discord.TextChannel:
        found = discord.utils.get(self.get_all_channels(), name=name)
        assert isinstance(found, discord.TextChannel)
        return found


@asynccontextmanager
async def at_work(local: LocalDiscord, bot: Bot) -> AsyncIterator[Bot]:
    """A bot that is logged in and ready."""
    with pointed_at(local.url):
        await bot.login(local.token)
        task = asyncio.create_task(bot.connect())
        try:
            await asyncio.wait_for(bot.wait_until_ready(), 5)
            yield bot
        finally:
            await bot.close()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def meeting(**options: Any) -> AsyncIterator[tuple[LocalDiscord, Bot]]:
    """A local Discord without limits of rate, and a bot at work there."""
    async with local_discord(**options) as local:
        local.limits.rules.clear()
        intents = discord.Intents.default()
        intents.message_content = "message_content" in local.allowed_intents
        async with at_work(local, Bot(intents)) as bot:
            yield local, bot

"""The local Discord under the real discord.py: what it shows, counts, refuses and remembers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.discord.local.client import pointed_at
from tests.discord.server import LocalDiscord, local_discord

import discord


class Bot(discord.Client):
    """A client that keeps what it was told."""

    def __init__(self, intents: discord.Intents | None = None, **options: Any) -> None:
        super().__init__(intents=intents or discord.Intents.default(), guild_ready_timeout=0.05, **options)
        self.heard: list[discord.Message] = []
        self.events: list[tuple[str, Any]] = []

    async def on_message(self, message: discord.Message) -> None:
        self.heard.append(message)

    async def on_error(self, event: str, *args: Any, **kwargs: Any) -> None:
        raise


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


def test_a_mention_is_answered():
    async def go() -> None:
        async with local_discord() as local, at_work(local, Bot()) as bot:
            question = local.say("general", "ann", "hello", mention=True)
            heard = (await local.journal.until(lambda: bot.heard))[0]
            assert heard.content == f"<@{bot.user.id}> hello"
            reply = await heard.reply("*Thinking*")
            await heard.add_reaction("🤔")
            await reply.edit(content="done")
            await heard.remove_reaction("🤔", bot.user)
            shown = local.replies(question)
            assert [state.content for state in shown[0].states] == ["*Thinking*", "done"]
            assert [state.emojis for state in question.states] == [(), ("🤔",), ()]
            assert local.violations() == []

    asyncio.run(go())

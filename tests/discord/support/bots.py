"""The bot in the test's own loop, on a local Discord, in front of an endpoint."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from tests.discord.local.client import pointed_at
from tests.discord.local.world import Message
from tests.discord.server import LocalDiscord, local_discord
from tests.discord.support.endpoint import WrittenEndpoint

from eyas.discord.bot.bot import Bot
from eyas.discord.metrics import Metrics
from eyas.discord.settings.watch import SettingsFile
from eyas.discord.store import Store

__all__ = ["QUIET", "answer_of", "at_work", "final", "on_duty", "settings_file", "whispers"]

READY_S = 20.0
QUIET = {  # without reactions, which Discord takes one by one
    "edit_every": "500ms",
    **dict.fromkeys(("thinking_reaction", "writing_reaction", "done_reaction"), "none"),
}


def settings_file(folder: Path, url: str, **sections: Any) -> Path:
    """A file of a bot in front of the endpoint at `url`."""
    path = folder / "bot.yaml"
    content = {"endpoint": {"base_url": url}, **sections}
    path.write_text(yaml.safe_dump(content))
    return path


@asynccontextmanager
async def at_work(local: LocalDiscord, path: Path) -> AsyncIterator[Bot]:
    """The bot of a file, connected."""
    with pointed_at(local.url):
        file = SettingsFile(path, {"DISCORD_TOKEN": local.token})
        store = Store(file.settings.state)
        bot = Bot(file, store, Metrics(), guild_ready_timeout=0.05)
        connection = None
        try:
            await bot.login(local.token)
            connection = asyncio.create_task(bot.connect())
            await asyncio.wait_for(bot.wait_until_ready(), READY_S)
            yield bot
        finally:
            await bot.close()
            if connection is not None:
                await asyncio.gather(connection, return_exceptions=True)
            store.close()


@asynccontextmanager
async def on_duty(folder: Path, endpoint: WrittenEndpoint, **sections: Any) -> AsyncIterator[LocalDiscord]:
    """A local Discord with the bot of such a file at work in it, in front of an endpoint."""
    async with (
        local_discord() as local,
        endpoint.serving(),
        at_work(local, settings_file(folder, endpoint.url, **sections)),
    ):
        yield local


async def final(local: LocalDiscord, question: Message, timeout_s: float = 20.0) -> list[Message]:
    """The messages of the answer to a question, once it has ended: they have the button that asks again."""

    def ended() -> list[Message]:
        found = answer_of(local, question)
        is_over = bool(found) and any(button.get("label") == "Again" for button in found[-1].buttons)
        return found if is_over and not has_reaction(question, "\N{THINKING FACE}") else []

    found: list[Message] = await local.journal.until(ended, timeout_s, f"an answer to {question.content[:40]!r}")
    return found


def answer_of(local: LocalDiscord, question: Message) -> list[Message]:
    """The messages of the bot that reply to a question, or to such a message, in order."""
    found: list[Message] = []
    step = [question]
    while step:
        step = [reply for one in step for reply in local.replies(one) if not reply.is_deleted]
        found += step
    return found


def has_reaction(question: Message, emoji: str) -> bool:
    """Whether anybody has reacted so."""
    return bool(question.reactions.get(emoji))


def whispers(local: LocalDiscord, who: str, where: str = "general") -> list[str]:
    """What only this person sees in a channel."""
    user = local.person(who)
    return [one.content for one in local.visible(local.channel(where), user) if one.only_for is user]

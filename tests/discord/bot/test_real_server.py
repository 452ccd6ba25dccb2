"""The bot in front of the demo model's real server: what people see is what the model has said."""

import asyncio

import httpx
import pytest
from tests.discord.server import local_discord
from tests.discord.support.bots import QUIET, answer_of, at_work, final, settings_file
from tests.support.serving import served

from eyas.client.pieces import Content
from eyas.discord.bot.bot import Bot

QUESTIONS = ["What does math.sqrt do?", "What is a list?"]


def record(bot: Bot) -> dict[str, str]:
    """Keep the model's texts from now on, by question."""
    said: dict[str, str] = {}
    stream = bot.endpoint.client.stream

    async def recorded(messages, **options):
        async for piece in stream(messages, **options):
            if isinstance(piece, Content):
                said[messages[-1]["content"]] = said.get(messages[-1]["content"], "") + piece.text
            yield piece

    bot.endpoint.client.stream = recorded
    return said


@pytest.mark.slow
def test_the_answer_is_the_models(tmp_path):
    with served("demo", "--draft-tokens", "3") as server:
        context = httpx.get(f"{server.url}/v1/models").json()["data"][0]["max_model_len"]

        async def go() -> None:
            async with local_discord() as local:
                sections = {"answers": {"max_tokens": 60}, "files": {"hosts": ["127.0.0.1"]}, "display": QUIET}
                async with at_work(local, settings_file(tmp_path, server.url, **sections)) as bot:
                    said = record(bot)
                    for text in QUESTIONS:
                        local.say(text[:9], "ann", text, mention=True)
                    for text in QUESTIONS:
                        (question,) = [one for one in local.channel(text[:9]).messages.values() if text in one.content]
                        await final(local, question, 60)
                        shown = [line for one in answer_of(local, question) for line in one.content.split("\n")]
                        if said.get(text, "").strip():
                            assert (
                                " ".join(line for line in shown if not line.startswith("-# ·")).split()
                                == said[text].split()
                            )
                        else:
                            assert shown[0] == "*The model reasoned, and gave no answer.*"
                    long = local.say("general", "ann", "?", mention=True, files={"long.txt": b"word " * 2 * context})
                    (reply,) = await final(local, long, 60)
                    assert reply.content.startswith("This question is too long for the model's context of")
                    assert local.violations() == []

        asyncio.run(go())

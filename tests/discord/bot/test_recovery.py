"""What an earlier process has left is finished off, also by a Discord that has troubles at first, and once only."""

import asyncio

import pytest
from tests.discord.server import local_discord
from tests.discord.support.bots import at_work, has_reaction, settings_file
from tests.discord.support.endpoint import WrittenEndpoint

from eyas.discord.bot import recovery
from eyas.discord.store import Kept, Store

CUT_OFF = "-# · The bot was restarted while it wrote this; the answer may be cut off."


@pytest.fixture(autouse=True)
def tries_often(monkeypatch):
    monkeypatch.setattr(recovery, "AGAIN_S", 0.05)


@pytest.mark.parametrize(("route", "after"), [("history", False), ("edit", True), ("unreact", False)])
def test_it_is_tried_again_while_connections_break(tmp_path, route, after):
    """Also where only the answer of Discord was lost: nothing is said twice then."""

    async def go() -> None:
        endpoint = WrittenEndpoint(lambda messages: [])
        async with local_discord() as local, endpoint.serving():
            path = settings_file(tmp_path, endpoint.url)
            question = local.say("general", "ann", "Well?", mention=True)
            reply = local.post(
                local.make_message(
                    question.channel,
                    local.bot,
                    {"content": "Half", "message_reference": {"message_id": str(question.id)}},
                    {},
                )
            )
            local.react(question, "\N{THINKING FACE}", local.bot)
            store = Store(path.with_suffix(".sqlite"))
            kept = Kept(question_id=question.id, channel_id=question.channel.id, person_id=question.author.id)
            store.begin(kept)
            store.set_replies(question.id, [reply.id])
            store.close()
            local.fail(route, "reset", times=3, after=after)
            async with at_work(local, path) as bot:
                await local.journal.until(lambda: bot.store.find(question.id).state == "ended")
                assert reply.content == f"Half\n{CUT_OFF}"
                assert not has_reaction(question, "\N{THINKING FACE}")
                assert [button["label"] for button in reply.buttons] == ["Again"]
                local.broken.clear()

    asyncio.run(go())

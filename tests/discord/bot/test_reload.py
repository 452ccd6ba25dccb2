"""The file is read again while the bot runs: what holds at once, what an answer keeps, what a wrong file does."""

import asyncio

import pytest
from tests.discord.server import local_discord
from tests.discord.support.bots import QUIET, at_work, final, settings_file, whispers
from tests.discord.support.endpoint import Pause, WrittenEndpoint

from eyas.discord.bot import bot as bot_module


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    monkeypatch.setattr(bot_module, "LOOK_S", 0.02)


def test_another_endpoint_holds_at_once_and_an_answer_that_runs_goes_on(tmp_path, caplog):
    async def go() -> None:
        old = WrittenEndpoint(lambda messages: ["Old", Pause(0.6), " answer."], model="old-model")
        new = WrittenEndpoint(lambda messages: ["New answer."], model="new-model")
        async with local_discord() as local, old.serving(), new.serving():
            path = settings_file(tmp_path, old.url, display=QUIET, state=str(tmp_path / "bot.sqlite"))
            async with at_work(local, path) as bot:
                first = local.say("general", "ann", "One", mention=True)
                await local.journal.until(lambda: old.num_running)
                settings_file(tmp_path, new.url, display=QUIET | {"thinking": "{model} thinks"})
                await local.journal.until(lambda: bot.endpoint.model != "old-model")
                (second,) = await final(local, local.say("other", "ann", "Two", mention=True))
                assert [one.content for one in second.states] == ["new-model thinks", "New answer."]
                (reply,) = await final(local, first)
                assert reply.content == "Old answer."
                await local.journal.until(lambda: len(bot._tasks) == 2)  # the old endpoint is closed

    with caplog.at_level("INFO"):
        asyncio.run(go())
    assert "the file has changed" in caplog.text


@pytest.mark.parametrize("wrong", ["endpoint: 5", "&a [*a]", "budgets: {queue: 1" + "0" * 400 + "}", "\0", "[" * 3000])
def test_a_wrong_file_is_said_and_the_next_good_one_holds(tmp_path, caplog, wrong):
    async def go() -> None:
        endpoint = WrittenEndpoint(lambda messages: ["Yes."])
        async with local_discord() as local, endpoint.serving():
            path = settings_file(tmp_path, endpoint.url)
            async with at_work(local, path) as bot:
                path.write_text(wrong)
                await local.journal.until(lambda: "the old settings hold" in caplog.text)
                assert bot.file.settings.endpoint.base_url == endpoint.url
                settings_file(tmp_path, endpoint.url, limits={"answers_at_once": 7})
                await local.journal.until(lambda: bot.quotas.limits.answers_at_once == 7)

    asyncio.run(go())


def test_efforts_and_lists_of_people(tmp_path):
    async def go() -> None:
        endpoint = WrittenEndpoint(lambda messages: ["Yes."])
        async with local_discord() as local, endpoint.serving():
            path = settings_file(tmp_path, endpoint.url, offer={"efforts": ["low"]})
            async with at_work(local, path) as bot:
                local.grant("chief", local.role("chiefs", "manage_channels"))
                people = {"allow": [local.person("chief").id]}
                settings_file(tmp_path, endpoint.url, offer={"efforts": ["low", "high"]}, access={"people": people})
                await local.journal.until(lambda: bot.file.settings.access.people.allow)
                offered = local.complete("general", "chief", "effort", "level", "")
                await local.answered(offered)
                assert [one["value"] for one in offered.choices] == ["default", "low", "high"]
                await local.answered(local.run("general", "chief", "effort", level="high"))
                assert whispers(local, "chief") == ["From now on the effort in this channel is high."]
                await local.answered(local.run("general", "ann", "forget"))
                assert whispers(local, "ann") == ["You are not answered here."]

    asyncio.run(go())

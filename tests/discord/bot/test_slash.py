"""Slash commands: threads, slow servers, tokens of interactions that end."""

import asyncio

from tests.discord.local import interactions
from tests.discord.server import local_discord
from tests.discord.support.bots import QUIET, at_work, final, on_duty, settings_file, whispers
from tests.discord.support.endpoint import Pause, WrittenEndpoint

from eyas.discord.bot import slash

OFFER = {"models": ["large", "small"]}


def test_a_thread_has_what_was_chosen_for_its_channel_but_for_what_was_chosen_for_itself(tmp_path):
    async def go() -> None:
        endpoint = WrittenEndpoint(lambda messages: ["Yes."])
        async with local_discord() as local, endpoint.serving():
            local.grant("chief", local.role("chiefs", "manage_channels"))
            thread = local.open_thread("general", "chief", "Talk")
            async with at_work(local, settings_file(tmp_path, endpoint.url, display=QUIET, offer=OFFER)):
                await local.answered(local.run("general", "chief", "model", name="small"))
                await local.answered(local.run("general", "chief", "effort", level="low"))
                await local.answered(local.run(thread, "chief", "effort", level="high"))
                await final(local, local.say(thread, "ann", "Well?", mention=True))
                assert (endpoint.asked[-1]["model"], endpoint.asked[-1]["reasoning_effort"]) == ("small", "high")
                await local.answered(local.run(thread, "chief", "model"))
                await local.answered(local.run(thread, "chief", "effort", level="default"))
                await local.answered(local.run(thread, "chief", "model", name="default"))
                await local.journal.until(lambda: all(whispers(local, "chief", thread)[3:] or [""]))
                assert whispers(local, "chief", thread) == [
                    "From now on the effort in this channel is high.",
                    "Here answers `small`. There is `large`, `small`.",
                    "From now on the effort in this channel is low.",
                    "From now on `small` answers in this channel.",
                ]
                assert local.violations() == []

    asyncio.run(go())


def test_choices_come_in_time_from_a_slow_server(tmp_path, monkeypatch):
    assert slash.COMPLETE_S < interactions.ACKNOWLEDGE_S - 1
    monkeypatch.setattr(slash, "COMPLETE_S", 0.1)

    async def go() -> None:
        endpoint = WrittenEndpoint(lambda messages: ["Yes."])
        async with local_discord() as local, endpoint.serving():
            local.grant("chief", local.role("chiefs", "manage_channels"))
            async with at_work(local, settings_file(tmp_path, endpoint.url)) as bot:
                await local.journal.until(lambda: bot.endpoint.model == "scripted")
                bot.endpoint._listed_at, endpoint.list_after_s = None, 4.0
                offered = local.complete("general", "chief", "model", "name", "SCRIPT")
                await local.answered(offered)
                assert [one["value"] for one in offered.choices] == ["scripted"]
                assert local.violations() == []

    asyncio.run(go())


def test_an_answer_outlives_the_token_of_the_press_that_asked_for_it(tmp_path, monkeypatch):
    """And its Stop and Reasoning are presses of their own."""
    monkeypatch.setattr(interactions, "TOKEN_S", 0.1)
    texts = iter([["First."], ["Second", Pause(0.3), " answer", Pause(30)]])

    async def go() -> None:
        endpoint = WrittenEndpoint(lambda messages: next(texts))
        async with on_duty(tmp_path, endpoint, display=QUIET) as local:
            question = local.say("general", "ann", "Well?", mention=True)
            (reply,) = await final(local, question)
            press = local.press(reply, "Again", "ann")
            await local.answered(press)
            await local.journal.until(lambda: reply.content == "Second answer")
            assert local.clock() > press.at_s + interactions.TOKEN_S
            await local.answered(local.press(reply, "Stop", "ann"))
            await final(local, question)
            assert reply.content == "Second answer\n-# · Stopped by Ann."
            assert local.violations() == []

    asyncio.run(go())

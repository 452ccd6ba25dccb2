"""Buttons and slash commands: who may, what they do, and that they work after a restart."""

import asyncio

import pytest
from tests.discord.server import local_discord
from tests.discord.support.bots import QUIET, answer_of, at_work, final, settings_file, whispers
from tests.discord.support.endpoint import Pause, Think, WrittenEndpoint

from eyas.discord.store import Choice

FAST = {"edit_every": "500ms"}


def test_an_answer_is_stopped_by_who_asked_and_by_operators(tmp_path):
    async def go() -> None:
        endpoint = WrittenEndpoint(lambda messages: ["Half", Pause(60)])
        async with local_discord() as local, endpoint.serving():
            boss = local.person("boss")
            path = settings_file(tmp_path, endpoint.url, display=QUIET, operators={"people": [boss.id]})
            async with at_work(local, path):
                for who, name in (("ann", "Ann"), ("boss", "Boss")):
                    question = local.say("general", "ann", "Well?", mention=True)
                    await local.journal.until(lambda: any(one.content == "Half" for one in local.replies(question)))  # noqa: B023
                    (reply,) = local.replies(question)
                    await local.answered(local.press(reply, "Stop", "ben"))
                    assert reply.content == "Half"
                    await local.answered(local.press(reply, "Stop", who))
                    await final(local, question)
                    assert reply.content == f"Half\n-# · Stopped by {name}."
                    await local.journal.until(lambda: endpoint.num_running == 0)
                assert whispers(local, "ben") == ["Only who asked, and those who run the bot, can do that."] * 2
                assert local.violations() == []

    asyncio.run(go())


@pytest.mark.slow
def test_again_answers_anew_in_the_same_place_after_a_restart_too(tmp_path):
    long = "\n".join(f"This is line {number} of a long answer." for number in range(120))
    answers = iter(["Short.", long, "Short again.", "After the restart."])

    async def go() -> None:
        endpoint = WrittenEndpoint(lambda messages: [Think("Let me see."), next(answers)])
        async with local_discord() as local, endpoint.serving():
            path = settings_file(tmp_path, endpoint.url, display=FAST)
            async with at_work(local, path):
                question = local.say("general", "ann", "Well?", mention=True)
                (reply,) = await final(local, question)
                await local.answered(local.press(reply, "Again", "ann"))
                await local.journal.until(lambda: len(answer_of(local, question)) == 3)
                last = (await final(local, question))[-1]
                await local.answered(local.press(last, "Again", "ann"))
                await local.journal.until(lambda: reply.content == "Short again.")
                assert answer_of(local, question) == [reply]
                await final(local, question)
                await local.answered(local.press(reply, "Reasoning", "ben"))
                assert whispers(local, "ben") == ["Let me see."]
                await asyncio.sleep(1)
            async with at_work(local, path):
                await local.answered(local.press(reply, "Reasoning", "cat"))
                assert whispers(local, "cat")[0].startswith("The reasoning behind this answer is not kept any more")
                await local.answered(local.press(reply, "Again", "ann"))
                await local.journal.until(lambda: reply.content == "After the restart.")
                assert answer_of(local, question) == [reply]
                assert local.violations() == []

    asyncio.run(go())


def test_commands_choose_for_a_channel(tmp_path):
    async def go() -> None:
        endpoint = WrittenEndpoint(lambda messages: ["Yes."], model="large")
        async with local_discord() as local, endpoint.serving():
            local.grant("chief", local.role("chiefs", "manage_channels"))
            offer = {"models": ["large", "small"], "routes": ["route/MATH"]}
            path = settings_file(tmp_path, endpoint.url, display=QUIET, offer=offer)
            async with at_work(local, path) as bot:
                channel = local.channel("general")
                offered = local.complete("general", "chief", "model", "name", "s")
                await local.answered(offered)
                assert [one["value"] for one in offered.choices] == ["small"]
                await local.answered(local.run("general", "chief", "model", name="smal"))
                await local.journal.until(lambda: "did you mean 'small'?" in (whispers(local, "chief") or [""])[-1])
                await local.answered(local.run("general", "chief", "model", name="route/MATH"))
                await local.answered(local.run("general", "chief", "effort", level="high"))
                await local.journal.until(
                    lambda: bot.store.choice(channel.id) == Choice(model="route/MATH", effort="high")
                )
                question = local.say("general", "ann", "Well?", mention=True)
                (reply,) = await final(local, question)
                assert reply.states[0].content == "*Thinking with route/MATH...*"
                assert (endpoint.asked[-1]["model"], endpoint.asked[-1]["reasoning_effort"]) == ("route/MATH", "high")
                await local.answered(local.run("general", "ann", "status"))
                await local.journal.until(lambda: any("The endpoint answers." in one for one in whispers(local, "ann")))
                assert local.violations() == []

    asyncio.run(go())


@pytest.mark.slow
def test_lists_and_limits(tmp_path):
    async def go() -> None:
        endpoint = WrittenEndpoint(lambda messages: ["Yes.", Pause(1.0)])
        async with local_discord() as local, endpoint.serving():
            path = settings_file(
                tmp_path,
                endpoint.url,
                access={"people": {"deny": [local.person("eve").id]}},
                limits={"answers_at_once": 1, "tokens_a_day": 10},
            )
            async with at_work(local, path):
                denied = local.say("general", "eve", "Hello?", mention=True)
                first = local.say("general", "ann", "One", mention=True)
                await local.journal.until(lambda: local.replies(first))
                second = local.say("general", "ann", "Two", mention=True)
                (reply,) = await final(local, second)
                assert reply.content.startswith("-# · 1 answer is being written for you already.")
                await final(local, first)
                await final(local, local.say("general", "ann", "Three", mention=True))
                (reply,) = await final(local, local.say("general", "ann", "Four", mention=True))
                assert reply.content.startswith("-# · You have used 16 tokens today, of 10 a day.")
                assert local.replies(denied) == [] and not denied.reactions
            async with at_work(local, path):
                (reply,) = await final(local, local.say("general", "ann", "Five", mention=True))
                assert reply.content.startswith("-# · You have used 16 tokens today, of 10 a day.")

    asyncio.run(go())


@pytest.mark.slow
def test_without_rights_there_is_one_line_in_the_log(tmp_path, caplog):
    async def go() -> None:
        endpoint = WrittenEndpoint(lambda messages: ["Yes.", Pause(5)])
        async with local_discord() as local, endpoint.serving(), at_work(local, settings_file(tmp_path, endpoint.url)):
            local.channel("quiet")
            local.forbid("quiet", "send_messages", "add_reactions")
            local.say("quiet", "ann", "One", mention=True)
            await local.journal.until(lambda: "no right to answer here" in caplog.text)
            local.say("quiet", "ann", "Two", mention=True)
            await local.journal.until(lambda: len([one for one in local.journal.requests if one.name == "send"]) == 2)
            await local.journal.until(lambda: endpoint.num_running == 0)
            (reply,) = await final(local, local.say("general", "ann", "Three", mention=True))
            assert reply.content == "Yes."

    asyncio.run(go())
    assert caplog.text.count("no right to answer here") == 1

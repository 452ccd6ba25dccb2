"""Again: the new answer stands in the place of the old one, whatever has happened to that, or the old one stays."""

import asyncio

import pytest
from tests.discord.server import local_discord
from tests.discord.support.bots import QUIET, answer_of, at_work, final, on_duty, settings_file, whispers
from tests.discord.support.endpoint import Pause, WrittenEndpoint

SMALL = QUIET | {"chunk_chars": 200}
LINES = [f"This is line {number} of a long answer." for number in range(14)]
LONG, TWO = "\n".join(LINES), "\n".join(LINES[:8])  # three and two messages


@pytest.mark.slow
def test_messages_that_are_wanted_again_while_they_are_deleted(tmp_path):
    """Discord takes its time to delete the second and third message, and the new answer has three, too."""
    answers = iter([LONG, LONG, "Short."])

    async def go() -> None:
        endpoint = WrittenEndpoint(lambda messages: [next(answers)])
        async with on_duty(tmp_path, endpoint, display=SMALL) as local:
            question = local.say("general", "ann", "Well?", mention=True)
            old = await final(local, question)
            local.fail("delete", "slow", times=2, retry_after_s=0.3)
            await local.answered(local.press(old[-1], "Again", "ann"))
            await local.journal.until(lambda: old[-1].is_deleted)
            new = await final(local, question)
            assert "\n".join(one.content for one in new) == LONG
            assert [one.id for one in new] == sorted(one.id for one in new)
            local.fail("delete", 404)  # others were faster
            await local.answered(local.press(new[-1], "Again", "ann"))
            await local.journal.until(lambda: new[0].content == "Short." and new[0].buttons)
            assert local.violations() == []

    asyncio.run(go())


def test_an_answer_that_others_have_deleted_in_part(tmp_path):
    async def go() -> None:
        endpoint = WrittenEndpoint(lambda messages: [TWO])
        async with on_duty(tmp_path, endpoint, display=SMALL) as local:
            question = local.say("general", "ann", "Well?", mention=True)
            old = await final(local, question)
            local.delete(old[0], "ben")
            await local.answered(local.press(old[-1], "Again", "ann"))
            await local.journal.until(lambda: answer_of(local, old[1]))
            shown = [old[1], *answer_of(local, old[1])]
            await local.journal.until(lambda: shown[-1].buttons and "\n".join(one.content for one in shown) == TWO)

    asyncio.run(go())


def test_what_a_limit_does_not_allow_leaves_the_old_answer(tmp_path):
    async def go() -> None:
        endpoint = WrittenEndpoint(lambda messages: ["A fine answer."])
        async with on_duty(tmp_path, endpoint, display=QUIET, limits={"tokens_a_day": 5}) as local:
            question = local.say("general", "ann", "Well?", mention=True)
            (reply,) = await final(local, question)
            await local.answered(local.press(reply, "Again", "ann"))
            await local.journal.until(lambda: whispers(local, "ann"))
            assert whispers(local, "ann")[0].startswith("You have used 8 tokens today, of 5 a day.")
            assert reply.content == "A fine answer." and len(endpoint.asked) == 1

    asyncio.run(go())


def test_what_is_forgotten_is_not_asked_again_by_operators_either(tmp_path):
    async def go() -> None:
        endpoint = WrittenEndpoint(lambda messages: ["Yes."])
        async with local_discord() as local, endpoint.serving():
            operators = {"people": [local.person("boss").id]}
            async with at_work(local, settings_file(tmp_path, endpoint.url, display=QUIET, operators=operators)):
                question = local.say("general", "ann", "Well?", mention=True)
                (reply,) = await final(local, question)
                await local.answered(local.run("general", "ann", "forget"))
                for who in ("ann", "boss"):
                    await local.answered(local.press(reply, "Again", who))
                    await local.journal.until(lambda: any("is forgotten" in one for one in whispers(local, who)))  # noqa: B023
                assert len(endpoint.asked) == 1 and answer_of(local, question) == [reply]

    asyncio.run(go())


def test_a_discord_that_fails_is_said(tmp_path):
    async def go() -> None:
        endpoint = WrittenEndpoint(lambda messages: ["Yes."])
        async with on_duty(tmp_path, endpoint, display=QUIET) as local:
            (reply,) = await final(local, local.say("general", "ann", "Well?", mention=True))
            local.fail("fetch", "reset", times=3)
            await local.answered(local.press(reply, "Again", "ann"))
            await local.journal.until(lambda: any("Try again" in one for one in whispers(local, "ann")))
            assert reply.content == "Yes."
            local.broken.clear()

    asyncio.run(go())


def test_a_stopped_answer_counts_for_the_limit_of_a_day(tmp_path):
    async def go() -> None:
        endpoint = WrittenEndpoint(lambda messages: ["word " * 40, Pause(60)])
        async with on_duty(tmp_path, endpoint, display=QUIET, limits={"tokens_a_day": 20}) as local:
            question = local.say("general", "ann", "Well?", mention=True)
            await local.journal.until(lambda: any("word" in one.content for one in local.replies(question)))
            await local.answered(local.press(local.replies(question)[0], "Stop", "ann"))
            await final(local, question)
            (reply,) = await final(local, local.say("general", "ann", "And?", mention=True))
            assert reply.content.startswith("-# · You have used 55 tokens today, of 20 a day.")

    asyncio.run(go())

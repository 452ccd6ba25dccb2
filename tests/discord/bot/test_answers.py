"""The bot on a local Discord: what people see of an answer, state by state."""

import asyncio
from functools import partial
from pathlib import Path

import pytest
from tests.discord.local.world import Message
from tests.discord.server import LocalDiscord, local_discord
from tests.discord.support.bots import answer_of, at_work, final, on_duty, settings_file
from tests.discord.support.endpoint import Break, Pause, Refuse, Think, WrittenEndpoint, words

GOLDEN = Path(__file__).parents[2] / "assets" / "discord_short_answer.txt"
DONE, THINKING = "\N{WHITE HEAVY CHECK MARK}", "\N{THINKING FACE}"
CUT = "-# · The answer was cut off here: the connection to the server broke, or there was none."
FAST = {"edit_every": "500ms"}


def states_of(local: LocalDiscord, question: Message) -> list[str]:
    """What was seen of a question and its answer, in order."""
    lines = []
    for message, state in local.journal.states:
        if message is question and state.change != "sent":
            given = "".join(emoji for emoji, _ in state.reactions)
            lines.append(f"question: {state.change} {given}".rstrip())
        elif message in answer_of(local, question):
            lines.append(f"reply: {state.change} {state.content}")
    return lines


def contents(message: Message) -> list[str]:
    return [state.content for state in message.states]


def test_a_short_answer_is_shown_as_in_the_seed(tmp_path):
    """The golden file was written from the code of the seed; a pause lets each of its states be seen."""

    async def go() -> None:
        steps = [Pause(0.2), "Two and ", "two", Pause(1.9), " is four."]
        endpoint = WrittenEndpoint(lambda messages: steps, model="gpt-oss-120b")
        async with local_discord() as local, endpoint.serving():
            path = settings_file(tmp_path, endpoint.url, display={"edit_every": "1500ms"})
            async with at_work(local, path):
                question = local.say("general", "ann", "What is 2+2?", mention=True)
                await local.journal.until(lambda: question.reactions.get(DONE))
                assert states_of(local, question) == GOLDEN.read_text().splitlines()
                assert local.violations() == []

    asyncio.run(go())


def test_the_first_state_is_seen_however_fast_the_answer_is(tmp_path):
    async def go() -> None:
        endpoint = WrittenEndpoint(lambda messages: ["Four."])
        async with local_discord() as local, endpoint.serving(), at_work(local, settings_file(tmp_path, endpoint.url)):
            question = local.say("general", "ann", "2+2?", mention=True)
            (reply,) = await final(local, question)
            assert contents(reply) == ["*Thinking with scripted...*", "Four."]

    asyncio.run(go())


ENDS = {
    "nothing": ([], "*The model answered nothing.*", DONE),
    "blank": (["\n \n"], "*The model answered nothing.*", DONE),
    "reasoning": ([Think("Only this.")], "*The model reasoned, and gave no answer.*", DONE),
    "broken": (["Half an ans", Break()], f"Half an ans\n{CUT}", None),
    "refused": ([Refuse(400, "no such thing as 'x'")], "-# · The server refused it: no such thing as 'x'.", None),
    "backticks": (["`" * 6000], "-# · The answer is in the file.", DONE),
}


def test_every_end_is_a_proper_message(tmp_path):
    async def go() -> None:
        endpoint = WrittenEndpoint(lambda messages: ENDS[messages[-1]["content"]][0])
        limits = {"answers_at_once": "none"}
        async with on_duty(tmp_path, endpoint, limits=limits) as local:
            questions = {name: local.say(f"room-{name}", "ann", name, mention=True) for name in ENDS}
            for name, (steps, shown, reaction) in ENDS.items():
                (reply,) = await final(local, questions[name])
                assert reply.content == shown
                given = [reaction] if reaction else []
                await local.journal.until(partial(has_only, questions[name], given))
                if name == "backticks":
                    assert reply.attachments[0].data.decode() == steps[0]
            assert local.violations() == []

    asyncio.run(go())


def has_only(question: Message, emojis: list[str]) -> bool:
    return list(question.reactions) == emojis


@pytest.mark.slow
def test_a_long_answer_takes_several_messages_and_a_file(tmp_path):
    text = "".join(f"Line {number} of a long answer, with some words in it.\n" for number in range(300))

    async def go() -> None:
        endpoint = WrittenEndpoint(lambda messages: words(text, 0.002, size=400))
        async with on_duty(tmp_path, endpoint, display=FAST) as local:
            question = local.say("general", "ann", "All of it", mention=True)
            found = await final(local, question)
            shown = [message.content for message in found]
            assert len(found) == 5 and all(len(one) <= 2000 for one in shown)
            assert shown[-1].endswith("\n-# · The rest is in the file.")
            shown[-1] = shown[-1].removesuffix("\n-# · The rest is in the file.")
            whole = "\n".join(shown) + "\n" + found[-1].attachments[0].data.decode()
            assert whole.split() == text.split()
            assert [[button["label"] for button in one.buttons] for one in found] == [[], [], [], [], ["Again"]]
            assert local.violations() == []

    asyncio.run(go())

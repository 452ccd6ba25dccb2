"""Many conversations at once under rate limits, with the gateway cut and messages edited and deleted meanwhile."""

import asyncio
import contextlib
import random
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.discord.local.world import Message
from tests.discord.server import LocalDiscord, local_discord
from tests.discord.support.bots import answer_of, at_work, on_duty, settings_file
from tests.discord.support.endpoint import Step, WrittenEndpoint, words

EDIT_S = 2.0
LAG_S = 4.0
SLACK_S = 0.1  # of clocks and of a busy machine
STATES = ("\N{THINKING FACE}", "\N{WRITING HAND}\N{VARIATION SELECTOR-16}")


def bare(text: str) -> str:
    """A text without the white space that Discord takes from the ends of messages."""
    return "".join(text.split())


def text_of(number: int) -> str:
    """An answer that no other question has, of 300 to 5,000 characters."""
    chance = random.Random(number)
    lines = [
        f"Answer {number}, line {line}: {'word ' * chance.randint(3, 12)}" for line in range(chance.randint(5, 80))
    ]
    return "\n".join(lines)


def is_over(local: LocalDiscord, question: Message) -> bool:
    labels = [button["label"] for one in answer_of(local, question) for button in one.buttons]
    return labels == ["Again"] and not any(question.reactions.get(one) for one in STATES)


async def all_over(local: LocalDiscord, questions: list[Message], timeout_s: float) -> None:
    """Wait until all questions have their answers; else say which have none, and what is seen of those."""
    with contextlib.suppress(TimeoutError):
        await local.journal.until(lambda: all(is_over(local, one) for one in questions), timeout_s)
    left = {
        one.states[0].content: [one.reactions, *((two.content[-60:], two.buttons) for two in answer_of(local, one))]
        for one in questions
        if not is_over(local, one)
    }
    assert not left, f"{len(left)} of {len(questions)}: {list(left.items())[:5]}"


def check_edits(local: LocalDiscord) -> int:
    """No two edits of a message are closer than 2 s, the last excepted; how many there were."""
    num_edits = 0
    for channel in local.channels.values():
        for message in channel.messages.values():
            if message.author is local.bot:
                times = [state.at_s for state in message.states if state.change in ("sent", "edited")]
                num_edits += len(times) - 1
                gaps = [after - before for before, after in pairwise(times[:-1])]
                assert all(gap >= EDIT_S - SLACK_S for gap in gaps), gaps
    return num_edits


async def disturb(local: LocalDiscord, questions: list[Message], others: list[Message]) -> None:
    """What happens meanwhile: 429s of every scope, a lost answer, cuts and resumes, edits and deletions of messages."""
    chance = random.Random(3)
    for number in range(12):
        await asyncio.sleep(3)
        local.fail("edit", 429, 2, retry_after_s=1.0)
        local.fail("send", 429, 1, retry_after_s=0.7, scope="shared")
        if number == 2:
            local.gateway.cut()
        if number == 4:
            local.fail("*", 429, 1, retry_after_s=10.0, is_global=True)
        if number == 6:
            local.gateway.reconnect()
            local.fail("send", "reset", after=True)
        if number == 9:
            local.gateway.cut(4000)
        for message in chance.sample(others, 5):
            if not message.is_deleted:
                local.edit(message, f"edited {number}")
        doomed = chance.choice(others)
        if not doomed.is_deleted:
            local.delete(doomed)
        local.edit(chance.choice(questions), f"<@{local.bot.id}> changed my mind {number}")


async def run_crowd(folder: Path, num_channels: int, num_rounds: int, *, is_disturbed: bool) -> None:
    texts: dict[str, str] = {}

    def write(messages: list[dict[str, Any]]) -> list[Step]:
        return words(texts[messages[-1]["content"]], 0.1, size=40)

    endpoint = WrittenEndpoint(write)
    limits = {"answers_at_once": "none"}
    async with (
        local_discord() as local,
        endpoint.serving(),
        at_work(local, settings_file(folder, endpoint.url, limits=limits)),
    ):
        questions: list[Message] = []
        others = [local.say(f"room-{room}", "zoe", f"chat {room}") for room in range(num_channels)]
        disturbing = None
        for number in range(num_rounds):
            for room in range(num_channels):
                mark = f"question {number} in {room}"
                texts[mark] = text_of(number * num_channels + room)
                others.append(local.say(f"room-{room}", "zoe", f"chat {number}"))
                questions.append(local.say(f"room-{room}", f"ann{number}", mark, mention=True))
            if is_disturbed and disturbing is None:
                disturbing = asyncio.create_task(disturb(local, questions, others))
            await asyncio.sleep(3)
        await all_over(local, questions, 150)
        if disturbing is not None:
            await disturbing
        for question in questions:
            found = answer_of(local, question)
            mark = question.states[0].content.split("> ", 1)[1]
            assert bare("".join(one.content for one in found)) == bare(texts[mark])
            assert all(len(state.content) <= 2000 for one in found for state in one.states)
            assert len([one for one in found if one.reply_to is question]) == 1
        assert len(endpoint.asked) == len(questions)
        assert local.violations() == []
        print(f"{len(questions)} answers, {check_edits(local)} edits, {local.gateway.resumed} resumed")


@pytest.mark.slow
def test_a_few_conversations(tmp_path):
    asyncio.run(run_crowd(tmp_path, 3, 2, is_disturbed=False))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_hundred_conversations(tmp_path):
    asyncio.run(run_crowd(tmp_path, 20, 10, is_disturbed=True))


@pytest.mark.slow
def test_what_is_shown_is_at_most_four_seconds_behind(tmp_path):
    """One answer a channel, as Discord's limits allow."""
    written: dict[str, list[tuple[float, int]]] = {}

    def write(messages: list[dict[str, Any]]) -> list[Step]:
        return words(text_of(int(messages[-1]["content"])) * 2, 0.1, size=40)

    def sent(body: dict[str, Any], text: str) -> None:
        so_far = written.setdefault(body["messages"][-1]["content"], [])
        so_far.append((time.time(), len(bare(text)) + (so_far[-1][1] if so_far else 0)))

    async def go() -> None:
        endpoint = WrittenEndpoint(write, sent=sent)
        async with on_duty(tmp_path, endpoint, limits={"answers_at_once": "none"}) as local:
            questions = [local.say(f"room-{room}", "ann", str(room), mention=True) for room in range(5)]
            await all_over(local, questions, 100)
            for room, question in enumerate(questions):
                shown = _shown(local, question)
                for at, size in written[str(room)]:
                    seen = max((length for time_s, length in shown if time_s <= at + LAG_S + SLACK_S), default=0)
                    assert seen >= size, (room, size, seen)

    asyncio.run(go())


def _shown(local: LocalDiscord, question: Message) -> list[tuple[float, int]]:
    """When how many characters of an answer were to be seen, white space left out."""
    lengths: dict[int, int] = {}
    found = []
    mine = answer_of(local, question)
    for message, state in local.journal.states:
        if message in mine and not state.content.startswith("*Thinking"):
            lengths[message.id] = len(bare(state.content))
            found.append((state.at_s, sum(lengths.values())))
    return found

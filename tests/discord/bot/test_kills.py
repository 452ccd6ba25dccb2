"""The bot is killed with -9 at random moments: afterwards no question is left thinking, and none has two answers."""

import asyncio
import random
from functools import partial
from pathlib import Path

import pytest
from tests.discord.local.world import Message
from tests.discord.server import LocalDiscord, local_discord
from tests.discord.support.bots import answer_of, settings_file
from tests.discord.support.endpoint import WrittenEndpoint, words
from tests.discord.support.process import bot_process

TEXT = "".join(f"Sentence number {number} of an answer that takes a while.\n" for number in range(90))
STATES = ("\N{THINKING FACE}", "\N{WRITING HAND}\N{VARIATION SELECTOR-16}")


def is_over(local: LocalDiscord, question: Message) -> bool:
    """Whether a question has an answer that has ended, and nothing says that it goes on."""
    found = answer_of(local, question)
    labels = [button["label"] for one in found for button in one.buttons]
    return labels == ["Again"] and not any(question.reactions.get(one) for one in STATES)


def are_over(local: LocalDiscord, questions: list[Message]) -> bool:
    return all(is_over(local, one) for one in questions)


def is_seen(question: Message) -> bool:
    return bool(question.reactions)


def bare(text: str) -> str:
    """A text without the white space that Discord takes from the ends of messages."""
    return "".join(text.split())


def check(local: LocalDiscord, questions: list[Message]) -> int:
    """Each question has one answer, whole or with a line that says that it is not; how many are whole."""
    num_whole = 0
    for question in questions:
        found = answer_of(local, question)
        firsts = [one for one in found if one.reply_to is question]
        assert len(firsts) == 1, [one.content[:60] for one in firsts]
        joined = "\n".join(one.content for one in found)
        is_marked = "-# · The bot was restarted" in joined
        num_whole += not is_marked
        said = bare("\n".join(line for line in joined.split("\n") if not line.startswith("-# · ")))
        assert bare(TEXT).startswith(said) and (is_marked or said == bare(TEXT)), joined[-200:]
    return num_whole


async def run_kills(folder: Path, num_kills: int, seed: int) -> None:
    chance = random.Random(seed)
    endpoint = WrittenEndpoint(lambda messages: words(TEXT, 0.03, size=80))  # 2 s
    async with local_discord() as local, endpoint.serving():
        local.gateway.identify_every_s = 0
        path = settings_file(folder, endpoint.url, display={"edit_every": "500ms"}, limits={"answers_at_once": "none"})
        questions: list[Message] = []
        for number in range(num_kills):
            async with bot_process(local, path) as bot:
                if questions:
                    await local.journal.until(partial(are_over, local, list(questions)), 60, bot.log[-3000:])
                questions += [
                    local.say(f"room-{number % 7}-{place}", "ann", f"Question {number} {place}", mention=True)
                    for place in range(2)
                ]
                await local.journal.until(partial(is_seen, questions[-1]), 20, "the last question is seen")
                await asyncio.sleep(chance.uniform(0, 3))
                await bot.kill()
        async with bot_process(local, path) as bot:
            await local.journal.until(partial(are_over, local, questions), 60, bot.log[-3000:])
            assert await bot.stop() == 0
        num_whole = check(local, questions)
        assert 0 < num_whole < len(questions) or num_kills < 10
        assert local.violations() == []


def test_after_a_kill_every_answer_is_finished_off(tmp_path):
    asyncio.run(run_kills(tmp_path, 1, seed=1))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "num_kills", [pytest.param(20, marks=pytest.mark.slow), pytest.param(50, marks=pytest.mark.soak)]
)
def test_killed_at_random_moments(tmp_path, num_kills):
    asyncio.run(run_kills(tmp_path, num_kills, seed=2))

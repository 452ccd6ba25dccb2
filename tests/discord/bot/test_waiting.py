"""Waiting long: honest states, the seed's two texts with a real answer of the fallback behind them, the breaker."""

import asyncio

import pytest
from tests.discord.local.world import Message
from tests.discord.server import local_discord
from tests.discord.support.bots import at_work, final, settings_file
from tests.discord.support.endpoint import Break, Pause, Refuse, WrittenEndpoint

from eyas.base.serving.breaker import Breaker
from eyas.base.serving.waiting import Waiting

TIMED_OUT = "\N{STOPWATCH}\N{VARIATION SELECTOR-16} Response timed out ({}s limit). Try a simpler query."
UNAVAILABLE = "\N{WRENCH} Model temporarily unavailable. Using fallback..."
BY_SMALL = "-# · Answer of small"


def contents(message: Message) -> list[str]:
    return [state.content for state in message.states]


async def run_long_wait(folder, wait_s: float, **sections) -> list[str]:
    """What is seen of an answer whose first text comes after three waits."""
    steps = [
        Waiting(state="queued", position=2),
        Pause(wait_s),
        Waiting(state="loading"),
        Pause(wait_s),
        Waiting(state="reading"),
        Pause(wait_s),
        "At last.",
    ]
    endpoint = WrittenEndpoint(lambda messages: steps)
    async with (
        local_discord() as local,
        endpoint.serving(),
        at_work(local, settings_file(folder, endpoint.url, **sections)),
    ):
        question = local.say("general", "ann", "Well?", mention=True)
        (reply,) = await final(local, question, 4 * wait_s + 10)
        assert local.violations() == []
        return contents(reply)


THREE_STATES = [
    "*Thinking with scripted...*",
    "*Thinking with scripted...*\n-# · Waiting in the queue, place 2",
    "*Thinking with scripted...*\n-# · The model is being loaded",
    "*Thinking with scripted...*\n-# · Reading the prompt",
    "At last.",
]


def test_three_honest_states(tmp_path):
    found = asyncio.run(
        run_long_wait(tmp_path, 1.3, display={"edit_every": "500ms"}, budgets={"queue": 2, "prefill": 2})
    )
    assert found == THREE_STATES


@pytest.mark.slow
def test_first_text_after_150_seconds(tmp_path):
    assert asyncio.run(run_long_wait(tmp_path, 50)) == THREE_STATES


async def run_no_sign(folder, limit_s: float, **sections) -> None:
    endpoint = WrittenEndpoint(lambda messages: [Pause(10 * limit_s)])
    small = WrittenEndpoint(lambda messages: ["From the small one."], model="small")
    async with local_discord() as local, endpoint.serving(), small.serving():
        fallbacks = {"second": {"base_url": small.url, "model": "small"}}
        async with at_work(local, settings_file(folder, endpoint.url, fallbacks=fallbacks, **sections)):
            (reply,) = await final(local, local.say("general", "ann", "Well?", mention=True), 2 * limit_s + 10)
            text = TIMED_OUT.format(f"{limit_s:g}")
            assert contents(reply)[0] == "*Thinking with scripted...*"
            assert reply.content == f"{text}\n{BY_SMALL}\nFrom the small one."
            await local.journal.until(lambda: endpoint.num_running == 0)


def test_without_any_sign_the_fallback_answers(tmp_path):
    asyncio.run(run_no_sign(tmp_path, 1, budgets={"queue": 1, "prefill": 1}))


@pytest.mark.slow
def test_without_any_sign_for_120_seconds(tmp_path):
    asyncio.run(run_no_sign(tmp_path, 120))


async def run_breaker(folder, open_s: float) -> None:
    is_well = False
    asked = []

    def write(messages):
        asked.append(messages)
        return ["Well again."] if is_well else [Refuse(500, "CUDA error")]

    endpoint = WrittenEndpoint(write)
    small = WrittenEndpoint(lambda messages: ["From the small one."], model="small")
    async with local_discord() as local, endpoint.serving(), small.serving():
        fallbacks = {"second": {"base_url": small.url, "model": "small"}}
        limits = {"answers_at_once": "none"}
        async with at_work(local, settings_file(folder, endpoint.url, fallbacks=fallbacks, limits=limits)) as bot:
            bot.endpoint.client._server.breaker = Breaker(open_s=open_s)
            for number in range(8):
                (reply,) = await final(local, local.say(f"room-{number}", "ann", "Well?", mention=True))
                assert reply.content == f"{UNAVAILABLE}\n{BY_SMALL}\nFrom the small one."
                if bot.endpoint.client.breaker.state == "open":
                    break
            assert bot.endpoint.client.breaker.state == "open"
            num_asked = len(asked)
            (reply,) = await final(local, local.say("closed", "ann", "Well?", mention=True))
            assert reply.content == f"{UNAVAILABLE}\n{BY_SMALL}\nFrom the small one." and len(asked) == num_asked
            is_well = True
            await asyncio.sleep(open_s)
            (reply,) = await final(local, local.say("probe", "ann", "Well?", mention=True))
            assert reply.content == "Well again." and len(asked) == num_asked + 1
            assert bot.endpoint.client.breaker.state == "closed"


@pytest.mark.slow
def test_an_open_breaker_and_the_probe(tmp_path):
    asyncio.run(run_breaker(tmp_path, 2.0))


@pytest.mark.slow
def test_an_open_breaker_of_sixty_seconds(tmp_path):
    asyncio.run(run_breaker(tmp_path, 60.0))


@pytest.mark.slow
def test_no_fallback_answers_either(tmp_path):
    async def go() -> None:
        endpoint = WrittenEndpoint(lambda messages: [Refuse(500, "CUDA error")])
        small = WrittenEndpoint(lambda messages: [Break()], model="small")
        async with local_discord() as local, endpoint.serving(), small.serving():
            fallbacks = {"second": {"base_url": small.url, "model": "small"}}
            async with at_work(local, settings_file(tmp_path, endpoint.url, fallbacks=fallbacks)):
                (reply,) = await final(local, local.say("general", "ann", "Well?", mention=True))
                assert reply.content == (
                    f"{UNAVAILABLE}\n-# · The fallback gave no answer either: the connection to the server broke, or "
                    "there was none."
                )

    asyncio.run(go())

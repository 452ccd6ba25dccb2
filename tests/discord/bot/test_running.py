"""A bot from its file to a signal, in the test's own process: metrics over HTTP, and logins that Discord delays."""

import asyncio
import os
import re
import signal
from contextlib import asynccontextmanager
from functools import partial

import aiohttp
import pytest
from tests.discord.local.client import pointed_at
from tests.discord.server import local_discord
from tests.discord.support.bots import QUIET, final, settings_file
from tests.discord.support.endpoint import Refuse, WrittenEndpoint

from eyas.base.errors import UserError
from eyas.discord.bot import running
from eyas.discord.settings.watch import SettingsFile


@asynccontextmanager
async def at_work(local, path, monkeypatch):
    """The task that runs the bot of a file."""
    monkeypatch.setattr(running, "Bot", partial(running.Bot, guild_ready_timeout=0.05))
    with pointed_at(local.url):
        task = asyncio.create_task(running._run(SettingsFile(path, {}), local.token))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def test_metrics_count_what_the_bot_does_and_no_text_is_logged(tmp_path, monkeypatch, caplog):
    async def go() -> None:
        answers = iter([["Fine words."], [Refuse(400, "cannot take 'secret question'")]])
        endpoint = WrittenEndpoint(lambda messages: next(answers))
        async with local_discord() as local, endpoint.serving():
            path = settings_file(tmp_path, endpoint.url, display=QUIET, metrics={"port": 0})
            async with at_work(local, path, monkeypatch) as task:
                await local.journal.until(lambda: "connected to Discord" in caplog.text)
                await final(local, local.say("general", "ann", "secret question", mention=True))
                (reply,) = await final(local, local.say(local.dm("ann"), "ann", "secret question"))
                assert "cannot take 'secret question'" in reply.content
                url = re.search(r"metrics at (http://\S+)", caplog.text)[1]
                async with aiohttp.ClientSession() as session, session.get(url) as page:
                    lines = (await page.text()).split("\n")
                for line in (
                    'questions_total{place="server"} 1.0',
                    'questions_total{place="direct"} 1.0',
                    'answers_total{outcome="done"} 1.0',
                    'answers_total{outcome="failed"} 1.0',
                    "open_answers 0.0",
                    "edits_total 2.0",
                    'tokens_total{kind="completion"} 1.0',
                    "time_to_first_text_seconds_count 1.0",
                ):
                    assert f"eyas:discord_{line}" in lines, line
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.wait_for(task, 10)

    with caplog.at_level("INFO"):
        asyncio.run(go())
    assert "it answers 400" in caplog.text
    assert "secret" not in caplog.text and "Fine words" not in caplog.text


def test_a_login_that_discord_puts_off_for_long_ends_with_one_line(tmp_path, monkeypatch):
    async def go() -> None:
        async with local_discord() as local:
            local.fail("me", 429, retry_after_s=3600.0)
            async with at_work(local, settings_file(tmp_path, "http://127.0.0.1:9"), monkeypatch) as task:
                with pytest.raises(UserError, match=r"does not let the bot in now \(too many requests\).* in 60 min"):
                    await asyncio.wait_for(task, 10)

    asyncio.run(go())


def test_a_signal_ends_a_login_that_waits(tmp_path, monkeypatch):
    async def go() -> None:
        async with local_discord() as local:
            local.fail("me", 429, retry_after_s=600.0)
            async with at_work(local, settings_file(tmp_path, "http://127.0.0.1:9"), monkeypatch) as task:
                await local.journal.until(lambda: local.journal.requests)
                await asyncio.sleep(0.05)
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.wait_for(task, 5)
                assert len(local.journal.requests) == 1

    asyncio.run(go())

"""`eyas discord`: what cannot go on ends with one line, exit code 1 and a single login."""

import asyncio
import signal
from dataclasses import fields
from pathlib import Path

import pytest
from tests.discord.server import local_discord
from tests.discord.support.bots import final, settings_file
from tests.discord.support.endpoint import WrittenEndpoint
from tests.discord.support.process import bot_process, ended

from eyas.cli import main
from eyas.discord.settings.schema import (
    Access,
    Answers,
    Display,
    Files,
    Limits,
    Memory,
    Metrics,
    Offer,
    Operators,
    Settings,
)


def test_what_cannot_go_on_ends_with_one_line(tmp_path):
    async def go() -> None:
        async with local_discord() as local:
            path = settings_file(tmp_path, "http://127.0.0.1:9")
            wanting = tmp_path / "wanting"
            wanting.mkdir()
            private = settings_file(wanting, "http://127.0.0.1:9", message_content=True)
            (code, said), (wrong_code, wrong), (intent_code, intent) = await asyncio.gather(
                ended("http://127.0.0.1:9", tmp_path / "bot.yaml", token=None),
                ended(
                    local.url, settings_file(_folder(tmp_path, "wrong"), "http://127.0.0.1:9"), token="not-the-token"
                ),
                ended(local.url, private, token=local.token),
            )
            assert code == 1 and said.startswith("eyas: error: the environment variable DISCORD_TOKEN is not set")
            assert said.count("\n") == 1
            assert wrong_code == 1 and "eyas: error: Discord refuses the token; make a new one at" in wrong
            assert intent_code == 1 and "eyas: error: Discord refuses the Message Content intent" in intent
            assert len(local.gateway.identified) <= 1 and path.exists()
            assert "Traceback" not in said + wrong + intent

    asyncio.run(go())


def _folder(root, name):
    (root / name).mkdir()
    return root / name


@pytest.mark.slow
def test_the_gateway_refuses_the_token_while_it_runs(tmp_path):
    async def go() -> None:
        async with (
            local_discord() as local,
            bot_process(local, settings_file(tmp_path, "http://127.0.0.1:9")) as bot,
        ):
            local.reset_token()
            local.gateway.cut(4004)
            assert await asyncio.wait_for(bot.process.wait(), 20) == 1
            assert "eyas: error: Discord refuses the token" in bot.log
            assert len(local.gateway.identified) == 1

    asyncio.run(go())


@pytest.mark.slow
def test_the_endpoint_comes_later(tmp_path):
    """The bot comes up, says that the endpoint does not answer, and answers when it does. SIGTERM ends it well."""

    async def go() -> None:
        endpoint = WrittenEndpoint(lambda messages: ["Here."])
        async with endpoint.serving():
            port = int(endpoint.url.rsplit(":", 1)[1])
        async with local_discord() as local, bot_process(local, settings_file(tmp_path, endpoint.url)) as bot:
            first = local.say("general", "ann", "Anybody?", mention=True)
            (reply,) = await final(local, first)
            assert reply.content == (
                "\N{WRENCH} Model temporarily unavailable. Using fallback...\n"
                "-# · The connection to the server broke, or there was none. No fallback is set up."
            )
            assert "the endpoint does not answer" in bot.log
            async with endpoint.serving(port):
                (reply,) = await final(local, local.say("general", "ann", "And now?", mention=True))
                assert reply.content == "Here."
            assert await bot.stop() == 0
            assert "Anybody" not in bot.log and "Here." not in bot.log

    asyncio.run(go())


def test_check_says_what_the_file_means(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DISCORD_TOKEN", "secret-token")
    monkeypatch.setenv("KEY", "secret-key")
    path = settings_file(tmp_path, "http://127.0.0.1:8100")
    path.write_text(path.read_text().replace("endpoint:\n", "endpoint:\n  api_key_env: KEY\n"))
    assert main(["discord", str(path), "--check"]) == 0
    said = capsys.readouterr().out
    assert "http://127.0.0.1:8100, the first model that it lists, with a key" in said and "is good" in said
    assert "secret" not in said
    path.write_text("endpoint: {base_url: http://127.0.0.1:8100}\ndisplya: {}\n")
    assert main(["discord", str(path), "--check"]) == 1
    assert "did you mean 'display'?" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_says_so_in_the_answers(tmp_path, number):
    from tests.discord.support.endpoint import Pause

    async def go() -> None:
        endpoint = WrittenEndpoint(lambda messages: ["Half", Pause(30), "way"])
        async with (
            local_discord() as local,
            endpoint.serving(),
            bot_process(local, settings_file(tmp_path, endpoint.url, display={"edit_every": "500ms"})) as bot,
        ):
            question = local.say("general", "ann", "Well?", mention=True)
            await local.journal.until(lambda: any(one.content == "Half" for one in local.replies(question)))
            bot.process.send_signal(number)
            assert await asyncio.wait_for(bot.process.wait(), 20) == 0
            (reply,) = local.replies(question)
            assert reply.content == "Half\n-# · The bot was stopped here."
            assert endpoint.num_running == 0

    asyncio.run(go())


def test_without_the_library(tmp_path, monkeypatch, capsys):
    import builtins

    real = builtins.__import__

    def without(name, *args, **more):
        if name == "discord" or name.startswith("discord."):
            raise ModuleNotFoundError("No module named 'discord'", name="discord")
        return real(name, *args, **more)

    import sys

    for name in [one for one in sys.modules if one.startswith(("eyas.discord.bot", "eyas.discord.showing"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    assert main(["discord", str(settings_file(tmp_path, "http://127.0.0.1:9"))]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "eyas: error: this needs discord.py; install it with: pip install 'eyas[discord]'"
    )


def test_the_page_names_every_setting():
    page = (Path(__file__).parents[2] / "docs" / "discord.md").read_text()
    wanted = {item.metadata.get("key") or item.name for item in fields(Settings)}
    for section in (Answers, Display, Files, Limits, Memory, Metrics, Offer, Operators, Access):
        wanted |= {item.metadata.get("key") or item.name for item in fields(section)}
    assert {name for name in wanted if name not in page} == set()

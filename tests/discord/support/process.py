"""`eyas discord` as a process of its own: only the addresses of Discord are others, and the wait at start is shorter.

`python -m tests.discord.support.process URL ARGUMENT...` is the command there.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from tests.discord.local.client import point_at
from tests.discord.server import LocalDiscord

from eyas.cli import main

__all__ = ["BotProcess", "bot_process", "ended"]

ROOT = Path(__file__).parents[3]


class BotProcess:
    """A running bot."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process, self._log = process, log

    @property
    def log(self) -> str:
        return self._log.read_text()

    async def kill(self) -> None:
        """End it with -9."""
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> int:
        """Ask it to end; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.wait_for(self.process.wait(), 30)


async def start(url: str, log: Path, *words: str, token: str | None) -> asyncio.subprocess.Process:
    environ = {name: value for name, value in os.environ.items() if name != "DISCORD_TOKEN"}
    environ |= {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"} | ({} if token is None else {"DISCORD_TOKEN": token})
    with log.open("ab") as file:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.discord.support.process", url, *words, env=environ, stderr=file, stdout=file
        )


@asynccontextmanager
async def bot_process(local: LocalDiscord, path: Path) -> AsyncIterator[BotProcess]:
    """The bot of a file, started and connected."""
    log = path.with_suffix(".log")
    num_sessions = len(local.gateway.identified)
    process = await start(local.url, log, str(path), token=local.token)
    try:
        await local.journal.until(lambda: len(local.gateway.identified) > num_sessions, 30, "a connected bot")
        yield BotProcess(process, log)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def ended(url: str, path: Path, *words: str, token: str | None) -> tuple[int, str]:
    """Run a bot that ends by itself: exit code, and all that it has written."""
    log = path.with_suffix(".log")
    process = await start(url, log, str(path), *words, token=token)
    code = await asyncio.wait_for(process.wait(), 30)
    return code, log.read_text()


if __name__ == "__main__":
    from eyas.discord.bot import running

    point_at(sys.argv[1])
    running.Bot = partial(running.Bot, guild_ready_timeout=0.05)  # type: ignore[assignment,misc]
    sys.exit(main(["discord", *sys.argv[2:]]))

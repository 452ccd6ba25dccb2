"""A local Discord in a process of its own, and what a test does with it there."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

__all__ = ["ROOT", "Remote", "discord_process"]

ROOT = Path(__file__).parents[3]


class Remote:
    """A local Discord over HTTP: `await remote.do("say", channel="general", author="ann", text="hello")`."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url, self.session = url, session

    async def do(self, action: str, **args: Any) -> Any:
        """Carry out an action of `control.py`; raises with Discord's reason where it may not be done."""
        async with self.session.post(f"{self.url}/local/do", json={"action": action, **args}) as response:
            found = await response.json()
            if response.status != 200:
                raise RuntimeError(found["error"])
            return found

    async def view(self, channel: str = "general", viewer: str = "ann") -> Any:
        """What a person sees of a channel now."""
        async with self.session.get(
            f"{self.url}/local/view", params={"channel": channel, "viewer": viewer}
        ) as response:
            return await response.json()


@asynccontextmanager
async def discord_process(*flags: str) -> AsyncIterator[Remote]:
    """Run `python -m tests.discord.server` on a free port."""
    command = [sys.executable, "-m", "tests.discord.server", "--port", "0", *flags]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), 20)).decode()
        found = re.search(r"http://\S+:\d+", line)
        assert found, line
        async with aiohttp.ClientSession() as session:
            yield Remote(found[0], session)
    finally:
        process.kill()
        await process.wait()

"""A Discord on this machine, for tests and for trying the bot out by hand: `python -m tests.discord.server`."""

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from aiohttp import web
from tests.discord.local.control import add_control
from tests.discord.local.message_routes import MESSAGE_ROUTES, attachment
from tests.discord.local.people import People
from tests.discord.local.rest import add_routes
from tests.discord.local.routes import ROUTES

__all__ = ["TOKEN", "LocalDiscord", "local_discord"]

TOKEN = "local.bot.token"
MAX_REQUEST_BYTES = 26 << 20


class LocalDiscord(People):
    """A Discord of one bot. It starts with a server that has the channel `general`."""

    def __init__(self, *, token: str = TOKEN, allowed_intents: tuple[str, ...] = (), bot: str = "eyas") -> None:
        super().__init__(token, allowed_intents, bot)
        self.guild = self.add_guild("Lab")
        self.add_channel("general", self.guild)
        self.runner: web.AppRunner | None = None

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_REQUEST_BYTES)
        app.router.add_get("/gateway", self.gateway.handle)
        app.router.add_get("/gateway/", self.gateway.handle)
        app.router.add_get("/attachments/{channel}/{attachment}/{name}", partial(attachment, self))
        add_control(app, self)
        add_routes(app, self, [*ROUTES, *MESSAGE_ROUTES])
        return app

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen in the running loop; returns the address."""
        self.runner = web.AppRunner(self.app(), access_log=None, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, host, port)
        await site.start()
        assert site._server is not None
        self.url = f"http://{host}:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
        return self.url

    async def stop(self) -> None:
        """Close every connection and stop listening."""
        self.faults.thaw()
        self.gateway.cut(1001)
        if self.runner is not None:
            await self.runner.cleanup()


@asynccontextmanager
async def local_discord(**options: object) -> AsyncIterator[LocalDiscord]:
    """A local Discord that runs in the loop of the test; what went wrong inside it is raised at the end."""
    discord = LocalDiscord(**options)  # type: ignore[arg-type]
    await discord.start()
    try:
        yield discord
    finally:
        await discord.stop()
        if discord.broken:
            raise discord.broken[0]


async def serve(args: argparse.Namespace) -> None:
    discord = LocalDiscord(token=args.token, allowed_intents=("message_content",) if args.message_content else ())
    url = await discord.start(port=args.port)
    print(f"local Discord at {url}, token {args.token}", flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Run a local Discord until it is interrupted."""
    parser = argparse.ArgumentParser(prog="python -m tests.discord.server", description=__doc__)
    parser.add_argument("--port", type=int, default=8700, help="port to listen on; 0: any")
    parser.add_argument("--token", default=TOKEN, help="the bot's token")
    parser.add_argument("--message-content", action="store_true", help="allow the Message Content intent")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()

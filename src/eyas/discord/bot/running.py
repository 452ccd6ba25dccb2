"""Runs a bot from its file until a signal ends it. Where it cannot go on, it ends with one line, after one login."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Mapping
from pathlib import Path

import aiohttp

import discord
from eyas.base.errors import UserError
from eyas.discord.bot.bot import Bot
from eyas.discord.metrics import Metrics
from eyas.discord.settings.reader import token
from eyas.discord.settings.watch import SettingsFile
from eyas.discord.store import Store
from eyas.discord.words import about

__all__ = ["run"]

logger = logging.getLogger(__name__)

PORTAL = "https://discord.com/developers/applications"
TOKEN_REFUSED, INTENT_INVALID, INTENT_REFUSED = 4004, 4013, 4014  # close codes of the gateway
REFUSED_TOKEN = (
    f"Discord refuses the token; make a new one at {PORTAL} (Bot, Reset Token) and set it in the variable {{name}}"
)
REFUSED_INTENT = (
    f"Discord refuses the Message Content intent; switch it on at {PORTAL} (Bot, Privileged Gateway Intents), or take "
    "message_content out of the file"
)


def run(path: Path, environ: Mapping[str, str]) -> None:
    """Run the bot of a file until SIGINT or SIGTERM. Raises UserError."""
    file = SettingsFile(path, environ)
    secret = token(file.settings, environ)
    logging.getLogger("discord.webhook").setLevel(logging.ERROR)  # below, its lines hold tokens of interactions
    asyncio.run(_run(file, secret))


async def _run(file: SettingsFile, secret: str) -> None:
    store = Store(file.settings.state)
    try:
        metrics = Metrics()
        if (port := file.settings.metrics.port) is not None:
            host = file.settings.metrics.host
            logger.info("metrics at http://%s:%d/metrics", host, metrics.serve(host, port))
        bot = Bot(file, store, metrics)
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        async with bot:
            await _connect(bot, secret, file.settings.token_env, stopped)
    finally:
        store.close()


async def _connect(bot: Bot, secret: str, token_env: str, stopped: asyncio.Event) -> None:
    """Log in, once, and stay until `stopped`. Raises UserError for what no further try would change."""
    try:
        connection = asyncio.create_task(bot.start(secret))
        waiting = asyncio.create_task(stopped.wait())
        await asyncio.wait((connection, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not connection.done():
            await bot.close()
            connection.cancel()
            await asyncio.gather(connection, return_exceptions=True)
        else:
            connection.result()
    except discord.LoginFailure:
        raise UserError(REFUSED_TOKEN.format(name=token_env)) from None
    except discord.PrivilegedIntentsRequired:
        raise UserError(REFUSED_INTENT) from None
    except discord.ConnectionClosed as error:
        if error.code == TOKEN_REFUSED:
            raise UserError(REFUSED_TOKEN.format(name=token_env)) from None
        if error.code in (INTENT_INVALID, INTENT_REFUSED):
            raise UserError(REFUSED_INTENT) from None
        raise UserError(f"Discord ended the connection for good (code {error.code}); start the bot again") from None
    except discord.HTTPException as error:
        raise UserError(f"Discord does not let the bot in now ({error.status}); start it again later") from None
    except discord.RateLimited as error:
        again = f"start it again in {about(error.retry_after)}"
        raise UserError(f"Discord does not let the bot in now (too many requests); {again}") from None
    except (aiohttp.ClientError, OSError) as error:
        raise UserError(f"cannot reach Discord: {error}; look at the network of this machine") from None

"""discord.py pointed at a local Discord: nothing of it is changed but two addresses.

`python -m tests.discord.local.client URL MODULE ARGS...` runs a module in a process where it is so.
"""

import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import discord.gateway
import discord.http
import yarl

__all__ = ["point_at", "pointed_at"]


def point_at(url: str) -> None:
    """Send all requests of discord.py in this process to the local Discord at `url`, for good."""
    discord.http.Route.BASE = f"{url}/api/v10"
    discord.gateway.DiscordWebSocket.DEFAULT_GATEWAY = yarl.URL(f"{url.replace('http', 'ws', 1)}/gateway")


@contextmanager
def pointed_at(url: str) -> Iterator[None]:
    """The same for a while."""
    base, gateway = discord.http.Route.BASE, discord.gateway.DiscordWebSocket.DEFAULT_GATEWAY
    point_at(url)
    try:
        yield
    finally:
        discord.http.Route.BASE, discord.gateway.DiscordWebSocket.DEFAULT_GATEWAY = base, gateway


if __name__ == "__main__":
    address, module, *rest = sys.argv[1:]
    point_at(address)
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)

"""Errors of requests to Discord."""

from __future__ import annotations

import aiohttp

import discord

__all__ = ["PASSING"]

# The same request may succeed a little later. Connections that break are the caller's: the library repeats a request
# after the error numbers of macOS and Windows only.
PASSING = (discord.DiscordServerError, discord.RateLimited, aiohttp.ClientError, OSError)

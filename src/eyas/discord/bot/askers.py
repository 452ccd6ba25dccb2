"""Reads who asks where off messages and interactions."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import discord
from eyas.discord.permissions import Asker

__all__ = ["asker_of"]


def asker_of(user: discord.User | discord.Member, channel: Any, guild_id: int | None) -> Asker:
    """Return a person in a channel; of a thread its channel counts, too, and the category of either."""
    ids = [getattr(channel, name, None) for name in ("id", "parent_id")]
    with suppress(discord.ClientException):  # a thread of a server that the bot is not in, where commands come from
        ids.append(getattr(channel, "category_id", None))
    roles = user.roles if isinstance(user, discord.Member) else []
    return Asker(
        person=user.id,
        channels=tuple(one for one in ids if one is not None),
        server=guild_id,
        roles=frozenset(role.id for role in roles),
    )

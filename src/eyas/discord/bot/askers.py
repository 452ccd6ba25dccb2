"""Reads who asks where off messages and interactions."""

from __future__ import annotations

from typing import Any

import discord
from eyas.discord.permissions import Asker

__all__ = ["asker_of"]


def asker_of(user: discord.User | discord.Member, channel: Any, guild_id: int | None) -> Asker:
    """Return a person in a channel; of a thread its channel counts, too, and the category of either."""
    parent = getattr(channel, "parent", None)
    ids = [getattr(channel, name, None) for name in ("id", "parent_id", "category_id")]
    ids.append(getattr(parent, "category_id", None))
    roles = user.roles if isinstance(user, discord.Member) else []
    return Asker(
        person=user.id,
        channels=tuple(one for one in ids if one is not None),
        server=guild_id,
        roles=frozenset(role.id for role in roles),
    )

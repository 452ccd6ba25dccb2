"""Whom a text mentions, and whom of them a message may notify."""

import re
from typing import Any

from tests.discord.local.permissions import BITS, permissions_of
from tests.discord.local.world import Message, User

__all__ = ["mention", "notified"]

USER, ROLE = re.compile(r"<@!?(\d+)>"), re.compile(r"<@&(\d+)>")
EVERYONE = re.compile(r"@(everyone|here)\b")
DEFAULT: dict[str, Any] = {"parse": ["users", "roles", "everyone"], "replied_user": True}


def mention(message: Message, users: dict[int, User], allowed: dict[str, Any] | None) -> None:
    """Set whom `message` mentions, as its allowed mentions have it; without them all that its text names."""
    allowed = DEFAULT if allowed is None else allowed
    parse = allowed.get("parse") or []
    named = [int(found) for found in USER.findall(message.content)]
    if "users" not in parse:
        wanted = {int(one) for one in allowed.get("users") or []}
        named = [one for one in named if one in wanted]
    if message.reply_to is not None and allowed.get("replied_user", False):
        named.append(message.reply_to.author.id)
    message.mentions = [users[one] for one in dict.fromkeys(named) if one in users]
    guild = message.channel.guild
    if guild is None:
        return
    roles = [int(found) for found in ROLE.findall(message.content)]
    if "roles" not in parse:
        wanted = {int(one) for one in allowed.get("roles") or []}
        roles = [one for one in roles if one in wanted]
    message.role_mentions = [guild.roles[one] for one in dict.fromkeys(roles) if one in guild.roles]
    may = permissions_of(message.author, message.channel) & BITS["mention_everyone"]
    message.everyone = bool(may and "everyone" in parse and EVERYONE.search(message.content))


def notified(message: Message) -> tuple[str, ...]:
    """Names of the people and roles that a new message notifies."""
    names = [user.name for user in message.mentions if user is not message.author]
    names += [role.name for role in message.role_mentions]
    return (*names, "everyone") if message.everyone else tuple(names)

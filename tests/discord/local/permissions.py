"""Permissions: what a member may do in a channel, by roles and overwrites."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.discord.local import errors

if TYPE_CHECKING:
    from tests.discord.local.world import Channel, User

__all__ = ["ALL", "BITS", "DEFAULT", "Overwrite", "bits", "permissions_of", "require"]

BITS = {
    name: 1 << place
    for name, place in {
        "kick_members": 1,
        "administrator": 3,
        "manage_channels": 4,
        "manage_guild": 5,
        "add_reactions": 6,
        "view_channel": 10,
        "send_messages": 11,
        "manage_messages": 13,
        "embed_links": 14,
        "attach_files": 15,
        "read_message_history": 16,
        "mention_everyone": 17,
        "use_external_emojis": 18,
        "manage_roles": 28,
        "use_application_commands": 31,
        "manage_threads": 34,
        "create_public_threads": 35,
        "create_private_threads": 36,
        "send_messages_in_threads": 38,
    }.items()
}
ALL = (1 << 53) - 1


def bits(*names: str) -> int:
    """The number of these permissions."""
    return sum(BITS[name] for name in set(names))


DEFAULT = bits(
    "add_reactions",
    "view_channel",
    "send_messages",
    "embed_links",
    "attach_files",
    "read_message_history",
    "use_application_commands",
    "create_public_threads",
    "create_private_threads",
    "send_messages_in_threads",
)


@dataclass
class Overwrite:
    """What a channel changes for a role (`kind` 0) or a member (1)."""

    kind: int
    allow: int = 0
    deny: int = 0


def permissions_of(user: "User", channel: "Channel") -> int:
    """What `user` may do in `channel`; threads go by their parent, private conversations have no limits."""
    place = channel.parent or channel
    guild = place.guild
    if guild is None:
        return ALL if channel.recipient is user or user.is_bot else 0
    member = guild.members.get(user.id)
    if member is None:
        return 0
    if guild.owner is user:
        return ALL
    have = guild.roles[guild.id].permissions
    for role in member.roles:
        have |= role.permissions
    if have & BITS["administrator"]:
        return ALL
    overwrites = place.overwrites
    if everyone := overwrites.get(guild.id):
        have = have & ~everyone.deny | everyone.allow
    of_roles = [overwrites[role.id] for role in member.roles if role.id in overwrites]
    for overwrite in of_roles:
        have &= ~overwrite.deny
    for overwrite in of_roles:
        have |= overwrite.allow
    if own := overwrites.get(user.id):
        have = have & ~own.deny | own.allow
    return have if have & BITS["view_channel"] else 0


def require(user: "User", channel: "Channel", *names: str) -> None:
    """Raise the error that Discord answers with where one of these permissions is missing."""
    have = permissions_of(user, channel)
    if not have & BITS["view_channel"]:
        raise errors.missing_access()
    for name in names:
        wanted = "send_messages_in_threads" if name == "send_messages" and channel.is_thread else name
        if not have & BITS[wanted]:
            raise errors.missing_permissions()

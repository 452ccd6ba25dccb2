"""How the API shows what there is: users, members, servers, channels, messages."""

from typing import Any
from urllib.parse import quote

from tests.discord.local.clock import timestamp
from tests.discord.local.permissions import permissions_of
from tests.discord.local.world import DM, PRIVATE_THREAD, Attachment, Channel, Guild, Member, Message, Role, User

__all__ = [
    "application_json",
    "channel_json",
    "guild_json",
    "member_json",
    "message_json",
    "role_json",
    "thread_member_json",
    "user_json",
]

Json = dict[str, Any]


def user_json(user: User) -> Json:
    return {
        "id": str(user.id),
        "username": user.name,
        "global_name": None if user.is_bot else user.name.title(),
        "discriminator": "0" if not user.is_bot else "0001",
        "avatar": None,
        "bot": user.is_bot,
        "public_flags": 0,
    }


def application_json(bot: User, owner: User, flags: int) -> Json:
    return {
        "id": str(bot.id),
        "name": bot.name,
        "description": "",
        "icon": None,
        "bot_public": True,
        "bot_require_code_grant": False,
        "verify_key": "0" * 64,
        "flags": flags,
        "summary": "",
        "team": None,
        "owner": user_json(owner),
        "bot": user_json(bot),
        "redirect_uris": [],
        "interactions_endpoint_url": None,
        "role_connections_verification_url": None,
    }


def role_json(role: Role) -> Json:
    return {
        "id": str(role.id),
        "name": role.name,
        "permissions": str(role.permissions),
        "position": role.position,
        "color": 0,
        "colors": {"primary_color": 0, "secondary_color": None, "tertiary_color": None},
        "hoist": False,
        "managed": False,
        "mentionable": False,
        "flags": 0,
    }


def member_json(member: Member, *, with_user: bool = True) -> Json:
    data: Json = {
        "roles": [str(role.id) for role in member.roles],
        "joined_at": timestamp(member.joined_s),
        "nick": None,
        "avatar": None,
        "premium_since": None,
        "deaf": False,
        "mute": False,
        "pending": False,
        "flags": 0,
    }
    return {"user": user_json(member.user), **data} if with_user else data


def channel_json(channel: Channel, viewer: User) -> Json:
    data: Json = {
        "id": str(channel.id),
        "type": channel.type,
        "last_message_id": str(max(channel.messages)) if channel.messages else None,
        "flags": 0,
    }
    if channel.type == DM:
        other = channel.recipient
        return {**data, "recipients": [user_json(other)] if other else []}
    assert channel.guild is not None
    data |= {
        "guild_id": str(channel.guild.id),
        "name": channel.name,
        "parent_id": str(channel.parent.id) if channel.parent else None,
        "rate_limit_per_user": 0,
    }
    if not channel.is_thread:
        overwrites = [
            {"id": str(target), "type": one.kind, "allow": str(one.allow), "deny": str(one.deny)}
            for target, one in channel.overwrites.items()
        ]
        position = list(channel.guild.channels).index(channel.id)
        return {**data, "position": position, "topic": None, "nsfw": False, "permission_overwrites": overwrites}
    data |= {
        "owner_id": str(channel.owner.id) if channel.owner else None,
        "message_count": len(channel.messages),
        "total_message_sent": len(channel.messages),
        "member_count": len(channel.members),
        "thread_metadata": {
            "archived": False,
            "auto_archive_duration": 1440,
            "archive_timestamp": timestamp(channel.created_s),
            "create_timestamp": timestamp(channel.created_s),
            "locked": False,
            **({"invitable": True} if channel.type == PRIVATE_THREAD else {}),
        },
    }
    if viewer.id in channel.members:
        data["member"] = thread_member_json(channel, viewer)
    return data


def thread_member_json(channel: Channel, user: User) -> Json:
    joined = timestamp(channel.members[user.id])
    return {"id": str(channel.id), "user_id": str(user.id), "join_timestamp": joined, "flags": 1}


def guild_json(guild: Guild, viewer: User, *, with_members: bool) -> Json:
    """A server as GUILD_CREATE shows it to a bot, which sees only the channels that it may."""
    visible = [channel for channel in guild.channels.values() if permissions_of(viewer, channel)]
    members = guild.members.values() if with_members else [guild.members[viewer.id]]
    return {
        "id": str(guild.id),
        "name": guild.name,
        "icon": None,
        "owner_id": str(guild.owner.id),
        "roles": [role_json(role) for role in guild.roles.values()],
        "emojis": [],
        "stickers": [],
        "features": [],
        "verification_level": 0,
        "default_message_notifications": 0,
        "explicit_content_filter": 0,
        "mfa_level": 0,
        "nsfw_level": 0,
        "premium_tier": 0,
        "afk_timeout": 300,
        "system_channel_flags": 0,
        "preferred_locale": "en-US",
        "member_count": len(guild.members),
        "joined_at": timestamp(guild.members[viewer.id].joined_s),
        "large": False,
        "unavailable": False,
        "members": [member_json(member) for member in members],
        "channels": [channel_json(channel, viewer) for channel in visible if not channel.is_thread],
        "threads": [channel_json(channel, viewer) for channel in visible if channel.is_thread],
        "presences": [],
        "voice_states": [],
        "stage_instances": [],
        "guild_scheduled_events": [],
        "soundboard_sounds": [],
    }


def attachment_json(attachment: Attachment, channel: Channel, base: str) -> Json:
    url = f"{base}/attachments/{channel.id}/{attachment.id}/{quote(attachment.name)}"
    return {
        "id": str(attachment.id),
        "filename": attachment.name,
        "size": len(attachment.data),
        "content_type": attachment.content_type,
        "url": url,
        "proxy_url": url,
    }


def reactions_json(message: Message, viewer: User) -> list[Json]:
    return [
        {
            "emoji": {"id": None, "name": emoji},
            "count": len(users),
            "count_details": {"burst": 0, "normal": len(users)},
            "me": viewer in users,
            "me_burst": False,
            "burst_colors": [],
        }
        for emoji, users in message.reactions.items()
    ]


def mention_json(user: User, guild: Guild | None) -> Json:
    member = guild.members.get(user.id) if guild else None
    return {**user_json(user), **({"member": member_json(member, with_user=False)} if member else {})}


def message_json(message: Message, viewer: User, base: str, *, sees_content: bool, depth: int = 0) -> Json:
    """A message as the bot `viewer` sees it: without the Message Content intent some lose what they say.

    Kept are its own messages, those that mention it and private ones.
    """
    channel, guild = message.channel, message.channel.guild
    shown = sees_content or guild is None or message.author is viewer or viewer in message.mentions
    data: Json = {
        "id": str(message.id),
        "channel_id": str(channel.id),
        "type": message.type,
        "author": user_json(message.author),
        "content": message.content if shown else "",
        "timestamp": timestamp(message.sent_s),
        "edited_timestamp": timestamp(message.edited_s),
        "tts": False,
        "mention_everyone": message.everyone,
        "mentions": [mention_json(user, guild) for user in message.mentions],
        "mention_roles": [str(role.id) for role in message.role_mentions],
        "attachments": [attachment_json(one, channel, base) for one in message.attachments] if shown else [],
        "embeds": message.embeds if shown else [],
        "components": message.components if shown else [],
        "pinned": False,
        "flags": message.flags,
    }
    if message.reactions:
        data["reactions"] = reactions_json(message, viewer)
    if message.nonce is not None:
        data["nonce"] = message.nonce
    if message.reply_id is not None:
        data["message_reference"] = {
            "type": 0,
            "message_id": str(message.reply_id),
            "channel_id": str(message.reply_channel),
            **({"guild_id": str(guild.id)} if guild else {}),
        }
        replied = message.reply_to
        if depth == 0:  # Discord nests one level
            gone = replied is None or replied.is_deleted
            data["referenced_message"] = (
                None if gone else message_json(replied, viewer, base, sees_content=sees_content, depth=1)  # type: ignore[arg-type]
            )
    if message.thread is not None:
        data["thread"] = channel_json(message.thread, viewer)
    if (interaction := message.interaction) is not None:
        data["webhook_id"] = data["application_id"] = str(viewer.id)
        data["interaction_metadata"] = {
            "id": str(interaction.id),
            "type": interaction.type,
            "user": user_json(interaction.user),
            "authorizing_integration_owners": {},
        }
    return data

"""Routes about the bot, servers, channels, threads and commands."""

from typing import Any

from tests.discord.local import errors
from tests.discord.local.checks import check_commands
from tests.discord.local.payloads import (
    application_json,
    channel_json,
    member_json,
    role_json,
    thread_member_json,
    user_json,
)
from tests.discord.local.permissions import require
from tests.discord.local.rest import Api, Route
from tests.discord.local.world import PRIVATE_THREAD, THREAD, Channel, Guild

__all__ = ["ROUTES", "channel_of"]


def channel_of(api: Api, *permissions: str) -> Channel:
    """The channel of a request, which the bot may see and in which it has these permissions."""
    channel = api.hub.channels.get(api.number("channel"))
    if channel is None:
        raise errors.unknown_channel()
    require(api.hub.bot, channel, *permissions)
    return channel


def guild_of(api: Api) -> Guild:
    guild = api.hub.guilds.get(api.number("guild"))
    if guild is None:
        raise errors.unknown_guild()
    return guild


async def me(api: Api) -> Any:
    return {**user_json(api.hub.bot), "verified": True, "mfa_enabled": False, "flags": 0}


async def user(api: Api) -> Any:
    found = api.hub.users.get(api.number("user"))
    if found is None:
        raise errors.unknown_user()
    return user_json(found)


async def application(api: Api) -> Any:
    return application_json(api.hub.bot, api.hub.owner, api.hub.application_flags)


async def gateway(api: Api) -> Any:
    return {"url": api.hub.gateway_url}


async def gateway_bot(api: Api) -> Any:
    doors = api.hub.gateway
    left = max(doors.max_identifies - len(doors.identified), 0)
    start = {"total": doors.max_identifies, "remaining": left, "reset_after": 86_400_000, "max_concurrency": 1}
    return {"url": api.hub.gateway_url, "shards": 1, "session_start_limit": start}


async def guild(api: Api) -> Any:
    return api.hub.guild_json(guild_of(api), 0)


async def guild_channels(api: Api) -> Any:
    channels = guild_of(api).channels.values()
    return [channel_json(one, api.hub.bot) for one in channels if api.hub.sees(one) and not one.is_thread]


async def roles(api: Api) -> Any:
    return [role_json(role) for role in guild_of(api).roles.values()]


async def member(api: Api) -> Any:
    found = guild_of(api).members.get(api.number("user"))
    if found is None:
        raise errors.unknown_member()
    return member_json(found)


async def channel(api: Api) -> Any:
    return channel_json(channel_of(api), api.hub.bot)


async def open_direct(api: Api) -> Any:
    other = api.hub.users.get(int(api.body.get("recipient_id", 0)))
    if other is None:
        raise errors.invalid_form("recipient_id", "NUMBER_TYPE_COERCE", "Unknown user")
    return channel_json(api.hub.direct(other), api.hub.bot)


async def open_thread(api: Api) -> Any:
    is_private = api.body.get("type") == PRIVATE_THREAD
    parent = channel_of(api, "create_private_threads" if is_private else "create_public_threads")
    kind = PRIVATE_THREAD if is_private else THREAD
    return channel_json(api.hub.add_thread(parent, name_of(api), api.hub.bot, None, kind), api.hub.bot)


async def open_thread_of(api: Api) -> Any:
    parent = channel_of(api, "create_public_threads")
    start = parent.messages.get(api.number("message"))
    if start is None:
        raise errors.unknown_message()
    return channel_json(api.hub.add_thread(parent, name_of(api), api.hub.bot, start), api.hub.bot)


def name_of(api: Api) -> str:
    name = api.body.get("name")
    if not isinstance(name, str) or not 1 <= len(name) <= 100:
        raise errors.invalid_form("name", "BASE_TYPE_BAD_LENGTH", "Must be between 1 and 100 in length.")
    return name


async def join_thread(api: Api) -> Any:
    thread = channel_of(api)
    thread.members.setdefault(api.hub.bot.id, api.hub.clock())


async def thread_members(api: Api) -> Any:
    thread = channel_of(api)
    return [thread_member_json(thread, api.hub.users[one]) for one in thread.members]


async def typing(api: Api) -> Any:
    api.hub.type_in(channel_of(api, "send_messages"), api.hub.bot)


def commands_at(api: Api) -> int | None:
    """The server whose commands a request is about; none for those that are everywhere."""
    if api.number("application") != api.hub.bot.id:
        raise errors.missing_access()
    return guild_of(api).id if "guild" in api.request.match_info else None


async def get_commands(api: Api) -> Any:
    return api.hub.commands.get(commands_at(api), [])


async def put_commands(api: Api) -> Any:
    place = commands_at(api)
    check_commands(api.body)
    commands: list[dict[str, Any]] = []
    for command in api.body:
        assert isinstance(command, dict)
        known = {"id": str(api.hub.new_id()), "application_id": str(api.hub.bot.id), "version": str(api.hub.new_id())}
        known |= {"guild_id": str(place)} if place else {}
        commands.append({"type": 1, "description": "", "default_member_permissions": None, **command, **known})
    api.hub.commands[place] = commands
    api.hub.journal.changed()
    return commands


ROUTES = [
    Route("me", "GET", "/users/@me", me),
    Route("open_dm", "POST", "/users/@me/channels", open_direct),
    Route("user", "GET", "/users/{user}", user),
    Route("application", "GET", "/applications/@me", application),
    Route("application", "GET", "/oauth2/applications/@me", application),
    Route("gateway", "GET", "/gateway", gateway),
    Route("gateway_bot", "GET", "/gateway/bot", gateway_bot),
    Route("guild", "GET", "/guilds/{guild}", guild),
    Route("guild_channels", "GET", "/guilds/{guild}/channels", guild_channels),
    Route("roles", "GET", "/guilds/{guild}/roles", roles),
    Route("member", "GET", "/guilds/{guild}/members/{user}", member),
    Route("channel", "GET", "/channels/{channel}", channel),
    Route("typing", "POST", "/channels/{channel}/typing", typing),
    Route("open_thread", "POST", "/channels/{channel}/threads", open_thread),
    Route("open_thread", "POST", "/channels/{channel}/messages/{message}/threads", open_thread_of),
    Route("join_thread", "PUT", "/channels/{channel}/thread-members/@me", join_thread),
    Route("thread_members", "GET", "/channels/{channel}/thread-members", thread_members),
    Route("commands", "GET", "/applications/{application}/commands", get_commands),
    Route("commands", "GET", "/applications/{application}/guilds/{guild}/commands", get_commands),
    Route("put_commands", "PUT", "/applications/{application}/commands", put_commands),
    Route("put_commands", "PUT", "/applications/{application}/guilds/{guild}/commands", put_commands),
]

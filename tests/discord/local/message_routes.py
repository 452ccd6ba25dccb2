"""Routes of messages: sending, reading, editing, deleting, reactions, files; and those of interactions' tokens."""

from typing import Any
from urllib.parse import unquote

from aiohttp import web
from tests.discord.local import errors
from tests.discord.local.hub import Hub
from tests.discord.local.permissions import BITS, permissions_of, require
from tests.discord.local.rest import Api, Route
from tests.discord.local.routes import channel_of
from tests.discord.local.world import Channel, Message

__all__ = ["MESSAGE_ROUTES", "attachment"]

NONCE_S = 300.0  # for which a nonce is remembered


def message_of(api: Api, channel: Channel) -> Message:
    message = channel.messages.get(api.number("message"))
    if message is None:
        raise errors.unknown_message()
    return message


async def send(api: Api) -> Any:
    hub, channel = api.hub, channel_of(api, "send_messages")
    wanted = ["attach_files"] if api.files else []
    require(hub.bot, channel, *wanted, *(["embed_links"] if api.body.get("embeds") else []))
    if channel.recipient in hub.closed:
        raise errors.closed_dm()
    reference = api.body.get("message_reference")
    if reference and not permissions_of(hub.bot, channel) & BITS["read_message_history"]:
        raise errors.no_history()
    message = hub.make_message(channel, hub.bot, api.body, api.files)
    if message.nonce is not None and api.body.get("enforce_nonce"):
        earlier = hub.nonces.get((channel.id, message.nonce))
        if earlier is not None and hub.clock() < earlier.sent_s + NONCE_S:
            return hub.message_json(earlier)
        hub.nonces[channel.id, message.nonce] = message
    return hub.message_json(hub.post(message))


async def history(api: Api) -> Any:
    channel = channel_of(api)
    if not permissions_of(api.hub.bot, channel) & BITS["read_message_history"]:
        return []  # as Discord has it: no error
    query = api.request.query
    limit = int(query.get("limit", 50))
    if not 1 <= limit <= 100:
        raise errors.invalid_form("limit", "NUMBER_TYPE_MAX", "int value should be between 1 and 100.")
    messages = sorted(channel.messages.values(), key=lambda message: message.id)
    if before := query.get("before"):
        found = [one for one in messages if one.id < int(before)][-limit:]
    elif after := query.get("after"):
        found = [one for one in messages if one.id > int(after)][:limit]
    elif around := query.get("around"):
        earlier = [one for one in messages if one.id < int(around)][-(limit // 2) :]
        later = [one for one in messages if one.id >= int(around)]
        found = earlier + later[: limit - len(earlier)]
    else:
        found = messages[-limit:]
    return [api.hub.message_json(message) for message in reversed(found)]


async def fetch(api: Api) -> Any:
    return api.hub.message_json(message_of(api, channel_of(api, "read_message_history")))


async def edit(api: Api) -> Any:
    message = message_of(api, channel_of(api))
    if message.author is not api.hub.bot:
        raise errors.not_the_author()
    return api.hub.message_json(api.hub.change(message, api.body, api.files, api.hub.bot))


async def delete(api: Api) -> Any:
    channel = channel_of(api)
    message = message_of(api, channel)
    if message.author is not api.hub.bot:
        require(api.hub.bot, channel, "manage_messages")
    api.hub.remove(message, api.hub.bot)


def emoji_of(api: Api) -> str:
    emoji = unquote(api.text("emoji"))
    if not emoji or emoji.isascii():  # custom ones are name:id
        raise errors.unknown_emoji()
    return emoji


async def react(api: Api) -> Any:
    channel = channel_of(api, "read_message_history")
    message, emoji = message_of(api, channel), emoji_of(api)
    if emoji not in message.reactions:
        require(api.hub.bot, channel, "add_reactions")
    api.hub.set_reaction(message, emoji, api.hub.bot, present=True)


async def unreact(api: Api) -> Any:
    api.hub.set_reaction(message_of(api, channel_of(api)), emoji_of(api), api.hub.bot, present=False)


async def unreact_other(api: Api) -> Any:
    channel = channel_of(api, "manage_messages")
    user = api.hub.users.get(api.number("user"))
    if user is None:
        raise errors.unknown_user()
    api.hub.set_reaction(message_of(api, channel), emoji_of(api), user, present=False)


async def callback(api: Api) -> Any:
    interactions = api.hub.interactions
    found = interactions.acknowledge(api.number("interaction"), api.text("token"), api.body, api.files)
    return found if api.request.query.get("with_response") in ("1", "true") else None


async def follow_up(api: Api) -> Any:
    interaction = api.hub.interactions.find(api.number("application"), api.text("token"))
    return api.hub.message_json(api.hub.interactions.follow_up(interaction, api.body, api.files))


async def get_reply(api: Api) -> Any:
    interaction = api.hub.interactions.find(api.number("application"), api.text("token"))
    return api.hub.message_json(api.hub.interactions.message(interaction, api.text("message")))


async def edit_reply(api: Api) -> Any:
    interactions = api.hub.interactions
    interaction = interactions.find(api.number("application"), api.text("token"))
    return api.hub.message_json(interactions.edit(interaction, api.text("message"), api.body, api.files))


async def delete_reply(api: Api) -> Any:
    interaction = api.hub.interactions.find(api.number("application"), api.text("token"))
    api.hub.remove(api.hub.interactions.message(interaction, api.text("message")), api.hub.bot)


async def attachment(hub: Hub, request: web.Request) -> web.Response:
    """A file, as Discord's content network serves it: to anybody who has its address."""
    channel = hub.channels.get(int(request.match_info["channel"]))
    key = int(request.match_info["attachment"])
    messages = list(channel.messages.values()) if channel else []
    messages += [one for interaction in hub.interactions.by_token.values() for one in interaction.replies]
    for message in messages:
        for one in message.attachments:
            if one.id == key and not message.is_deleted:
                return web.Response(body=one.data, headers={"Content-Type": one.content_type})
    return web.Response(status=404, text="This content is no longer available.")


ONE = "/channels/{channel}/messages/{message}"
REACTION = ONE + "/reactions/{emoji}"
TOKEN = "/webhooks/{application}/{token}"
MESSAGE_ROUTES = [
    Route("send", "POST", "/channels/{channel}/messages", send),
    Route("history", "GET", "/channels/{channel}/messages", history),
    Route("fetch", "GET", ONE, fetch),
    Route("edit", "PATCH", ONE, edit),
    Route("delete", "DELETE", ONE, delete),
    Route("react", "PUT", REACTION + "/@me", react),
    Route("unreact", "DELETE", REACTION + "/@me", unreact),
    Route("unreact_other", "DELETE", REACTION + "/{user}", unreact_other),
    Route("callback", "POST", "/interactions/{interaction}/{token}/callback", callback, by_token=True),
    Route("followup", "POST", TOKEN, follow_up, by_token=True),
    Route("followup_get", "GET", TOKEN + "/messages/{message}", get_reply, by_token=True),
    Route("followup_edit", "PATCH", TOKEN + "/messages/{message}", edit_reply, by_token=True),
    Route("followup_delete", "DELETE", TOKEN + "/messages/{message}", delete_reply, by_token=True),
]

"""The door for people: the page, and what a test does with a local Discord in another process."""

import base64
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web
from tests.discord.local.errors import ApiError
from tests.discord.local.interactions import COMMAND, Interaction
from tests.discord.local.payloads import attachment_json
from tests.discord.local.people import NotPossible, People
from tests.discord.local.world import DM, EPHEMERAL, LOADING, Channel, Message

__all__ = ["add_control"]

PAGE = Path(__file__).parent / "page"
FILES = {"/": "index.html", "/page.css": "page.css", "/page.js": "page.js"}
POLL_S = 5.0  # for which a look waits for something new
SHOWN_S = 30.0  # for which a failed interaction shows
INTEGER, BOOLEAN, NUMBER = 4, 5, 10  # types of options

Json = dict[str, Any]


def message_view(local: People, message: Message) -> Json:
    """A message as the page shows it."""
    replied, interaction = message.reply_to, message.interaction
    return {
        "id": str(message.id),
        "author": message.author.name,
        "is_bot": message.author.is_bot,
        "content": message.content,
        "at_s": message.sent_s,
        "is_edited": message.edited_s is not None,
        "reactions": [{"emoji": one, "users": [user.name for user in who]} for one, who in message.reactions.items()],
        "embeds": message.embeds,
        "buttons": message.buttons,
        "files": [attachment_json(one, message.channel, local.url) for one in message.attachments],
        "reply_to": None if replied is None else {"author": replied.author.name, "content": replied.content},
        "is_private": bool(message.flags & EPHEMERAL),
        "is_thinking": bool(message.flags & LOADING),
        "command": f"/{interaction.data['name']}" if interaction is not None and interaction.type == COMMAND else None,
        "asked_by": interaction.user.name if interaction is not None else None,
        "num_states": len(message.states),
        "is_deleted": message.is_deleted,
    }


def channel_view(channel: Channel) -> Json:
    name = f"@{channel.name}" if channel.type == DM else f"#{channel.name}"
    return {"id": str(channel.id), "name": f"{name} (thread)" if channel.is_thread else name}


def interaction_view(local: People, interaction: Interaction) -> Json:
    return {
        "id": str(interaction.id),
        "state": local.interactions.state(interaction),
        "what": f"/{interaction.data['name']}" if "name" in interaction.data else "the button",
        "choices": interaction.choices,
        "replies": [message_view(local, message) for message in interaction.replies],
    }


class Doors:
    """Requests of the page and of other processes; names and ids stand for people, channels and messages."""

    def __init__(self, local: People) -> None:
        self.local = local
        self.actions: dict[str, Callable[[Json], Awaitable[Any]]] = {
            "say": self.say,
            "edit": self.edit,
            "delete": self.delete,
            "react": self.react,
            "press": self.press,
            "run": self.run,
            "complete": self.complete,
            "join": self.join,
            "fail": self.fail,
            "gateway": self.gateway,
            "advance": self.advance,
            "states": self.states,
            "replies": self.replies,
            "violations": self.violations,
        }

    async def view(self, request: web.Request) -> web.Response:
        """What a person sees of a channel, as soon as it differs from the version that they have."""
        local, query = self.local, request.query
        if int(query.get("since", -1)) == local.journal.version:
            await local.journal.next_change(POLL_S)
        who = local.person(query.get("viewer") or "ann")
        channel = self.channel(query.get("channel") or "general")
        channels = [one for guild in local.guilds.values() for one in guild.channels.values()]
        now = local.clock()
        mine = [one for one in local.interactions.by_token.values() if one.user is who and one.channel is channel]
        return web.json_response(
            {
                "version": local.journal.version,
                "viewer": who.name,
                "bot": local.bot.name,
                "is_online": any(one.session for one in local.gateway.connections),
                "people": [user.name for user in local.users.values() if not user.is_bot and user is not local.owner],
                "users": {str(user.id): user.name for user in local.users.values()},
                "channel": str(channel.id),
                "channels": [channel_view(one) for one in (*channels, local.dm(who))],
                "messages": [message_view(local, one) for one in local.visible(channel, who)],
                "is_typing": local.is_typing(channel, local.bot),
                "commands": local.available(channel, who),
                "interactions": [interaction_view(local, one) for one in mine if now < one.at_s + SHOWN_S],
                "requests": [f"{one.status or '...'} {one.name}" for one in local.journal.requests[-12:]],
                "violations": local.violations()[-5:],
            }
        )

    async def do(self, request: web.Request) -> web.Response:
        """Carry out an action; what Discord would not let a person do is a 400 with the reason."""
        args = await request.json()
        action = self.actions.get(args.pop("action", ""))
        if action is None:
            return web.json_response({"error": f"no such action; there are {sorted(self.actions)}"}, status=404)
        try:
            return web.json_response(await action(args))
        except (NotPossible, KeyError, ValueError) as error:
            return web.json_response({"error": str(error)}, status=400)
        except ApiError as error:
            return web.json_response({"error": error.message}, status=400)

    def channel(self, where: str) -> Channel:
        if where.startswith("@"):
            return self.local.dm(where[1:])
        return self.local.channels[int(where)] if where.isdecimal() else self.local.channel(where)

    def message(self, args: Json) -> Message:
        key = str(args["message"])
        candidates = [one for one, _ in reversed(self.local.journal.states) if str(one.id) == key]
        if not candidates:
            raise NotPossible(f"no message {key}")
        return candidates[0]

    async def say(self, args: Json) -> Any:
        files = {name: base64.b64decode(data) for name, data in (args.get("files") or {}).items()}
        replied = self.message({"message": args["reply_to"]}) if args.get("reply_to") else None
        text, mention = args.get("text", ""), bool(args.get("mention"))
        where = self.channel(args["channel"])
        message = self.local.say(where, args["author"], text, reply_to=replied, files=files, mention=mention)
        return message_view(self.local, message)

    async def edit(self, args: Json) -> Any:
        return message_view(self.local, self.local.edit(self.message(args), args["text"]))

    async def delete(self, args: Json) -> Any:
        self.local.delete(self.message(args))

    async def react(self, args: Json) -> Any:
        """Add a reaction, or take it away where it is there."""
        message, who = self.message(args), self.local.person(args["author"])
        present = who not in message.reactions.get(args["emoji"], [])
        self.local.set_reaction(message, args["emoji"], who, present=present)

    async def press(self, args: Json) -> Any:
        interaction = self.local.press(self.message(args), args["button"], args["author"])
        return interaction_view(self.local, await self.local.answered(interaction))

    async def run(self, args: Json) -> Any:
        where, options = self.channel(args["channel"]), self.typed(args)
        interaction = self.local.run(where, args["author"], args["name"], **options)
        return interaction_view(self.local, await self.local.answered(interaction))

    async def complete(self, args: Json) -> Any:
        where = self.channel(args["channel"])
        interaction = self.local.complete(where, args["author"], args["name"], args["option"], args["typed"])
        return interaction_view(self.local, await self.local.answered(interaction))

    def typed(self, args: Json) -> Json:
        """Options as their types want them; a page has only text."""
        first, *path = args["name"].split()
        at = next(
            (
                one
                for one in self.local.available(self.channel(args["channel"]), self.local.person(args["author"]))
                if one["name"] == first
            ),
            {},
        )
        for part in path:
            at = next((one for one in at.get("options") or [] if one["name"] == part), {})
        kinds = {one["name"]: one["type"] for one in at.get("options") or []}
        casts: dict[int, Callable[[Any], Any]] = {
            INTEGER: int,
            NUMBER: float,
            BOOLEAN: lambda value: str(value).lower() in ("true", "yes", "1"),
        }
        options = args.get("options") or {}
        return {name: casts.get(kinds.get(name, 0), lambda value: value)(value) for name, value in options.items()}

    async def join(self, args: Json) -> Any:
        return {"id": str(self.local.person(args["author"]).id)}

    async def fail(self, args: Json) -> Any:
        self.local.fail(**args)

    async def gateway(self, args: Json) -> Any:
        """Cut the gateway's connections, ask for a new one, end the session, or freeze for some seconds."""
        doors = self.local.gateway
        kinds: dict[str, Callable[[], Any]] = {
            "cut": doors.cut,
            "reconnect": doors.reconnect,
            "invalidate": doors.invalidate,
            "freeze": lambda: self.local.faults.freeze(float(args.get("seconds", 5))),
            "block": lambda: self.local.limits.block(float(args.get("seconds", 10))),
        }
        kinds[args["kind"]]()

    async def advance(self, args: Json) -> Any:
        self.local.clock.ahead_s += float(args["seconds"])

    async def states(self, args: Json) -> Any:
        return [
            {"at_s": one.at_s, "change": one.change, "by": one.by, "content": one.content, "emojis": one.emojis}
            for one in self.message(args).states
        ]

    async def replies(self, args: Json) -> Any:
        return [message_view(self.local, one) for one in self.local.replies(self.message(args))]

    async def violations(self, args: Json) -> Any:
        return self.local.violations(*args.get("kinds", []))


async def page(path: str, request: web.Request) -> web.Response:
    kinds = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
    file = PAGE / path
    return web.Response(text=file.read_text("utf-8"), content_type=kinds[file.suffix], charset="utf-8")


def add_control(app: web.Application, local: People) -> None:
    """Serve the page, `/local/view` and `/local/do`."""
    doors = Doors(local)
    for path, name in FILES.items():
        app.router.add_get(path, partial(page, name))
    app.router.add_get("/local/view", doors.view)
    app.router.add_post("/local/do", doors.do)

"""What the bot's requests and the people's actions have in common: they change the world, and events tell of it."""

import mimetypes
import secrets
from typing import Any

from tests.discord.local import errors
from tests.discord.local.checks import check_files, check_message
from tests.discord.local.clock import Clock, Snowflakes
from tests.discord.local.faults import Faults
from tests.discord.local.gateway import INTENTS, Gateway, Session
from tests.discord.local.interactions import Interactions
from tests.discord.local.journal import Journal, Violation
from tests.discord.local.limits import Limits
from tests.discord.local.mentions import mention, notified
from tests.discord.local.payloads import channel_json, guild_json, member_json, message_json
from tests.discord.local.permissions import DEFAULT, permissions_of
from tests.discord.local.world import (
    DM,
    EPHEMERAL,
    LOADING,
    TEXT,
    THREAD,
    Attachment,
    Channel,
    Guild,
    Member,
    Message,
    Role,
    User,
)

__all__ = ["Hub"]

REPLY = 19  # type of a message that replies
SETTABLE_FLAGS = 1 << 2 | EPHEMERAL | 1 << 12 | 1 << 15  # no embeds, ephemeral, silent, components alone
CONTENT_FLAGS = 1 << 18 | 1 << 19  # of an application that may see content


class Hub:
    """The local Discord without its doors: world, sessions, limits, faults and the journal."""

    def __init__(self, token: str, allowed_intents: tuple[str, ...], bot: str) -> None:
        self.token, self.allowed_intents = token, allowed_intents
        self.clock = Clock()
        self.new_id = Snowflakes(self.clock)
        self.limits = Limits(self.clock)
        self.faults = Faults()
        self.journal = Journal()
        self.gateway = Gateway(self)
        self.interactions = Interactions(self)
        self.url = ""
        self.broken: list[Exception] = []  # what went wrong in the local Discord itself
        self.users: dict[int, User] = {}
        self.guilds: dict[int, Guild] = {}
        self.channels: dict[int, Channel] = {}
        self.closed: set[User] = set()  # people who take no private messages
        self.nonces: dict[tuple[int, str], Message] = {}
        self.commands: dict[int | None, list[dict[str, Any]]] = {None: []}  # by server; None: everywhere
        self.typed: list[tuple[float, Channel, User]] = []
        self.bot = self.add_user(bot, is_bot=True)
        self.owner = self.add_user("owner")

    @property
    def gateway_url(self) -> str:
        return self.url.replace("http", "ws", 1) + "/gateway"

    @property
    def application_flags(self) -> int:
        return CONTENT_FLAGS if "message_content" in self.allowed_intents else 0

    def reset_token(self) -> None:
        """Make the token useless, as after too many logins."""
        self.token = secrets.token_hex(16)

    def violate(self, what: str, request: Any = None) -> None:
        """Record something that a well-behaved client does not do."""
        self.journal.violations.append(Violation(self.clock(), what, request))

    # -- what there is

    def add_user(self, name: str, *, is_bot: bool = False) -> User:
        user = User(self.new_id(), name, is_bot)
        self.users[user.id] = user
        return user

    def add_guild(self, name: str) -> Guild:
        """A new server with the bot and its owner; the bot gets its own role."""
        guild = Guild(self.new_id(), name, self.owner)
        guild.roles[guild.id] = Role(guild.id, "@everyone", DEFAULT, 0)
        self.guilds[guild.id] = guild
        self.join(self.owner, guild)
        self.join(self.bot, guild)
        for session in self.gateway.sessions.values():
            session.dispatch("GUILD_CREATE", self.guild_json(guild, session.intents))
        return guild

    def join(self, user: User, guild: Guild) -> Member:
        member = Member(user, self.clock())
        guild.members[user.id] = member
        return member

    def add_channel(self, name: str, guild: Guild) -> Channel:
        channel = Channel(self.new_id(), name, TEXT, guild, created_s=self.clock())
        self.channels[channel.id] = guild.channels[channel.id] = channel
        self.gateway.dispatch("CHANNEL_CREATE", channel_json(channel, self.bot), "guilds", channel=channel)
        return channel

    def remove_channel(self, channel: Channel) -> None:
        """Delete a channel or thread with its messages."""
        assert channel.guild is not None
        data = channel_json(channel, self.bot)
        self.gateway.dispatch(
            "THREAD_DELETE" if channel.is_thread else "CHANNEL_DELETE", data, "guilds", channel=channel
        )
        for message in list(channel.messages.values()):
            message.is_deleted = True
        del self.channels[channel.id], channel.guild.channels[channel.id]
        self.journal.changed()

    def direct(self, user: User) -> Channel:
        """The private conversation of the bot with `user`."""
        for channel in self.channels.values():
            if channel.type == DM and channel.recipient is user:
                return channel
        channel = Channel(self.new_id(), user.name, DM, recipient=user, created_s=self.clock())
        self.channels[channel.id] = channel
        return channel

    def add_thread(self, parent: Channel, name: str, owner: User, start: Message | None, kind: int = THREAD) -> Channel:
        """Open a thread, from a message (then it has the message's id) or on its own."""
        if start is not None and start.thread is not None:
            raise errors.thread_exists()
        key = start.id if start is not None else self.new_id()
        thread = Channel(key, name, kind, parent.guild, parent, owner=owner, created_s=self.clock())
        assert parent.guild is not None
        self.channels[key] = parent.guild.channels[key] = thread
        thread.members[owner.id] = self.clock()
        if start is not None:
            start.thread = thread
        created = {**channel_json(thread, self.bot), "newly_created": True}
        self.gateway.dispatch("THREAD_CREATE", created, "guilds", channel=thread)
        if start is not None:
            self.tell("MESSAGE_UPDATE", start)
        self.journal.changed()
        return thread

    def sees(self, channel: Channel) -> bool:
        return bool(permissions_of(self.bot, channel))

    def guild_json(self, guild: Guild, intents: int) -> dict[str, Any]:
        return guild_json(guild, self.bot, with_members=bool(intents & INTENTS["members"]))

    def members_json(self, guild_id: int, query: str | None, ids: list[str] | None) -> list[dict[str, Any]]:
        members = self.guilds[guild_id].members.values()
        wanted = {int(one) for one in ids} if ids else None
        return [
            member_json(one)
            for one in members
            if (one.user.id in wanted if wanted is not None else one.user.name.startswith(query or ""))
        ]

    # -- messages

    def message_json(self, message: Message, *, sees_content: bool | None = None) -> dict[str, Any]:
        """A message as the bot sees it over HTTP, or over a session."""
        if sees_content is None:
            sees_content = "message_content" in self.allowed_intents
        return message_json(message, self.bot, self.url, sees_content=sees_content)

    def tell(self, event: str, message: Message, **more: Any) -> None:
        """Dispatch a message as each session may see it."""
        channel = message.channel
        guild = channel.guild
        where: dict[str, Any] = {"channel_type": channel.type, **more}
        if guild is not None:
            where["guild_id"] = str(guild.id)
            if (member := guild.members.get(message.author.id)) is not None:
                where["member"] = member_json(member, with_user=False)

        def data(session: Session) -> dict[str, Any]:
            return {**self.message_json(message, sees_content=session.sees_content), **where}

        self.gateway.dispatch(event, data, "guild_messages" if guild else "dm_messages", channel=channel)

    def make_message(
        self, channel: Channel, author: User, body: dict[str, Any], files: dict[int, tuple[str, bytes]]
    ) -> Message:
        """A message of a request's body, refused where it breaks a limit, and not yet anywhere."""
        check_files(files)
        check_message(body)
        message = Message(self.new_id(), channel, author, self.clock(), (body.get("content") or "").strip())
        message.embeds = list(body.get("embeds") or [])
        message.components = list(body.get("components") or [])
        message.attachments = self.attachments([], body.get("attachments"), files)
        message.flags = (body.get("flags") or 0) & SETTABLE_FLAGS
        message.nonce = None if body.get("nonce") is None else str(body["nonce"])
        self.refer(message, body.get("message_reference"))
        if not (message.content or message.embeds or message.attachments or message.components):
            raise errors.empty_message()
        mention(message, self.users, body.get("allowed_mentions"))
        return message

    def refer(self, message: Message, reference: dict[str, Any] | None) -> None:
        """Make `message` a reply."""
        if not reference or reference.get("message_id") is None:
            return
        replied = message.channel.messages.get(int(reference["message_id"]))
        if replied is None:
            if reference.get("fail_if_not_exists", True):
                raise errors.invalid_form("message_reference", "REPLIES_UNKNOWN_MESSAGE", "Unknown message")
            return
        message.reply_to, message.reply_id, message.reply_channel = replied, replied.id, message.channel.id
        message.type = REPLY

    def attachments(
        self, old: list[Attachment], kept: list[dict[str, Any]] | None, files: dict[int, tuple[str, bytes]]
    ) -> list[Attachment]:
        """The files of a message after a request: those that it keeps (all, if it names none), then new ones."""
        named = {int(one["id"]) for one in kept} if kept is not None else None
        found = [one for one in old if named is None or one.id in named]
        names = {int(one["id"]): one.get("filename") for one in kept or []}
        for index, (name, data) in sorted(files.items()):
            name = names.get(index) or name
            kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
            kind = f"{kind}; charset=utf-8" if kind.startswith("text/") else kind
            found.append(Attachment(self.new_id(), name, data, kind))
        return found

    def post(self, message: Message) -> Message:
        """Put a message into its channel and tell everybody."""
        message.channel.messages[message.id] = message
        message.pinged = notified(message)
        self.journal.record(message, "sent", message.author.name, self.clock())
        self.tell("MESSAGE_CREATE", message)
        return message

    def change(self, message: Message, body: dict[str, Any], files: dict[int, tuple[str, bytes]], by: User) -> Message:
        """Edit a message: what the body does not name stays."""
        check_files(files)
        check_message(body)
        content = (body["content"] or "").strip() if "content" in body else message.content
        embeds = list(body["embeds"] or []) if "embeds" in body else message.embeds
        components = list(body["components"] or []) if "components" in body else message.components
        attachments = self.attachments(message.attachments, body.get("attachments"), files)
        if not (content or embeds or components or attachments):
            raise errors.empty_message()
        message.content, message.embeds, message.components = content, embeds, components
        message.attachments = attachments
        message.flags &= ~LOADING
        message.edited_s = self.clock()
        mention(message, self.users, body.get("allowed_mentions"))
        self.journal.record(message, "edited", by.name, self.clock())
        if message.only_for is None:
            self.tell("MESSAGE_UPDATE", message)
        return message

    def remove(self, message: Message, by: User) -> None:
        """Delete a message; what it was stays in the journal."""
        message.is_deleted = True
        message.channel.messages.pop(message.id, None)
        self.journal.record(message, "deleted", by.name, self.clock())
        if message.only_for is not None:
            return
        guild = message.channel.guild
        data = {"id": str(message.id), "channel_id": str(message.channel.id)}
        data |= {"guild_id": str(guild.id)} if guild else {}
        self.gateway.dispatch(
            "MESSAGE_DELETE", data, "guild_messages" if guild else "dm_messages", channel=message.channel
        )

    def set_reaction(self, message: Message, emoji: str, user: User, *, present: bool) -> None:
        """Add or take away a reaction; doing it twice changes nothing."""
        users = message.reactions.get(emoji, [])
        if (user in users) is present:
            return
        if present:
            message.reactions.setdefault(emoji, []).append(user)
        else:
            users.remove(user)
            if not users:
                del message.reactions[emoji]
        self.journal.record(message, "reacted" if present else "unreacted", user.name, self.clock())
        guild = message.channel.guild
        data: dict[str, Any] = {
            "user_id": str(user.id),
            "message_id": str(message.id),
            "channel_id": str(message.channel.id),
            "emoji": {"id": None, "name": emoji},
            "burst": False,
            "type": 0,
        }
        if guild is not None:
            data["guild_id"] = str(guild.id)
        if present:
            data["message_author_id"] = str(message.author.id)
            if guild is not None:
                data["member"] = member_json(guild.members[user.id])
        self.gateway.dispatch(
            "MESSAGE_REACTION_ADD" if present else "MESSAGE_REACTION_REMOVE",
            data,
            "guild_reactions" if guild else "dm_reactions",
            channel=message.channel,
        )

    def type_in(self, channel: Channel, user: User) -> None:
        """Show that `user` is writing."""
        self.typed.append((self.clock(), channel, user))
        guild = channel.guild
        data: dict[str, Any] = {
            "channel_id": str(channel.id),
            "user_id": str(user.id),
            "timestamp": int(self.clock()),
        }
        if guild is not None:
            data |= {"guild_id": str(guild.id), "member": member_json(guild.members[user.id])}
        self.gateway.dispatch("TYPING_START", data, "guild_typing" if guild else "dm_typing", channel=channel)
        self.journal.changed()

    def is_typing(self, channel: Channel, user: User) -> bool:
        """Whether the indicator of `user` shows: for 10 s, or until a message of the same author."""
        last = max((at for at, where, who in self.typed if where is channel and who is user), default=0.0)
        sent = max((one.sent_s for one in channel.messages.values() if one.author is user), default=0.0)
        return max(sent, self.clock() - 10.0) < last

"""What there is on a Discord: people, servers, roles, channels, messages, and every state that a message had."""

from dataclasses import dataclass, field
from typing import Any

from tests.discord.local.permissions import Overwrite

__all__ = [
    "DM",
    "EPHEMERAL",
    "LOADING",
    "PRIVATE_THREAD",
    "TEXT",
    "THREAD",
    "Attachment",
    "Channel",
    "Guild",
    "Member",
    "Message",
    "Role",
    "State",
    "User",
]

TEXT, DM, THREAD, PRIVATE_THREAD = 0, 1, 11, 12  # types of channels
EPHEMERAL, LOADING = 1 << 6, 1 << 7  # flags of messages


@dataclass(eq=False)
class User:
    """A person, or the bot."""

    id: int
    name: str
    is_bot: bool = False


@dataclass(eq=False)
class Role:
    """A role of a server; the one with the server's own id is @everyone."""

    id: int
    name: str
    permissions: int
    position: int


@dataclass(eq=False)
class Member:
    """A user in a server."""

    user: User
    joined_s: float
    roles: list[Role] = field(default_factory=list)


@dataclass(eq=False)
class Guild:
    """A server."""

    id: int
    name: str
    owner: User
    roles: dict[int, Role] = field(default_factory=dict)
    members: dict[int, Member] = field(default_factory=dict)
    channels: dict[int, "Channel"] = field(default_factory=dict)


@dataclass(frozen=True)
class Attachment:
    """A file of a message."""

    id: int
    name: str
    data: bytes = field(repr=False)
    content_type: str


@dataclass(frozen=True)
class State:
    """How a message was from a moment on. `change` is sent, edited, reacted, unreacted or deleted."""

    at_s: float
    change: str
    by: str
    content: str
    reactions: tuple[tuple[str, tuple[str, ...]], ...] = ()
    files: tuple[str, ...] = ()
    buttons: tuple[str, ...] = ()
    embeds: tuple[dict[str, Any], ...] = ()

    @property
    def emojis(self) -> tuple[str, ...]:
        """The emoji that it had, in the order in which they came."""
        return tuple(emoji for emoji, _ in self.reactions)


@dataclass(eq=False)
class Message:
    """A message as it is now; `states` has all that it was."""

    id: int
    channel: "Channel"
    author: User
    sent_s: float
    content: str = ""
    edited_s: float | None = None
    embeds: list[dict[str, Any]] = field(default_factory=list)
    components: list[dict[str, Any]] = field(default_factory=list)
    attachments: list[Attachment] = field(default_factory=list)
    flags: int = 0
    nonce: str | None = None
    type: int = 0
    reply_to: "Message | None" = None
    reply_channel: int | None = None
    reply_id: int | None = None  # stays, when the message that was replied to is gone
    mentions: list[User] = field(default_factory=list)
    role_mentions: list[Role] = field(default_factory=list)
    everyone: bool = False
    pinged: tuple[str, ...] = ()  # names of those who would have been notified when it was sent; edits notify no one
    reactions: dict[str, list[User]] = field(default_factory=dict)
    interaction: Any = None  # the one that it answers
    thread: "Channel | None" = None
    is_deleted: bool = False
    only_for: User | None = None  # of an ephemeral message
    states: list[State] = field(default_factory=list, repr=False)

    @property
    def buttons(self) -> list[dict[str, Any]]:
        """The buttons and menus of its rows, as the bot described them."""
        return list(interactive(self.components))


def interactive(components: list[dict[str, Any]]) -> Any:
    """Yield what can be pressed, in containers and sections too."""
    for component in components:
        if component.get("type") in (2, 3, 5, 6, 7, 8):
            yield component
        yield from interactive(component.get("components", []))
        if accessory := component.get("accessory"):
            yield from interactive([accessory])


@dataclass(eq=False)
class Channel:
    """A text channel, a thread or a private conversation."""

    id: int
    name: str
    type: int = TEXT
    guild: Guild | None = None
    parent: "Channel | None" = None
    recipient: User | None = None
    owner: User | None = None
    created_s: float = 0.0
    overwrites: dict[int, Overwrite] = field(default_factory=dict)
    messages: dict[int, Message] = field(default_factory=dict)
    members: dict[int, float] = field(default_factory=dict)  # of a thread, with the time of joining

    @property
    def is_thread(self) -> bool:
        return self.type in (THREAD, PRIVATE_THREAD)

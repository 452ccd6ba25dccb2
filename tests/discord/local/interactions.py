"""Interactions: slash commands, completion and buttons, answered within 3 s and for 15 minutes by their token."""

import secrets
from dataclasses import dataclass, field
from typing import Any

from tests.discord.local import errors
from tests.discord.local.checks import check_choices
from tests.discord.local.payloads import channel_json, member_json, user_json
from tests.discord.local.permissions import permissions_of
from tests.discord.local.world import EPHEMERAL, LOADING, Channel, Message, User

__all__ = ["AUTOCOMPLETE", "COMMAND", "COMPONENT", "Interaction", "Interactions"]

COMMAND, COMPONENT, AUTOCOMPLETE, MODAL_SUBMIT = 2, 3, 4, 5  # types of interactions
PONG, MESSAGE, DEFERRED_MESSAGE, DEFERRED_UPDATE, UPDATE, CHOICES, MODAL = 1, 4, 5, 6, 7, 8, 9  # of answers
ACKNOWLEDGE_S, TOKEN_S = 3.0, 15 * 60.0
COMMAND_REPLY = 20  # type of a message that answers a command
MAX_ATTACHMENT = 10 << 20


@dataclass(eq=False)
class Interaction:
    """What a person did, and what the bot made of it. `answer` is the type of its first answer."""

    id: int
    type: int
    token: str
    user: User
    channel: Channel
    at_s: float
    data: dict[str, Any]
    source: Message | None = None  # with the button
    answer: int | None = None
    answered_s: float | None = None
    original: Message | None = None
    replies: list[Message] = field(default_factory=list)  # the original first, if it is a new message
    choices: list[dict[str, Any]] = field(default_factory=list)
    modal: dict[str, Any] | None = None


class Interactions:
    """All interactions of a hub, by token."""

    def __init__(self, hub: Any) -> None:
        self.hub = hub
        self.by_token: dict[str, Interaction] = {}

    def start(
        self, kind: int, user: User, channel: Channel, data: dict[str, Any], source: Message | None = None
    ) -> Interaction:
        """Tell the bot of something that a person did."""
        hub = self.hub
        interaction = Interaction(
            hub.new_id(), kind, secrets.token_urlsafe(48), user, channel, hub.clock(), data, source
        )
        self.by_token[interaction.token] = interaction
        hub.gateway.dispatch("INTERACTION_CREATE", lambda session: self.payload(interaction, session.sees_content))
        hub.journal.changed()
        return interaction

    def payload(self, interaction: Interaction, sees_content: bool) -> dict[str, Any]:
        hub, channel, guild = self.hub, interaction.channel, interaction.channel.guild
        may = str(permissions_of(interaction.user, channel))
        data: dict[str, Any] = {
            "id": str(interaction.id),
            "application_id": str(hub.bot.id),
            "type": interaction.type,
            "token": interaction.token,
            "version": 1,
            "data": interaction.data,
            "channel_id": str(channel.id),
            "channel": {**channel_json(channel, hub.bot), "permissions": may},
            "app_permissions": str(permissions_of(hub.bot, channel)),
            "locale": "en-US",
            "entitlements": [],
            "authorizing_integration_owners": {"0": str(guild.id) if guild else "0"},
            "context": 0 if guild else 1,
            "attachment_size_limit": MAX_ATTACHMENT,
        }
        if guild is not None:
            member = {**member_json(guild.members[interaction.user.id]), "permissions": may}
            partial = {"id": str(guild.id), "locale": "en-US", "features": []}
            data |= {"guild_id": str(guild.id), "guild": partial, "guild_locale": "en-US", "member": member}
        else:
            data["user"] = user_json(interaction.user)
        if interaction.source is not None:
            data["message"] = hub.message_json(interaction.source, sees_content=sees_content)
        return data

    def state(self, interaction: Interaction) -> str:
        """What the person sees of it: waiting, thinking, answered, or failed (nothing within 3 s)."""
        if interaction.answer is None:
            return "failed" if self.is_late(interaction) else "waiting"
        original = interaction.original
        return "thinking" if original is not None and original.flags & LOADING else "answered"

    def is_late(self, interaction: Interaction) -> bool:
        return bool(self.hub.clock() > interaction.at_s + ACKNOWLEDGE_S)

    def acknowledge(
        self, interaction_id: int, token: str, body: dict[str, Any], files: dict[int, tuple[str, bytes]]
    ) -> dict[str, Any]:
        """Take the first answer; returns what a request `with_response` gets."""
        interaction = self.by_token.get(token)
        if interaction is None or interaction.id != interaction_id:
            raise errors.unknown_interaction()
        if interaction.answer is None and self.is_late(interaction):
            self.hub.violate("interaction acknowledged after more than 3 s")
            raise errors.unknown_interaction()
        if interaction.answer is not None:
            raise errors.already_acknowledged()
        kind, data = body.get("type"), body.get("data") or {}
        self.carry_out(interaction, kind, data, files)
        interaction.answer, interaction.answered_s = kind, self.hub.clock()
        self.hub.journal.changed()
        return self.callback_json(interaction)

    def carry_out(
        self, interaction: Interaction, kind: Any, data: dict[str, Any], files: dict[int, tuple[str, bytes]]
    ) -> None:
        """Do what an answer of this type does; refused where it does not fit the interaction."""
        allowed = {
            COMMAND: (MESSAGE, DEFERRED_MESSAGE, MODAL),
            COMPONENT: (MESSAGE, DEFERRED_MESSAGE, DEFERRED_UPDATE, UPDATE, MODAL),
            AUTOCOMPLETE: (CHOICES,),
            MODAL_SUBMIT: (MESSAGE, DEFERRED_MESSAGE, DEFERRED_UPDATE, UPDATE),
        }
        if kind not in allowed[interaction.type]:
            raise errors.invalid_form("type", "INTERACTION_TYPE_INVALID", f"A response of type {kind} does not fit")
        if kind == MESSAGE:
            interaction.original = self.reply(interaction, data, files)
        elif kind == DEFERRED_MESSAGE:
            interaction.original = self.think(interaction, data.get("flags") or 0)
        elif kind == UPDATE:
            assert interaction.source is not None
            interaction.original = self.hub.change(interaction.source, data, files, self.hub.bot)
        elif kind == DEFERRED_UPDATE:
            interaction.original = interaction.source
        elif kind == CHOICES:
            check_choices("data.choices", data.get("choices") or [])
            interaction.choices = list(data.get("choices") or [])
        elif kind == MODAL:
            interaction.modal = data

    def reply(self, interaction: Interaction, body: dict[str, Any], files: dict[int, tuple[str, bytes]]) -> Message:
        """A new message that answers; an ephemeral one is in no channel and tells no one else."""
        message: Message = self.hub.make_message(interaction.channel, self.hub.bot, body, files)
        return self.place(interaction, message)

    def think(self, interaction: Interaction, flags: int) -> Message:
        """The placeholder of an answer that comes later."""
        hub = self.hub
        message = Message(hub.new_id(), interaction.channel, hub.bot, hub.clock())
        message.flags = LOADING | flags & EPHEMERAL
        return self.place(interaction, message)

    def place(self, interaction: Interaction, message: Message) -> Message:
        message.interaction, message.type = interaction, COMMAND_REPLY
        interaction.replies.append(message)
        if message.flags & EPHEMERAL:
            message.only_for = interaction.user
            self.hub.journal.record(message, "sent", self.hub.bot.name, self.hub.clock())
        else:
            self.hub.post(message)
        return message

    def callback_json(self, interaction: Interaction) -> dict[str, Any]:
        about: dict[str, Any] = {"id": str(interaction.id), "type": interaction.type}
        resource: dict[str, Any] = {"type": interaction.answer}
        if (message := interaction.original) is not None:
            about |= {
                "response_message_id": str(message.id),
                "response_message_loading": bool(message.flags & LOADING),
                "response_message_ephemeral": bool(message.flags & EPHEMERAL),
            }
            resource["message"] = self.hub.message_json(message)
        return {"interaction": about, "resource": resource}

    # -- by token

    def find(self, application_id: int, token: str) -> Interaction:
        """The interaction of a token that is still good."""
        interaction = self.by_token.get(token)
        if interaction is None or application_id != self.hub.bot.id:
            raise errors.unknown_webhook()
        if self.hub.clock() > interaction.at_s + TOKEN_S:
            self.hub.violate("interaction's token used after 15 minutes")
            raise errors.expired_token()
        if interaction.answer is None:
            raise errors.unknown_webhook()
        return interaction

    def message(self, interaction: Interaction, key: str) -> Message:
        """A message of an interaction: @original or its id."""
        candidates = (
            interaction.replies if interaction.original is None else [interaction.original, *interaction.replies]
        )
        for message in candidates:
            if (key == "@original" and message is interaction.original) or key == str(message.id):
                if message.is_deleted:
                    break
                return message
        raise errors.unknown_message()

    def edit(
        self, interaction: Interaction, key: str, body: dict[str, Any], files: dict[int, tuple[str, bytes]]
    ) -> Message:
        edited: Message = self.hub.change(self.message(interaction, key), body, files, self.hub.bot)
        return edited

    def follow_up(self, interaction: Interaction, body: dict[str, Any], files: dict[int, tuple[str, bytes]]) -> Message:
        """A further message; the first one after a deferred answer takes the placeholder's place."""
        original = interaction.original
        if original is not None and original.flags & LOADING and not original.is_deleted:
            return self.edit(interaction, "@original", body, files)
        return self.reply(interaction, body, files)

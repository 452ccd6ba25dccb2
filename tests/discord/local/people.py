"""What people do on the local Discord, and what they see: the part that tests write with."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.discord.local.faults import Fault
from tests.discord.local.hub import Hub
from tests.discord.local.interactions import AUTOCOMPLETE, COMMAND, COMPONENT, Interaction
from tests.discord.local.payloads import channel_json, member_json, role_json
from tests.discord.local.permissions import BITS, Overwrite, bits, permissions_of
from tests.discord.local.world import EPHEMERAL, Channel, Guild, Message, Role, State, User

__all__ = ["NotPossible", "People"]

SUBCOMMAND, GROUP = 1, 2  # types of options that hold options
LINK = 5  # style of a button that only opens an address


class NotPossible(Exception):
    """What Discord's own program would not let a person do."""


class People(Hub):
    """A hub with people. Names stand for people and channels wherever one is wanted."""

    # -- who and where

    def person(self, who: "User | str", guild: Guild | None = None) -> User:
        """The person of this name, who is made and joins the server (all servers) at the first mention."""
        if isinstance(who, User):
            return who
        user = next((one for one in self.users.values() if one.name == who), None) or self.add_user(who)
        for place in [guild] if guild else self.guilds.values():
            if user.id not in place.members:
                self.join(user, place)
        return user

    def channel(self, where: "Channel | str", guild: Guild | None = None) -> Channel:
        """The channel of this name; made in the first server, where there is none."""
        if isinstance(where, Channel):
            return where
        guilds = [guild] if guild else list(self.guilds.values())
        for place in guilds:
            for channel in place.channels.values():
                if channel.name == where:
                    return channel
        return self.add_channel(where, guilds[0])

    def dm(self, who: "User | str") -> Channel:
        """The private conversation of a person with the bot."""
        return self.direct(self.person(who))

    def role(self, name: str, *permissions: str, guild: Guild | None = None) -> Role:
        """A new role with these permissions."""
        place = guild or next(iter(self.guilds.values()))
        role = Role(self.new_id(), name, bits(*permissions), len(place.roles))
        place.roles[role.id] = role
        self.gateway.dispatch("GUILD_ROLE_CREATE", {"guild_id": str(place.id), "role": role_json(role)}, "guilds")
        return role

    def grant(self, who: "User | str", role: Role, guild: Guild | None = None) -> None:
        """Give a person (or the bot) a role."""
        place = guild or next(iter(self.guilds.values()))
        member = place.members[self.person(who).id]
        member.roles.append(role)
        if member.user is self.bot:
            data = {"guild_id": str(place.id), **member_json(member)}
            self.gateway.dispatch("GUILD_MEMBER_UPDATE", data)

    def forbid(self, where: "Channel | str", *permissions: str, who: User | None = None) -> None:
        """Take these permissions in a channel from the bot, or from `who`."""
        self.overwrite(self.channel(where), who or self.bot, deny=bits(*permissions))

    def permit(self, where: "Channel | str", *permissions: str, who: User | None = None) -> None:
        """Give these permissions in a channel to the bot, or to `who`."""
        self.overwrite(self.channel(where), who or self.bot, allow=bits(*permissions))

    def overwrite(self, channel: Channel, who: User, allow: int = 0, deny: int = 0) -> None:
        could_see = self.sees(channel)
        one = channel.overwrites.setdefault(who.id, Overwrite(1))
        one.allow, one.deny = one.allow & ~deny | allow, one.deny & ~allow | deny
        event = "CHANNEL_UPDATE" if self.sees(channel) and could_see else "CHANNEL_CREATE"
        if could_see and not self.sees(channel):
            event = "CHANNEL_DELETE"
        self.gateway.dispatch(event, channel_json(channel, self.bot), "guilds")

    # -- messages

    def say(
        self,
        where: "Channel | str",
        who: "User | str",
        text: str = "",
        *,
        reply_to: Message | None = None,
        files: Mapping[str, bytes] | None = None,
        mention: bool = False,
        ping: bool = True,
    ) -> Message:
        """Send a message as a person. `mention` puts the bot's mention first; `ping`: a reply notifies its author."""
        channel, author = self.channel(where), self.person(who)
        self.may(author, channel, "send_messages")
        body: dict[str, Any] = {"content": f"<@{self.bot.id}> {text}".strip() if mention else text}
        if reply_to is not None:
            body["message_reference"] = {"message_id": str(reply_to.id)}
            body["allowed_mentions"] = {"parse": ["users", "roles", "everyone"], "replied_user": ping}
        numbered = {i: (name, data) for i, (name, data) in enumerate((files or {}).items())}
        return self.post(self.make_message(channel, author, body, numbered))

    def edit(self, message: Message, text: str) -> Message:
        """Change what a person's message says."""
        return self.change(message, {"content": text}, {}, message.author)

    def delete(self, message: Message, who: "User | str | None" = None) -> None:
        """Delete a message, as its author or as a moderator."""
        self.remove(message, message.author if who is None else self.person(who))

    def react(self, message: Message, emoji: str, who: "User | str") -> None:
        self.set_reaction(message, emoji, self.person(who), present=True)

    def unreact(self, message: Message, emoji: str, who: "User | str") -> None:
        self.set_reaction(message, emoji, self.person(who), present=False)

    def open_thread(
        self, where: "Channel | str", who: "User | str", name: str, start: Message | None = None
    ) -> Channel:
        """Open a thread, from a message or on its own."""
        return self.add_thread(self.channel(where), name, self.person(who), start)

    def may(self, who: User, channel: Channel, *permissions: str) -> None:
        """Raise where a person lacks one of these permissions."""
        have = permissions_of(who, channel)
        for name in ("view_channel", *permissions):
            if not have & BITS[name]:
                raise NotPossible(f"{who.name} may not {name} in {channel.name}")

    # -- interactions

    def press(self, message: Message, button: str, who: "User | str", values: Sequence[str] = ()) -> Interaction:
        """Press a button by its label or custom id; `values` are the choices of a menu."""
        user = self.person(who)
        if message.is_deleted or message.only_for not in (None, user):
            raise NotPossible(f"{user.name} does not see this message")
        self.may(user, message.channel)
        named = [one for one in message.buttons if button in (one.get("label"), one.get("custom_id"))]
        if not named:
            raise NotPossible(f"no button {button!r}, only {[one.get('label') for one in message.buttons]}")
        part = named[0]
        if part.get("disabled") or part.get("style") == LINK:
            raise NotPossible(f"the button {button!r} is disabled or a link")
        data = {"custom_id": part["custom_id"], "component_type": part["type"]}
        data |= {"values": list(values)} if part["type"] != 2 else {}
        return self.interactions.start(COMPONENT, user, message.channel, data, message)

    def run(self, where: "Channel | str", who: "User | str", name: str, /, **options: Any) -> Interaction:
        """Use a slash command; a subcommand is named after a space."""
        user, channel = self.person(who), self.channel(where)
        return self.interactions.start(COMMAND, user, channel, self.command_data(channel, user, name, options))

    def complete(
        self, where: "Channel | str", who: "User | str", name: str, option: str, typed: str, /, **options: Any
    ) -> Interaction:
        """Type into an option with completion; the bot's choices arrive in `choices` of what is returned."""
        user, channel = self.person(who), self.channel(where)
        data = self.command_data(channel, user, name, {**options, option: typed}, focused=option)
        return self.interactions.start(AUTOCOMPLETE, user, channel, data)

    def available(self, channel: Channel, user: User) -> list[dict[str, Any]]:
        """The commands that Discord offers a person in a channel."""
        guild = channel.guild
        found = [*self.commands[None], *(self.commands.get(guild.id, []) if guild else [])]
        have = permissions_of(user, channel)
        offered = []
        for command in found:
            needed = int(command.get("default_member_permissions") or 0)
            contexts = command.get("contexts")
            here = 0 if guild else 1
            private = command.get("dm_permission")
            fits = here in contexts if contexts else guild is not None or private is not False
            if fits and (guild is None or needed & have == needed):
                offered.append(command)
        return offered

    def command_data(
        self, channel: Channel, user: User, name: str, options: dict[str, Any], focused: str | None = None
    ) -> dict[str, Any]:
        """The data of an interaction, with the options' types as the bot registered them."""
        first, *path = name.split()
        named = [one for one in self.available(channel, user) if one["name"] == first]
        if not named:
            raise NotPossible(f"{user.name} is not offered /{first} in {channel.name}")
        at = command = named[-1]
        inner: list[dict[str, Any]] = []
        data = {"id": command["id"], "name": first, "type": command["type"], "options": inner}
        if channel.guild is not None and "guild_id" in command:
            data["guild_id"] = command["guild_id"]
        for part in path:
            at = next((one for one in at.get("options") or [] if one["name"] == part), {})
            if at.get("type") not in (SUBCOMMAND, GROUP):
                raise NotPossible(f"/{first} has no subcommand {part!r}")
            deeper: list[dict[str, Any]] = []
            inner.append({"name": part, "type": at["type"], "options": deeper})
            inner = deeper
        known = {one["name"]: one for one in at.get("options") or []}
        if unknown := set(options) - set(known):
            raise NotPossible(f"/{name} has no option {sorted(unknown)}, only {sorted(known)}")
        missing = [one for one, spec in known.items() if spec.get("required") and one not in options]
        if missing and focused is None:
            raise NotPossible(f"/{name} needs {missing}")
        for option, value in options.items():
            spec = known[option]
            values = [choice["value"] for choice in spec.get("choices") or []]
            if values and value not in values and option != focused:
                raise NotPossible(f"/{name} {option} must be one of {values}")
            one = {"name": option, "type": spec["type"], "value": value}
            inner.append({**one, "focused": True} if option == focused else one)
        return data

    async def answered(self, interaction: Interaction, timeout_s: float = 5.0) -> Interaction:
        """Wait until the bot has acknowledged, or until Discord says that the interaction failed."""
        await self.journal.until(
            lambda: self.interactions.state(interaction) != "waiting", timeout_s, "no answer to the interaction"
        )
        return interaction

    def fail(self, route: str, status: int | str, times: int = 1, **more: Any) -> Fault:
        """Script a fault of the next requests of a route, by its short name; see `Fault`."""
        return self.faults.add(Fault(route, status, times, **more))

    # -- what they see

    @staticmethod
    def states(message: Message) -> list[State]:
        """Everything that a message was, in order."""
        return list(message.states)

    def replies(self, message: Message) -> list[Message]:
        """The messages of the bot that reply to this one, in order, without those that are deleted."""
        found = [one for one in message.channel.messages.values() if one.reply_to is message]
        return sorted((one for one in found if one.author is self.bot), key=lambda one: one.id)

    def visible(self, channel: Channel, user: User) -> list[Message]:
        """What a person sees of a channel: its messages, and those that only they see."""
        private = [
            one
            for interaction in self.interactions.by_token.values()
            for one in interaction.replies
            if one.flags & EPHEMERAL and one.only_for is user and one.channel is channel and not one.is_deleted
        ]
        return sorted([*channel.messages.values(), *private], key=lambda one: one.id)

    def invalid_requests(self, within_s: float = 600.0) -> int:
        """How many requests Discord would count towards a ban (10,000 in 10 minutes): 401, 403 and own 429s."""
        since = self.clock() - within_s
        return sum(
            one.at_s >= since and one.status in (401, 403, 429) and one.headers.get("X-RateLimit-Scope") != "shared"
            for one in self.journal.requests
        )

    def violations(self, *kinds: str) -> list[str]:
        """What no well-behaved client does, of these kinds or of all."""
        found = [one for one in self.journal.violations if not kinds or one.what in kinds]
        return [f"{one.what}: {one.request.name} {one.request.path}" if one.request else one.what for one in found]

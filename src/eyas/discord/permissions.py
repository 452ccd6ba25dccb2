"""Decides who is answered where, and who is an operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eyas.discord.settings.schema import Access, Lists, Operators

__all__ = ["Asker", "Denial", "allows", "denial", "is_operator"]

Denial = Literal["direct_messages", "server", "channel", "role", "person"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asker:
    """A person and where they ask, by ids. `channels` are the channel, of a thread also its channel, and a category.

    In a direct message there are neither server nor roles.
    """

    person: int
    channels: tuple[int, ...] = ()
    server: int | None = None
    roles: frozenset[int] = frozenset()


def is_operator(operators: Operators, asker: Asker) -> bool:
    """Return whether a person runs the bot. Roles count where they are known, in a server."""
    return asker.person in operators.people or not asker.roles.isdisjoint(operators.roles)


def allows(access: Access, operators: Operators, asker: Asker) -> bool:
    """Return whether a person is answered."""
    return denial(access, operators, asker) is None


def denial(access: Access, operators: Operators, asker: Asker) -> Denial | None:
    """Return what keeps a person from being answered, None if nothing does. Operators always are.

    A list of allowed people or roles lets in who is on either of them. In a direct message roles are not known.
    """
    if is_operator(operators, asker):
        return None
    if asker.server is None:
        if not access.direct_messages:
            return "direct_messages"
    elif not _passes(access.servers, (asker.server,)):
        return "server"
    elif not _passes(access.channels, asker.channels):
        return "channel"
    if asker.person in access.people.deny:
        return "person"
    if not asker.roles.isdisjoint(access.roles.deny):
        return "role"
    if not access.people.allow and not access.roles.allow:
        return None
    is_listed = asker.person in access.people.allow or not asker.roles.isdisjoint(access.roles.allow)
    return None if is_listed else "person" if access.people.allow else "role"


def _passes(lists: Lists, ids: tuple[int, ...]) -> bool:
    found = set(ids)
    return found.isdisjoint(lists.deny) and (not lists.allow or not found.isdisjoint(lists.allow))

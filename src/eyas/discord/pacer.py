"""Decides what may be sent to a channel, and when: the newest state of each message, no more often than is allowed.

One pacer serves one channel. The bot says what messages are to look like; `next` returns a request that may go out now,
and what became of it comes back with Discord's headers. Of one message one request is on its way at a time, so no older
state can be shown after a newer one; of each kind, too, since each answer says how many more may go. Pure: times come
from the caller, in seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

__all__ = ["Kind", "Pacer", "Rate", "Send"]

ContentT = TypeVar("ContentT")
Kind = Literal["create", "edit", "delete", "react"]  # each is limited by itself, as Discord's routes are
NEVER = float("-inf")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """Headers of an answer: `X-RateLimit-Remaining`, and `X-RateLimit-Reset-After` in seconds."""

    remaining: int
    reset_after_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Send(Generic[ContentT]):
    """A request. `content` is for a message to create or edit; `emoji` is to be added to a message, or removed."""

    number: int
    kind: Kind
    key: Hashable
    content: ContentT | None = None
    emoji: str = ""
    is_added: bool = True


@dataclass(slots=True)
class _Message(Generic[ContentT]):
    """A message: what it shows, what it is to show, and its reactions in the order in which they are wanted."""

    exists: bool
    shown: ContentT | None = None
    wanted: ContentT | None = None
    wanted_at: float = NEVER
    is_final: bool = False
    is_removed: bool = False
    is_away: bool = False  # a request for its content is on its way
    free_at: float = NEVER  # when its next edit may go, unless it is the last one
    reactions: list[tuple[str, bool]] = field(default_factory=list)
    has: set[str] = field(default_factory=set)
    is_released: bool = False

    @property
    def is_due(self) -> bool:
        return self.wanted is not None and self.wanted != self.shown


@dataclass(frozen=True, slots=True)
class _Ready(Generic[ContentT]):
    """A request that may go, if no limit is on: since when, and the place of its message among all."""

    kind: Kind
    key: Hashable
    message: _Message[ContentT]
    since: float
    order: int


class Pacer(Generic[ContentT]):
    """Wanted states in, requests out.

    Edits of a message are `edit_every_s` apart, counted from the answer to the one before, the last one (`is_final`)
    excepted. All edits of the channel are spread over what Discord's headers leave. Reactions wait for all else, and
    while a limit is on, only their last state counts.
    """

    def __init__(self, *, edit_every_s: float = 2.0) -> None:
        self.edit_every_s = edit_every_s
        self._messages: dict[Hashable, _Message[ContentT]] = {}
        self._away: dict[int, Send[ContentT]] = {}
        self._number = 0
        self._blocked: dict[Kind, float] = {}  # until when nothing of a kind may go
        self._blocked_all = NEVER
        self._tight_until = NEVER  # a 429 is on
        self._spread_until = NEVER  # when the next edit may go that is not the last one of its message

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way and nothing is wanted that is not shown."""
        return not self._away and not any(
            one.is_due or one.reactions or one.is_removed for one in self._messages.values()
        )

    def knows(self, key: Hashable) -> bool:
        """Return whether a message is known and not to be deleted."""
        return key in self._messages and not self._messages[key].is_removed

    def is_due(self, key: Hashable) -> bool:
        """Return whether a message is to show something else than it does."""
        return key in self._messages and self._messages[key].is_due

    def adopt(self, key: Hashable, content: ContentT | None = None) -> None:
        """Take over a message that is there already: one that was sent otherwise, or one that only gets reactions."""
        self._messages.setdefault(key, _Message(exists=True, shown=content))

    def want(self, key: Hashable, content: ContentT, now: float, *, is_final: bool = False) -> None:
        """Set what a message is to show; a new one is created, after those that were wanted before it.

        The last state (`is_final`) waits for no interval. One whose deletion is on its way is created again behind it.
        """
        message = self._messages.setdefault(key, _Message(exists=False))
        message.is_removed = message.is_removed and self._is_being_deleted(key)
        if not message.is_due:
            message.wanted_at = now
        message.wanted, message.is_final = content, is_final

    def react(self, key: Hashable, emoji: str, now: float, *, is_added: bool = True) -> None:
        """Add or remove a reaction of the bot, after those that were wanted before."""
        message = self._messages.setdefault(key, _Message(exists=True))
        message.reactions.append((emoji, is_added))
        if now < self._tight_until:
            self._shorten(key)

    def remove(self, key: Hashable) -> None:
        """Delete a message; one that was not created yet never is."""
        message = self._messages.get(key)
        if message is not None and (message.exists or message.is_away):
            message.is_removed, message.wanted, message.reactions = True, None, []
        else:
            self._messages.pop(key, None)

    def release(self, key: Hashable) -> None:
        """Forget a message as soon as it shows what is wanted: nothing more will be."""
        if key in self._messages:
            self._messages[key].is_released = True
            self._drop_if_settled(key)

    def forget(self, key: Hashable) -> None:
        """Send nothing more for a message: it was deleted by others."""
        self._messages.pop(key, None)

    def next(self, now: float) -> Send[ContentT] | None:
        """Return a request that may go now, None if there is none. It is on its way until its outcome is said."""
        ready = [one for one in self._ready() if self._at(one) <= now]
        if not ready:
            return None
        # what has waited longest goes first, so no message waits for another one for ever
        found = min(ready, key=lambda one: (one.kind == "react", one.since, one.order))
        return self._start(found)

    def next_at(self) -> float | None:
        """Return when `next` has something at the earliest if nothing else happens, None if it has nothing."""
        return min(map(self._at, self._ready()), default=None)

    def done(self, send: Send[ContentT], now: float, rate: Rate | None = None) -> None:
        """Note that a request succeeded, and what its headers leave."""
        self._learn(send.kind, now, rate)
        message = self._end(send)
        if message is None:
            return
        if send.kind == "react":
            (message.has.add if send.is_added else message.has.discard)(send.emoji)
        elif send.kind == "delete":
            self._deleted(send.key, message)
        else:
            message.exists, message.shown, message.free_at = True, send.content, now + self.edit_every_s
        if send.key in self._messages:
            self._drop_if_settled(send.key)

    def postpone(self, send: Send[ContentT], now: float, after_s: float, *, is_global: bool = False) -> None:
        """Put a request back that got a 429 or no answer. Its kind waits for `after_s`, with `is_global` everything.

        What is sent then is the newest state.
        """
        until = now + after_s
        if is_global:
            self._blocked_all = max(self._blocked_all, until)
        else:
            self._block(send.kind, until)
        self._tight_until = max(self._tight_until, until)
        message = self._end(send)
        if message is not None and send.kind == "react" and not message.is_removed:
            message.reactions.insert(0, (send.emoji, send.is_added))
        for key in self._messages:
            self._shorten(key)

    def failed(self, send: Send[ContentT], now: float, rate: Rate | None = None) -> None:
        """Give a request up that can never succeed: its reaction, or all of its message."""
        self._learn(send.kind, now, rate)
        if self._end(send) is not None:
            if send.kind != "react":
                del self._messages[send.key]
            else:
                self._drop_if_settled(send.key)

    def _deleted(self, key: Hashable, message: _Message[ContentT]) -> None:
        """Forget a message, or begin it again where it is wanted since."""
        del self._messages[key]
        if message.wanted is not None:
            self._messages[key] = _Message(
                exists=False, wanted=message.wanted, wanted_at=message.wanted_at, is_final=message.is_final
            )

    def _is_being_deleted(self, key: Hashable) -> bool:
        return any(send.kind == "delete" and send.key == key for send in self._away.values())

    def _ready(self) -> Iterator[_Ready[ContentT]]:
        """Yield what may go next of each message, where nothing of its kind is on its way: each answer's headers say
        whether another one may go. Messages are created in the order in which they were wanted, and deleted from the
        last one on: what is wanted again meanwhile has its place behind those that stay.
        """
        away = {send.kind for send in self._away.values()}
        may_create = True
        for order, (key, one) in enumerate(self._messages.items()):
            kinds: list[tuple[Kind, float]] = []
            if one.is_removed:
                kinds = [("delete", NEVER)]
            elif one.is_due and one.exists:
                kinds = [("edit", one.wanted_at if one.is_final else max(one.wanted_at, one.free_at))]
            elif one.is_due and may_create:
                may_create, kinds = False, [("create", one.wanted_at)]
            if one.is_away:
                kinds = []
            if one.reactions and one.exists:
                kinds.append(("react", NEVER))
            for kind, since in kinds:
                if kind not in away:
                    yield _Ready(kind, key, one, since, -order if kind == "delete" else order)

    def _at(self, ready: _Ready[ContentT]) -> float:
        """Return when something may go at the earliest."""
        at = max(ready.since, self._blocked_all, self._blocked.get(ready.kind, NEVER))
        return max(at, self._spread_until) if ready.kind == "edit" and not ready.message.is_final else at

    def _start(self, ready: _Ready[ContentT]) -> Send[ContentT]:
        message = ready.message
        self._number += 1
        if ready.kind == "react":
            emoji, is_added = message.reactions.pop(0)
            send: Send[ContentT] = Send(
                number=self._number, kind="react", key=ready.key, emoji=emoji, is_added=is_added
            )
        else:
            message.is_away = True
            content = None if ready.kind == "delete" else message.wanted
            send = Send(number=self._number, kind=ready.kind, key=ready.key, content=content)
        self._away[send.number] = send
        return send

    def _end(self, send: Send[ContentT]) -> _Message[ContentT] | None:
        """Take a request off its way and return its message, None if that was forgotten meanwhile."""
        del self._away[send.number]
        message = self._messages.get(send.key)
        if message is not None and send.kind != "react":
            message.is_away = False
        return message

    def _learn(self, kind: Kind, now: float, rate: Rate | None) -> None:
        if rate is None:
            return
        if rate.remaining <= 0:
            self._block(kind, now + rate.reset_after_s)
        elif kind == "edit":
            self._spread_until = now + rate.reset_after_s / (rate.remaining + 1)

    def _block(self, kind: Kind, until: float) -> None:
        self._blocked[kind] = max(self._blocked.get(kind, NEVER), until)

    def _shorten(self, key: Hashable) -> None:
        """Give up the reactions of a message that are on the way to those that it has in the end."""
        message = self._messages[key]
        has = set(message.has)
        for send in self._away.values():
            if send.kind == "react" and send.key == key:
                (has.add if send.is_added else has.discard)(send.emoji)
        last = dict(message.reactions)
        changes = [(emoji, is_added) for emoji, is_added in last.items() if (emoji in has) != is_added]
        message.reactions = sorted(changes, key=lambda change: change[1])  # removals first

    def _drop_if_settled(self, key: Hashable) -> None:
        message = self._messages[key]
        is_waited_for = any(send.key == key for send in self._away.values())
        if message.is_released and not (is_waited_for or message.is_due or message.reactions or message.is_removed):
            del self._messages[key]

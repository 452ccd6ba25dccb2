"""What of an answer is shown, and the next step towards what is wanted. Pure: the caller carries the step out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from eyas.discord.conversation import Shown, Wanted

__all__ = ["CardState", "Step"]

StepKind = Literal["send", "edit", "delete", "react", "unreact"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One request to Discord. `place` is that of the message in the answer; `message_id` is None for a new one."""

    kind: StepKind
    place: int = 0
    message_id: int | None = None
    shown: Shown | None = None
    emoji: str | None = None


class CardState:
    """The messages of an answer and the bot's reaction on its question, as Discord has confirmed them."""

    def __init__(self, message_ids: Iterable[int] = ()) -> None:
        self._messages: list[tuple[int, Shown | None]] = [(one, None) for one in message_ids]  # None: unknown
        self._reaction: str | None = None
        self._is_reacting = True

    @property
    def message_ids(self) -> tuple[int, ...]:
        """The messages of the answer in their order."""
        return tuple(message_id for message_id, _ in self._messages)

    def message_step(self, wanted: Wanted) -> Step | None:
        """Return the next step of the messages, from the first one on; None if all is as wanted."""
        for place, shown in enumerate(wanted.messages):
            if place == len(self._messages):
                return Step(kind="send", place=place, shown=shown)
            message_id, now = self._messages[place]
            if now != shown:
                return Step(kind="edit", place=place, message_id=message_id, shown=shown)
        if len(self._messages) > len(wanted.messages):
            place = len(self._messages) - 1
            return Step(kind="delete", place=place, message_id=self._messages[place][0])
        return None

    def reaction_step(self, wanted: Wanted) -> Step | None:
        """Return the next step of the reactions; at the end they wait for the messages."""
        if not self._is_reacting or self._reaction == wanted.reaction:
            return None
        if wanted.is_final and self.message_step(wanted) is not None:
            return None
        if self._reaction is not None:
            return Step(kind="unreact", emoji=self._reaction)
        return Step(kind="react", emoji=wanted.reaction)

    def done(self, step: Step, message_id: int | None = None) -> None:
        """Take in that a step was carried out; `message_id` is that of a new message."""
        match step.kind:
            case "send":
                assert message_id is not None
                self._messages.append((message_id, step.shown))
            case "edit":
                assert step.message_id is not None
                self._messages[step.place] = (step.message_id, step.shown)
            case "delete":
                self._messages.pop()
            case "react":
                self._reaction = step.emoji
            case "unreact":
                self._reaction = None

    def give_up_reactions(self) -> None:
        """Take no more steps of reactions: they may not be given here, or the question is gone."""
        self._is_reacting = False

"""Buttons below answers. All that they need stands in their ids, so that they work after a restart, too."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import discord
from eyas.discord.conversation import Button

if TYPE_CHECKING:
    Buttons = discord.ui.Button[discord.ui.View]
else:
    Buttons = discord.ui.Button

__all__ = ["AnswerButton", "Pressed", "view_of"]

LABELS: dict[Button, tuple[str, discord.ButtonStyle]] = {
    "stop": ("Stop", discord.ButtonStyle.danger),
    "again": ("Again", discord.ButtonStyle.primary),
    "reasoning": ("Reasoning", discord.ButtonStyle.secondary),
}


class Pressed(Protocol):
    """The bot, as far as buttons need it."""

    async def pressed(
        self, interaction: discord.Interaction[Any], button: Button, question_id: int, person_id: int
    ) -> None:
        """Do what the button below an answer to a question of a person says."""


class AnswerButton(
    discord.ui.DynamicItem[Buttons], template=r"eyas:(?P<what>stop|again|reasoning):(?P<question>\d+):(?P<person>\d+)"
):
    """A button of the answer to a question, with the id of who asked it."""

    def __init__(self, what: Button, question_id: int, person_id: int) -> None:
        label, style = LABELS[what]
        custom_id = f"eyas:{what}:{question_id}:{person_id}"
        super().__init__(discord.ui.Button(label=label, style=style, custom_id=custom_id))
        self._what: Button = what
        self._question_id, self._person_id = question_id, person_id

    @classmethod
    async def from_custom_id(
        cls, interaction: discord.Interaction[Any], item: discord.ui.Item[Any], match: re.Match[str], /
    ) -> AnswerButton:
        """Return the button that an id stands for."""
        what: Any = match["what"]
        return cls(what, int(match["question"]), int(match["person"]))

    async def callback(self, interaction: discord.Interaction[Any]) -> None:
        """Hand it on to the bot."""
        bot: Pressed = interaction.client
        await bot.pressed(interaction, self._what, self._question_id, self._person_id)


def view_of(buttons: Sequence[Button], question_id: int, person_id: int) -> discord.ui.View | None:
    """Return the buttons of a message; None for none."""
    if not buttons:
        return None
    view = discord.ui.View(timeout=None)
    for button in buttons:
        view.add_item(AnswerButton(button, question_id, person_id))
    return view

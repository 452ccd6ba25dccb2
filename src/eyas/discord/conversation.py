"""The life of one answer: what happens goes in, what should be seen comes out. Knows no clock and nothing of Discord.

waiting (thinking reaction) -- first text --> writing (writing reaction) -- the end --> done
   a fallback is asked: back to waiting, with a line on top of why and who answers
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from eyas.client.errors import ClientError, Refused, TimedOut
from eyas.client.pieces import Asked, Call, Content, End, Piece, Reasoning, Usage, Waiting
from eyas.discord.metrics import Outcome
from eyas.discord.settings.schema import MAX_MESSAGE_CHARS, Display
from eyas.discord.text.chunks import split, units
from eyas.discord.words import NO_ANSWER, ONLY_REASONING, note, reason_for_people, waiting_line

__all__ = ["Button", "Conversation", "Shown", "Wanted"]

Button = Literal["stop", "again", "reasoning"]
Phase = Literal["waiting", "writing", "done", "failed", "stopped"]
BLANK = "-# \u00b7"  # a message that is blank is refused


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """One message of an answer; `file` is the text of a Markdown file that hangs on it."""

    text: str
    buttons: tuple[Button, ...] = ()
    file: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """The state that should be seen now: the messages of the answer, and one reaction of the bot on the question."""

    messages: tuple[Shown, ...]
    reaction: str | None
    is_final: bool


class Conversation:
    """One answer with `model`."""

    def __init__(self, model: str, *, display: Display, has_fallback: bool = False) -> None:
        self._model = model
        self._display = display
        self._has_fallback = has_fallback
        self._notes: list[str] = []
        self._phase: Phase = "waiting"
        self._answerer: str | None = None  # a fallback that was asked
        self._head: str | None = None  # why it was
        self._waiting: Waiting | None = None
        self._text = ""
        self._reasoning = ""
        self._verdict: str | None = None  # what stands in the place of an answer that did not come
        self._error: ClientError | None = None
        self._wanted: Wanted | None = None  # until something changes: to cut a long text takes milliseconds
        self.usage: Usage | None = None

    @property
    def text(self) -> str:
        """The model's text so far."""
        return self._text

    @property
    def reasoning(self) -> str:
        """The model's reasoning so far."""
        return self._reasoning

    @property
    def phase(self) -> Phase:
        """The phase that it is in."""
        return self._phase

    @property
    def outcome(self) -> Outcome:
        """The way in which it ended."""
        match self._phase:
            case "done":
                return "done" if self._text.strip() else "empty"
            case "stopped":
                return "stopped"
            case "failed" if self._error is None:
                return "cut"
            case _:
                return "timed_out" if isinstance(self._error, TimedOut) else "failed"

    @property
    def is_over(self) -> bool:
        """Whether nothing more is taken."""
        return self._phase not in ("waiting", "writing")

    def set_notes(self, notes: Sequence[str]) -> None:
        """Set the lines that are said below the answer."""
        self._wanted = None
        self._notes = list(notes)

    def take(self, piece: Piece) -> None:
        """Take the next piece of the client's stream."""
        if self.is_over:
            return
        self._wanted = None
        match piece:
            case Asked(is_fallback=True):
                self._falls_back(piece)
            case Waiting():
                self._waiting = piece
            case Reasoning(text=text):
                self._waiting = None
                self._reasoning += text
            case Content(text=text):
                self._waiting = None
                self._text += text
                if self._text.strip():
                    self._phase = "writing"
            case Call(name=name):
                self._notes.append(f"The model wanted to call {name}, and has no tools here.")
            case End():
                self._end(piece)

    def fail(self, error: ClientError, line: str | None = None) -> None:
        """End it with an error of the client, which `line` says in better words; what was shown stays."""
        if self.is_over:
            return
        self._wanted = None
        self._phase, self._error = "failed", error
        if line is not None:
            self._verdict = line
            return
        if self._text.strip():
            self._notes.insert(0, f"The answer was cut off here: {reason_for_people(error)}.")
            return
        line = self._line_of(error)
        if line is None:
            self._verdict = note(f"{_capital(reason_for_people(error))}.")
        elif self._head is not None:
            self._verdict = note(f"The fallback gave no answer either: {reason_for_people(error)}.")
        else:
            why = "" if self._has_fallback else " No fallback is set up."
            self._verdict = f"{line}\n{note(f'{_capital(reason_for_people(error))}.{why}')}"

    def stop(self, name: str) -> None:
        """End it since a person called `name` wants so."""
        if not self.is_over:
            self._phase, self._wanted = "stopped", None
            self._notes.insert(0, f"Stopped by {name}.")

    def end_unfinished(self, line: str) -> None:
        """End it for a reason of the bot's own, in one line."""
        if not self.is_over:
            self._phase, self._wanted = "failed", None
            self._notes.insert(0, line)

    def wanted(self) -> Wanted:
        """Return what should be seen now."""
        if self._wanted is None:
            self._wanted = self._made()
        return self._wanted

    def _made(self) -> Wanted:
        display = self._display
        reaction = {
            "waiting": display.thinking_reaction,
            "writing": display.writing_reaction,
            "done": display.done_reaction,
        }.get(self._phase)
        pieces, rest = self._pieces()
        messages = [Shown(text=piece) for piece in pieces]
        last = Shown(text=pieces[-1], buttons=self._buttons(), file=rest)
        return Wanted(messages=(*messages[:-1], last), reaction=reaction, is_final=self.is_over)

    def _falls_back(self, asked: Asked) -> None:
        self._answerer = asked.model or asked.endpoint
        self._waiting = None
        self._reasoning = ""
        if self._head is None:
            self._head = (asked.reason and self._line_of(asked.reason)) or self._display.fallback

    def _line_of(self, error: ClientError) -> str | None:
        """Return the operator's text for a kind of error; None where a fallback would not help."""
        match error:
            case TimedOut():
                return self._display.timed_out_after(error.seconds)
            case Refused():
                return None
            case _:
                return self._display.fallback

    def _end(self, end: End) -> None:
        self._phase = "done"
        self.usage = end.usage
        if end.finish_reason == "length":
            count = "" if end.usage is None else f" of {end.usage.completion_tokens:,} tokens"
            self._notes.insert(0, f"The answer reached its limit{count} and ends here.")
        elif end.finish_reason == "content_filter":
            self._notes.insert(0, "The server's content filter ended the answer here.")

    def _pieces(self) -> tuple[list[str], str | None]:
        """Return the texts of the messages, and what goes into a file."""
        head = [] if self._head is None else [self._head]
        if not self._text.strip():
            lines = head + self._instead_of_text()
            return ["\n".join(lines)[:MAX_MESSAGE_CHARS]], None
        if self._answerer is not None:
            head.append(note(f"Answer of {self._answerer}"))
        display = self._display
        chunks = split("\n".join([*head, self._text]), display.chunk_chars, max_chunks=display.max_chunks)
        pieces = [chunk.text if chunk.source.strip() else BLANK for chunk in chunks.pieces]
        notes = self._notes if self.is_over else []
        if chunks.file is not None:
            where = "is in the file" if self.is_over else "comes as a file"
            notes = [f"The {'rest' if pieces else 'answer'} {where}.", *notes]
        shown = _with_notes(pieces, [note(line) for line in notes])
        file = chunks.file if self.is_over else None
        return shown, None if file is None else file.opening + file.source

    def _instead_of_text(self) -> list[str]:
        """Return the lines of a reply that has no text of the model, or none yet."""
        notes = [note(line) for line in self._notes]
        match self._phase:
            case "waiting":
                lines = [self._display.thinking_with(self._answerer or self._model)]
                if self._waiting is not None:
                    return [*lines, note(waiting_line(self._waiting))]
                return [*lines, note("Reasoning...")] if self._reasoning else lines
            case "done" if self._reasoning.strip():
                return [ONLY_REASONING, *notes]
            case "done":
                return [NO_ANSWER, *notes]
            case _:
                return [*([] if self._verdict is None else [self._verdict]), *notes]

    def _buttons(self) -> tuple[Button, ...]:
        if not self.is_over:
            return ("stop",)
        return ("again", "reasoning") if self._reasoning.strip() else ("again",)


def _with_notes(pieces: list[str], notes: list[str]) -> list[str]:
    """Return the messages with notes below the last one, or in one of their own."""
    if not notes:
        return pieces
    below = "\n".join(notes)
    joined = f"{pieces[-1]}\n{below}" if pieces else below
    return [*pieces[:-1], joined] if units(joined) <= MAX_MESSAGE_CHARS else [*pieces, below[:MAX_MESSAGE_CHARS]]


def _capital(line: str) -> str:
    return line[:1].upper() + line[1:]

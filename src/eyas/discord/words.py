"""The words of the bot itself, beside the model's text: states, reasons, notes.

Notes begin with a mark, so that the model never gets them back as something that it had said.
"""

from __future__ import annotations

import re

from eyas.client.errors import Broken, CircuitOpen, ClientError, Refused, ServerBusy, Span, TimedOut
from eyas.client.pieces import Waiting
from eyas.discord.settings.schema import Display

__all__ = [
    "NO_ANSWER",
    "ONLY_REASONING",
    "about",
    "note",
    "reason_for_log",
    "reason_for_people",
    "said_by_model",
    "waiting_line",
]

MARK = "-# \u00b7 "  # subtext with a middle dot
NOTES = re.compile(rf"^{re.escape(MARK)}.*$\n?", re.MULTILINE)
PLACES = re.compile(r"\{model\}|\{limit\}")
NO_ANSWER = "*The model answered nothing.*"
ONLY_REASONING = "*The model reasoned, and gave no answer.*"
MAX_WORDS = 300  # characters of what a server says
WAITED: dict[Span, str] = {
    "queue": "no place in the queue became free",
    "loading": "the model was not loaded",
    "prefill": "no text came",
    "stall": "no further text came",
    "total": "the answer was not complete",
}


def note(text: str) -> str:
    """Return a line of the bot's own below or above an answer."""
    return MARK + " ".join(text.split())


def said_by_model(text: str, display: Display) -> str:
    """Return a message of the bot without what the bot says itself: of one that only waits nothing is left."""
    text = NOTES.sub("", text)
    for template in (display.fallback, display.timed_out, display.thinking, NO_ANSWER, ONLY_REASONING):
        parts = map(re.escape, PLACES.split(template))
        text = re.sub(rf"\A{'.*?'.join(parts)}(?:\n|\Z)", "", text, count=1)
    return text.strip()


def waiting_line(waiting: Waiting) -> str:
    """Return what a question waits for, as the server says it."""
    eta = "" if waiting.eta_s is None else f", about {about(waiting.eta_s)}"
    match waiting.state:
        case "queued":
            place = "" if waiting.position is None else f", place {waiting.position}"
            return f"Waiting in the queue{place}{eta}"
        case "loading":
            return f"The model is being loaded{eta}"
        case _:
            return f"Reading the prompt{eta}"


def about(seconds: float) -> str:
    """Return a time for people: `40 s`, `3 min`."""
    return f"{max(seconds, 1):.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def reason_for_people(error: ClientError) -> str:
    """Return in one line why an endpoint gave no answer. No address of a server is in it."""
    match error:
        case CircuitOpen():
            return f"it failed several times; it is tried again in {about(error.retry_in_s)}"
        case TimedOut():
            return f"{WAITED[error.span]} within {error.seconds:g} s"
        case ServerBusy():
            wait = "later" if error.retry_after_s is None else f"in {about(error.retry_after_s)}"
            return f"the server is busy; try again {wait}"
        case Refused():
            return f"the server refused it: {_shortened(error.message)}"
        case _:
            return "the connection to the server broke, or there was none"


def reason_for_log(error: ClientError) -> str:
    """Return why an endpoint gave no answer, without the words of a server: they may quote what was asked."""
    match error:
        case Refused():
            reason = f"it answers {error.status}"
        case ServerBusy():
            reason = "it is busy"
        case Broken():
            reason = f"the connection or the answer broke ({error.kind})"
        case _:
            return str(error)
    return f"{error.endpoint}: {reason}"


def _shortened(words: str) -> str:
    words = " ".join(words.split())
    return words if len(words) <= MAX_WORDS else f"{words[: MAX_WORDS - 6]} [...]"

"""Rules of what counts as a failure of a server, for the breakers of the router and of the client.

Failures are connections that are refused or break, errors of the server (5xx), spent budgets, and answers that are
none. No failures are a full server (429), a model that is being loaded, a mistake of the request (other 4xx), and a
client that leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

__all__ = [
    "BREAKING",
    "FAILURES",
    "FailureKind",
    "Verdict",
    "error_message",
    "is_mistake",
    "message_of",
    "status_of",
    "verdict_of",
]

# refused: no connection. broken: the connection ended before the answer. status: 5xx. budget: prefill, stall or total
# spent. malformed: an answer or a stream that is none. The guard ended it: degenerate, one_symbol (repeats one symbol).
FailureKind = Literal["refused", "broken", "status", "budget", "malformed", "degenerate", "one_symbol"]
FAILURES: tuple[FailureKind, ...] = get_args(FailureKind)
BREAKING: frozenset[FailureKind] = frozenset({"refused", "broken", "status", "budget", "malformed"})  # count

# full: it takes no request now. loading: its model is being loaded. mistake: the request is wrong, or not allowed.
Verdict = Literal["full", "loading", "failure", "mistake"]
MISTAKES = ("invalid_", "BadRequest", "context_length", "request_too_large")
MAX_MESSAGE = 300


def verdict_of(status: int, message: str) -> Verdict:
    """Return what an answer with an error's status means; `message` is what it says."""
    if status == 429:
        return "full"
    if status == 503 and "loading" in message.lower():  # llama-server: "Loading model"
        return "loading"
    return "failure" if status >= 500 else "mistake"


def status_of(error: Any) -> int | None:
    """Return the HTTP status that an error has as its code, as vLLM's, SGLang's and llama-server's do; None if none."""
    code = error.get("code") if isinstance(error, Mapping) else None
    if isinstance(code, str) and len(code) == 3 and code.isdecimal():
        code = int(code)
    return code if isinstance(code, int) and 400 <= code < 600 else None


def is_mistake(error: Any) -> bool:
    """Return whether an error is about what the client sent, by OpenAI's, vLLM's and Anthropic's types and codes."""
    if not isinstance(error, Mapping):
        return False
    if (status := status_of(error)) is not None:
        return 400 <= status < 500 and status not in (401, 407, 429)  # about a key, or about other requests
    kinds = [kind for kind in (error.get("type"), error.get("code")) if isinstance(kind, str)]
    return "invalid_api_key" not in kinds and any(kind.startswith(MISTAKES) for kind in kinds)


def error_message(value: Any) -> str | None:
    """Return the message of an error in any envelope; None if there is no error."""
    error = value.get("error") if isinstance(value, dict) else None
    if not error:
        return None
    message = error.get("message") if isinstance(error, dict) else error
    return message[:MAX_MESSAGE] if isinstance(message, str) and message else "it sent an error"


def message_of(value: Any) -> str:
    """Return what the decoded body of an error says, on one line; "" if it says nothing."""
    found = error_message(value)
    if found is None and isinstance(value, dict):
        found = next((said for name in ("message", "detail") if isinstance(said := value.get(name), str)), None)
    return " ".join((found or "").split())[:MAX_MESSAGE]

"""Errors of the client. Each message says what happened and what to do; none holds a key."""

from __future__ import annotations

import math
from typing import Literal

from eyas.base.errors import EyasError
from eyas.base.serving.failures import FailureKind
from eyas.client.call import Call

__all__ = ["Broken", "CircuitOpen", "ClientError", "Closed", "Refused", "ServerBusy", "Span", "Stalled", "TimedOut"]

# Which time is spent: waiting in the router's queue or for a full server, for a model that is loaded, for the first
# token, for the next one, for all of it.
Span = Literal["queue", "loading", "prefill", "stall", "total"]
ADVICE: dict[Span, str] = {
    "queue": "ask again later, or give the queue more time (queue_s)",
    "loading": "look at the server's log for what keeps the model from loading",
    "prefill": "send a shorter prompt, or give the first token more time (prefill_s)",
    "stall": "look at the server's log, and ask again",
    "total": "ask for fewer tokens, or give the answer more time (total_s)",
}
WAITED: dict[Span, str] = {
    "queue": "no place became free",
    "loading": "the model was not loaded",
    "prefill": "no token came",
    "stall": "no further token came",
    "total": "the answer was not complete",
}


class ClientError(EyasError):
    """No whole answer came. Base of all errors of the client.

    `endpoint` names the server. `text`, `reasoning` and `calls` are what had come of the answer; the last call may be
    cut. `before` are the errors of the endpoints that were asked before this one. `kind` is what counts for the
    breaker; None: nothing.
    """

    def __init__(self, message: str, *, endpoint: str = "", kind: FailureKind | None = None) -> None:
        super().__init__(f"{endpoint}: {message}" if endpoint else message)
        self.endpoint = endpoint
        self.kind: FailureKind | None = kind
        self.text = ""
        self.reasoning = ""
        self.calls: tuple[Call, ...] = ()
        self.before: tuple[ClientError, ...] = ()


class CircuitOpen(ClientError):
    """The server failed too often and is not asked; in `retry_in_s` seconds one request may try it."""

    def __init__(self, retry_in_s: float, *, failures: int, endpoint: str = "") -> None:
        again = f"ask again in {math.ceil(retry_in_s)} s"
        super().__init__(f"it failed {failures} times in a row and is not asked now; {again}", endpoint=endpoint)
        self.retry_in_s = retry_in_s


class Closed(ClientError):
    """The program closed the client before the answer was complete."""

    def __init__(self, *, endpoint: str = "") -> None:
        super().__init__("the client was closed before the answer; close it later", endpoint=endpoint)


class TimedOut(ClientError, TimeoutError):
    """A budget of time is spent before the answer: `span` says which, `seconds` how long it is."""

    def __init__(
        self, span: Span, seconds: float, *, endpoint: str = "", kind: FailureKind | None = None, detail: str = ""
    ) -> None:
        said = detail or f"{WAITED[span]} within {seconds:g} s"
        super().__init__(f"{said}; {ADVICE[span]}", endpoint=endpoint, kind=kind)
        self.span: Span = span
        self.seconds = seconds


class Stalled(TimedOut):
    """The answer began, and then nothing came for `seconds`."""

    def __init__(self, seconds: float, *, endpoint: str = "") -> None:
        super().__init__("stall", seconds, endpoint=endpoint, kind="budget")


class ServerBusy(ClientError):
    """The server has no room, or loads its model. `retry_after_s` is what it names, None if nothing."""

    def __init__(
        self,
        message: str,
        retry_after_s: float | None,
        *,
        endpoint: str = "",
        kind: FailureKind | None = None,
        is_loading: bool = False,
    ) -> None:
        again = "later" if retry_after_s is None else f"in {math.ceil(retry_after_s)} s"
        super().__init__(f"it is busy ({message}); ask again {again}", endpoint=endpoint, kind=kind)
        self.retry_after_s = retry_after_s
        self.is_loading = is_loading


class Refused(ClientError):
    """The server answers with an error: `status` and, as `message`, its own words."""

    def __init__(self, status: int, message: str, *, endpoint: str = "", kind: FailureKind | None = None) -> None:
        super().__init__(f"it answers {status}: {message}; {_remedy(status)}", endpoint=endpoint, kind=kind)
        self.status = status
        self.message = message


class Broken(ClientError):
    """The connection or the answer broke: what had come is in `text`, `reasoning` and `calls`."""

    def __init__(self, message: str, *, kind: FailureKind, endpoint: str = "", remedy: str = "") -> None:
        super().__init__(f"{message}; {remedy or _REMEDIES.get(kind, AGAIN)}", endpoint=endpoint, kind=kind)


AGAIN = "look at the server's log, and ask again"
_REMEDIES: dict[FailureKind, str] = {
    "refused": "start the server, or correct base_url",
    "malformed": "check that base_url leads to an OpenAI endpoint",
}


def _remedy(status: int) -> str:
    match status:
        case 401 | 403 | 407:
            return "check api_key"
        case 404:
            return "check model and base_url"
        case _ if status >= 500:
            return AGAIN
        case _:
            return "change the request"

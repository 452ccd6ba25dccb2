"""A client of every dialect that says exactly what came back: which pieces of whose mark, and how it ended."""

import json
import re
import time
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp

__all__ = ["PATHS", "Got", "ask", "body_of"]

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
PIECE = re.compile(r"\[(\w*) (\d+)/(\d+)\]")
LIMIT_S = 120

# done: a whole answer. error: a status of an error, or an error event, in the dialect's form. broken: the connection
# ended before the answer did, or it is none. refused: there was no connection, so nothing was asked.
Outcome = Literal["done", "error", "broken", "refused"]


@dataclass
class Got:
    """What a request got. Times are by `time.monotonic`."""

    mark: str
    path: str
    stream: bool
    outcome: Outcome = "broken"
    status: int | None = None
    text: str = ""
    message: str = ""  # of the error
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    comments: list[str] = field(default_factory=list)
    raw: bytes = b""
    sent: float = 0.0
    first: float | None = None  # the first text
    end: float = 0.0

    @property
    def seconds(self) -> float:
        return self.end - self.sent

    @property
    def pieces(self) -> list[tuple[str, int, int]]:
        """The numbered pieces: mark, number, and how many there are to be."""
        return [(mark, int(number), int(total)) for mark, number, total in PIECE.findall(self.text)]

    @property
    def backend(self) -> str | None:
        """Who answered: by signed pieces, else by the header, which cannot say it once a comment has been sent."""
        signed = [mark.split("_")[1] for mark, _, _ in self.pieces if "_" in mark]
        return signed[0] if signed else self.headers.get("x-eyas-backend")

    def what_is_wrong(self) -> str | None:
        """Why this is neither one whole answer nor one error with the beginning of an answer; None if it is."""
        pieces = self.pieces
        if PIECE.sub("", self.text):
            return f"text beside pieces: {PIECE.sub('', self.text)[:80]!r}"
        if any(mark.partition("_")[0] != self.mark for mark, _, _ in pieces):
            return f"a piece of another: {pieces}"
        if len({mark for mark, _, _ in pieces}) > 1:
            return f"pieces of several runs: {pieces}"
        if [number for _, number, _ in pieces] != list(range(1, len(pieces) + 1)):
            return f"pieces are lost, doubled or out of order: {pieces}"
        if self.outcome == "done" and (not pieces or len(pieces) != pieces[0][2]):
            return f"a whole answer with {len(pieces)} pieces: {pieces[:1]}"
        return None


def body_of(path: str, model: str, text: str, stream: bool, **fields: Any) -> dict[str, Any]:
    """Return a request's body with one text of the user."""
    body: dict[str, Any] = {"model": model, "stream": stream, **fields}
    if path == "/v1/chat/completions":
        return body | {"messages": [{"role": "user", "content": text}]}
    if path == "/v1/messages":
        return {"max_tokens": 1000} | body | {"messages": [{"role": "user", "content": text}]}
    return body | {"prompt" if path == "/v1/completions" else "input": text}


async def ask(
    session: aiohttp.ClientSession,
    url: str,
    script: dict[str, Any],
    *,
    model: str = "scripted",
    path: str = PATHS[0],
    stream: bool = True,
    headers: dict[str, str] | None = None,
    into: Got | None = None,
    **fields: Any,
) -> Got:
    """Ask for an answer by a script, and read it to its end; `into` is what a test looks at meanwhile."""
    got = into or Got("", path, stream)
    got.mark, got.path, got.stream, got.sent = str(script.get("mark", "")), path, stream, time.monotonic()
    body = body_of(path, model, json.dumps(script), stream, **fields)
    timeout = aiohttp.ClientTimeout(total=LIMIT_S)
    try:
        async with session.post(url + path, json=body, headers=headers, timeout=timeout) as response:
            got.status, got.headers = response.status, {name.lower(): one for name, one in response.headers.items()}
            if response.content_type == "text/event-stream":
                await _read_stream(response, got)
            else:
                got.raw = await response.read()
                _read_whole(got)
    except aiohttp.ClientConnectorError:
        got.outcome = "refused"
    except (aiohttp.ClientError, ConnectionError):
        got.outcome = "broken"
    got.end = time.monotonic()
    return got


async def _read_stream(response: aiohttp.ClientResponse, got: Got) -> None:
    rest = b""
    async for chunk in response.content.iter_any():
        got.raw += chunk
        *events, rest = (rest + chunk).split(b"\n\n")
        for event in events:
            _read_event(event.decode(), got)
    if rest:
        got.outcome = "broken"


def _read_event(event: str, got: Got) -> None:
    lines = event.split("\n")
    got.comments += [line for line in lines if line.startswith(":")]
    data = "\n".join(line[5:].strip() for line in lines if line.startswith("data:"))
    if not data:
        return
    if got.outcome in ("done", "error"):
        got.outcome, got.message = "broken", f"an event after the end: {data[:200]}"
    elif data == "[DONE]":
        got.outcome = "done"
    else:
        value = json.loads(data)
        kind = value.get("type")
        if "error" in value and value["error"] is not None:
            _read_error(value["error"], got)
        elif kind in ("error", "response.failed"):
            _read_error(value.get("response", {}).get("error") or value, got)
        elif kind in ("response.completed", "message_stop"):
            got.outcome = "done"
        elif text := _delta(value):
            got.first = got.first or time.monotonic()
            got.text += text


def _read_error(error: dict[str, Any], got: Got) -> None:
    got.outcome, got.message, got.code = "error", error["message"], error.get("code")


def _delta(value: dict[str, Any]) -> str:
    match value:
        case {"choices": [{"delta": {"content": str(text)}}, *_]} | {"choices": [{"text": str(text)}, *_]}:
            return text
        case {"choices": [{"delta": {"reasoning_content": str(text)}}, *_]}:
            return text
        case {"type": "response.output_text.delta", "delta": str(text)}:
            return text
        case {"type": "content_block_delta", "delta": {"text": str(text)}}:
            return text
    return ""


def _read_whole(got: Got) -> None:
    try:
        value = json.loads(got.raw)
        if got.status != 200:
            _read_error(value["error"], got)
            return
        got.text, got.outcome = _whole(value), "done"
        got.first = time.monotonic()
    except (ValueError, LookupError, TypeError):
        got.outcome, got.message = "broken", f"no answer: {got.raw[:200]!r}"


def _whole(value: dict[str, Any]) -> str:
    match value:
        case {"choices": [{"message": {"content": str(text)}}, *_]} | {"choices": [{"text": str(text)}, *_]}:
            return text
        case {"output": [*items]}:
            return "".join(part["text"] for item in items for part in item.get("content", ()))
        case {"type": "message", "content": [*blocks]}:
            return "".join(block.get("text", "") for block in blocks)
    raise ValueError("no answer of a dialect")

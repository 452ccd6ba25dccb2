"""What a scripted backend does with a request, and the events of its answers in each dialect."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import Struct

__all__ = ["DIALECTS", "Answer", "Script", "script_of", "user_text"]


class Script(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """How one request is answered. Without more it is a whole answer of numbered pieces that repeat `mark`.

    A request tells it as JSON in its newest user text, e.g. `{"mark": "m7", "pieces": 20}`: fields there win over those
    of the backend's own script. `on` has fields for one backend by its name, which win over all others.
    """

    mark: str = ""
    sign: bool = False  # pieces say which backend, and which of its requests, they are of: mark_NAME_NUMBER
    pieces: int = 4
    text: str | None = None  # instead of numbered pieces: sent in `pieces` parts; whole, all at once
    loop: str | None = None  # instead of numbered pieces: each piece is this
    thoughts: int = 0  # pieces of reasoning before the content
    before_s: float = 0.0  # before the status line
    first_s: float = 0.0  # after the opening events (the role), before the first piece
    between_s: float = 0.0  # before each other piece
    noise_s: float | None = None  # what is no progress, so often, while it waits inside an answer
    status: int = 200
    retry_after: str | None = None
    error: str = "the script says so"
    location: str | None = None  # of a redirect
    headers: Mapping[str, str] = {}
    html: bool = False  # a page instead of an answer
    body: str | None = None  # instead of an answer, as it is
    # rst: the connection is reset. cut: it is closed without the end of the body. short: the body ends well, but early.
    # hang: nothing more comes. error: the dialect's error event; of a whole answer, an error under a status of 200.
    end: Literal["", "rst", "cut", "short", "hang", "error"] = ""
    after: int | None = None  # pieces before `end`; None: before the status line, 0: after the opening events
    event_bytes: int = 0  # the first piece has so many bytes of text
    on: Mapping[str, Mapping[str, Any]] = {}


def user_text(body: Mapping[str, Any]) -> str:
    """Return the newest text of a request's user, whatever its dialect."""
    for name in ("messages", "input", "prompt"):
        value = body.get(name)
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            for item in reversed(value):
                if isinstance(item, str):
                    return item
                if isinstance(item, dict) and item.get("role") == "user":
                    content = item.get("content")
                    if isinstance(content, str):
                        return content
                    return "".join(part.get("text", "") for part in content or ())
    return ""


def script_of(text: str, base: Script, name: str) -> Script:
    """Return the script of a request with this user text at the backend `name`. Raises msgspec.ValidationError."""
    fields = json.loads(text) if text.startswith("{") else {}
    own = fields.get("on", {}).get(name, {})
    if not fields and name not in base.on:
        return base
    merged = {**msgspec.to_builtins(base), **base.on.get(name, {}), **fields, **own}
    return msgspec.convert(merged, Script)


def texts(script: Script) -> list[str]:
    """Return the pieces of an answer."""
    if script.loop is not None:
        pieces = [script.loop] * script.pieces
    elif script.text is not None:
        size = -(-len(script.text) // max(1, script.pieces)) or 1
        pieces = [script.text[at : at + size] for at in range(0, len(script.text), size)]
    else:
        pieces = [f"[{script.mark} {number}/{script.pieces}]" for number in range(1, script.pieces + 1)]
    if script.event_bytes and pieces:
        pieces[0] = pieces[0].ljust(script.event_bytes, "x")
    return pieces


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer in a dialect. `noise` is no progress; `error` is the event that may stand for the end."""

    opening: list[bytes]
    thoughts: list[bytes]
    pieces: list[bytes]
    closing: list[bytes]
    noise: list[bytes]
    error: bytes
    whole: bytes


def _data(value: object) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def _event(value: dict[str, Any]) -> bytes:
    return f"event: {value['type']}\n".encode() + _data(value)


def _thoughts(script: Script) -> list[str]:
    return [f"({script.mark} thought {number})" for number in range(1, script.thoughts + 1)]


def _chat(script: Script, model: str, body: Mapping[str, Any]) -> Answer:
    base = {"id": f"chatcmpl-{script.mark}", "created": 1, "model": model}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _data({**base, "object": "chat.completion.chunk", "choices": [choice]})

    pieces = texts(script)
    usage = {"prompt_tokens": 7, "completion_tokens": len(pieces), "total_tokens": 7 + len(pieces)}
    message = {"role": "assistant", "content": "".join(pieces)}
    if script.thoughts:
        message["reasoning_content"] = "".join(_thoughts(script))
    closing = [chunk({}, "stop")]
    if (body.get("stream_options") or {}).get("include_usage"):
        closing.append(_data({**base, "object": "chat.completion.chunk", "choices": [], "usage": usage}))
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return Answer(
        opening=[chunk({"role": "assistant", "content": ""})],
        thoughts=[chunk({"reasoning_content": text}) for text in _thoughts(script)],
        pieces=[chunk({"content": text}) for text in pieces],
        closing=[*closing, b"data: [DONE]\n\n"],
        noise=[b": ping\n\n", chunk({"content": ""})],
        error=_data({"error": {"message": script.error, "type": "server_error", "param": None, "code": None}}),
        whole=json.dumps({**base, "object": "chat.completion", "choices": [choice], "usage": usage}).encode(),
    )


def _completion(script: Script, model: str, body: Mapping[str, Any]) -> Answer:
    base = {"id": f"cmpl-{script.mark}", "object": "text_completion", "created": 1, "model": model}

    def chunk(text: str, finish: str | None = None) -> dict[str, Any]:
        return {**base, "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish}]}

    pieces = texts(script)
    usage = {"prompt_tokens": 7, "completion_tokens": len(pieces), "total_tokens": 7 + len(pieces)}
    return Answer(
        opening=[_data(chunk(""))],
        thoughts=[],
        pieces=[_data(chunk(text)) for text in pieces],
        closing=[_data(chunk("", "stop")), b"data: [DONE]\n\n"],
        noise=[b": ping\n\n", _data(chunk(""))],
        error=_data({"error": {"message": script.error, "type": "server_error", "param": None, "code": None}}),
        whole=json.dumps({**chunk("".join(pieces), "stop"), "usage": usage}).encode(),
    )


def _response(script: Script, model: str, body: Mapping[str, Any]) -> Answer:
    pieces, number = texts(script), iter(range(1 << 20))
    text = "".join(pieces)

    def event(kind: str, **fields: Any) -> bytes:
        return _event({"type": kind, "sequence_number": next(number), **fields})

    def response(status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        usage = {"input_tokens": 7, "output_tokens": len(pieces), "total_tokens": 7 + len(pieces)}
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        rest = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "error": None}
        base = {"id": f"resp_{script.mark}", "object": "response", "created_at": 1, "status": status, "model": model}
        done = {"usage": {**usage, **details}} if status == "completed" else {"usage": None}
        return {**base, "output": output, **rest, **done}

    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant"}
    whole = {**item, "status": "completed", "content": [part]}
    at = {"item_id": "msg_1", "output_index": 0}
    done = response("completed", [whole])
    return Answer(
        opening=[
            event("response.created", response=response("in_progress", [])),
            event("response.in_progress", response=response("in_progress", [])),
            event("response.output_item.added", output_index=0, item={**item, "status": "in_progress", "content": []}),
            event("response.content_part.added", **at, content_index=0, part={**part, "text": ""}),
        ],
        thoughts=[event("response.reasoning_text.delta", **at, content_index=0, delta=t) for t in _thoughts(script)],
        pieces=[event("response.output_text.delta", **at, content_index=0, delta=piece) for piece in pieces],
        closing=[
            event("response.output_text.done", **at, content_index=0, text=text),
            event("response.content_part.done", **at, content_index=0, part=part),
            event("response.output_item.done", output_index=0, item=whole),
            event("response.completed", response=done),
        ],
        noise=[b": ping\n\n"],
        error=_event({"type": "error", "code": "server_error", "message": script.error, "param": None}),
        whole=json.dumps(done).encode(),
    )


def _message(script: Script, model: str, body: Mapping[str, Any]) -> Answer:
    pieces, thoughts = texts(script), _thoughts(script)
    message = {"id": f"msg_{script.mark}", "type": "message", "role": "assistant", "model": model}
    usage = {"input_tokens": 7, "output_tokens": len(pieces)}
    blocks: list[dict[str, Any]] = [{"type": "text", "text": "".join(pieces)}]
    if thoughts:
        blocks.insert(0, {"type": "thinking", "thinking": "".join(thoughts), "signature": "s"})

    def delta(index: int, value: dict[str, str]) -> bytes:
        return _event({"type": "content_block_delta", "index": index, "delta": value})

    def start(index: int, block: dict[str, str]) -> bytes:
        return _event({"type": "content_block_start", "index": index, "content_block": block})

    at, first = len(blocks) - 1, {"type": "text", "text": ""}
    empty = {
        **message,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**usage, "output_tokens": 0},
    }
    opening = [_event({"type": "message_start", "message": empty})]
    end = {"type": "content_block_stop"}
    thinking = [start(0, {"type": "thinking", "thinking": "", "signature": ""})] if thoughts else []
    return Answer(
        opening=opening if thoughts else [*opening, start(0, first)],
        thoughts=[
            *thinking,
            *(delta(0, {"type": "thinking_delta", "thinking": text}) for text in thoughts),
            *([_event({**end, "index": 0}), start(1, first)] if thoughts else []),
        ],
        pieces=[delta(at, {"type": "text_delta", "text": text}) for text in pieces],
        closing=[
            _event({**end, "index": at}),
            _event(
                {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": usage}
            ),
            _event({"type": "message_stop"}),
        ],
        noise=[_event({"type": "ping"})],
        error=_event({"type": "error", "error": {"type": "api_error", "message": script.error}}),
        whole=json.dumps(
            {**message, "content": blocks, "stop_reason": "end_turn", "stop_sequence": None, "usage": usage}
        ).encode(),
    )


def _embedding(script: Script, model: str, body: Mapping[str, Any]) -> Answer:
    texts_ = body.get("input")
    num = len(texts_) if isinstance(texts_, list) else 1
    data = [{"object": "embedding", "index": index, "embedding": [0.25, -0.5]} for index in range(num)]
    whole = {"object": "list", "data": data, "model": model, "usage": {"prompt_tokens": 7, "total_tokens": 7}}
    return Answer(opening=[], thoughts=[], pieces=[], closing=[], noise=[], error=b"", whole=json.dumps(whole).encode())


DIALECTS: Mapping[str, Callable[[Script, str, Mapping[str, Any]], Answer]] = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _completion,
    "/v1/responses": _response,
    "/v1/messages": _message,
    "/v1/embeddings": _embedding,
}

"""Whole answers: whether a body is one, and what the model wrote in it."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from eyas.base.serving.failures import error_message
from eyas.gateway.http.explain import INVALID_JSON
from eyas.router.upstream.errors import UpstreamError

__all__ = ["check_whole", "stored_id", "text_of"]

CONTENT = {
    "/v1/chat/completions": "choices",
    "/v1/completions": "choices",
    "/v1/responses": "output",
    "/v1/messages": "content",
    "/v1/embeddings": "data",
}
_top = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Function(Struct):
    arguments: str | None = None


class _Call(Struct):
    function: _Function | None = None


class _Message(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(Struct):
    message: _Message | None = None
    text: str = ""


class _Choices(Struct):
    choices: list[_Choice]


class _Part(Struct):
    text: str = ""
    thinking: str = ""
    input: msgspec.Raw = msgspec.Raw()  # of a call


class _Item(Struct):
    content: list[_Part] | None = None
    arguments: str = ""


class _Output(Struct):
    output: list[_Item]


class _Content(Struct):
    content: list[_Part]


def check_whole(path: str, body: bytes) -> None:
    """Raises UpstreamError unless `body` is an answer to a request to `path`."""
    try:
        fields = _top.decode(body)
    except INVALID_JSON:
        raise UpstreamError("malformed", "its answer is no JSON object") from None
    message = error_message({"error": _plain(fields["error"])}) if "error" in fields else None
    if message is not None and "output" not in fields:  # a response that failed says so itself
        raise UpstreamError("status", message)
    if CONTENT[path] not in fields:
        raise UpstreamError("malformed", f"its answer has no '{CONTENT[path]}'")


def text_of(path: str, body: bytes) -> str:
    """Return what the model wrote in the first choice of a whole answer; "" where that is not text."""
    try:
        match path:
            case "/v1/chat/completions" | "/v1/completions":
                choices = msgspec.json.decode(body, type=_Choices).choices
                return _choice_text(choices[0]) if choices else ""
            case "/v1/responses":
                return "".join(_item_text(item) for item in msgspec.json.decode(body, type=_Output).output)
            case "/v1/messages":
                content = msgspec.json.decode(body, type=_Content).content
                return "".join(part.thinking + part.text + bytes(part.input).decode() for part in content)
    except INVALID_JSON:
        pass
    return ""


def _choice_text(choice: _Choice) -> str:
    message = choice.message
    if message is None:
        return choice.text
    text = (message.reasoning_content or message.reasoning or "") + (message.content or "")
    calls = message.tool_calls or []
    return text + "".join(call.function.arguments or "" for call in calls if call.function is not None)


def _item_text(item: _Item) -> str:
    return "".join(part.text for part in item.content or []) + item.arguments


def stored_id(body: bytes) -> str | None:
    """Return the id of a whole response."""
    try:
        found = _plain(_top.decode(body)["id"])
    except (*INVALID_JSON, KeyError):
        return None
    return found if isinstance(found, str) else None


def _plain(raw: msgspec.Raw) -> Any:
    return msgspec.json.decode(raw)

"""The body of `/v1/responses`: strictly checked fields, and the sampling parameters among them.

Fields that this server does not know or support are refused by name, never ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from eyas.base.errors import InvalidRequest
from eyas.base.harmony.tools import FunctionTool, check_tools, repeated
from eyas.base.types import MAX_COUNT, MAX_TOP_LOGPROBS
from eyas.gateway.http.body import Fields, Raw, decode
from eyas.gateway.http.explain import explain
from eyas.gateway.openai.fields import (
    CacheRetention,
    FunctionFields,
    Label,
    PlainStreamOptions,
    SchemaFields,
    ServiceTier,
    check_stream_options,
)
from eyas.gateway.openai.responses.items import InputItem, MessageItem
from eyas.gateway.openai.sampling import AskedEffort, SamplingFields

__all__ = [
    "LOGPROBS",
    "SCHEMA_FIELD",
    "AllowedTools",
    "NamedFunction",
    "ObjectFormat",
    "ResponsesBody",
    "SchemaFormat",
    "TextFormat",
    "decode_body",
    "function_tools",
    "input_items",
]

LOGPROBS = "message.output_text.logprobs"
IN_THE_CLEAR = "reasoning.encrypted_content"  # accepted: the reasoning to send back is always in `content`
MAX_METADATA = 16
MAX_TOOLS = 128
MAX_ITEMS = 10_000
ELSEWHERE = ("n", "prompt_logprobs")  # sampling fields that only chat and completions have
NAME_FIELD, SCHEMA_FIELD = "tools[{}].name", "tools[{}].parameters"


class TextFormat(Struct, tag="text", kw_only=True, forbid_unknown_fields=True):
    pass


class ObjectFormat(Struct, tag="json_object", kw_only=True, forbid_unknown_fields=True):
    pass


class SchemaFormat(SchemaFields, tag="json_schema", kw_only=True):
    pass


class TextOptions(Fields, kw_only=True):
    format: TextFormat | ObjectFormat | SchemaFormat | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningOptions(Fields, kw_only=True):
    """`summary` "auto" adds nothing: gpt-oss has no summaries, its whole reasoning is in the items' content."""

    effort: AskedEffort | None = None
    summary: Literal["auto"] | None = None
    generate_summary: None = None
    context: None = None
    mode: None = None


class FunctionBody(FunctionFields, tag="function", kw_only=True):
    output_schema: None = None
    allowed_callers: None = None
    defer_loading: None = None


class NamedFunction(Struct, tag="function", kw_only=True, forbid_unknown_fields=True):
    name: str


class AllowedTools(Struct, tag="allowed_tools", kw_only=True, forbid_unknown_fields=True):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunction], Meta(min_length=1)]


class ResponsesBody(SamplingFields, kw_only=True):
    """The request body. Labels (`user`, `metadata`, ...) are repeated in the response and change no answer."""

    input: str | Annotated[list[dict[str, Any]], Meta(max_length=MAX_ITEMS)]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: PlainStreamOptions | None = None  # usage needs no option: it is in the last event
    include: list[str] | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedFunction | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=MAX_COUNT)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    metadata: Annotated[dict[Annotated[str, Meta(max_length=64)], Label], Meta(max_length=MAX_METADATA)] | None = None
    user: Label | None = None
    prompt_cache_key: Label | None = None
    safety_identifier: Label | None = None
    service_tier: ServiceTier | None = None
    prompt_cache_retention: CacheRetention | None = None
    background: bool | None = None
    access_programs: None = None
    context_management: None = None
    conversation: None = None
    image: None = None
    max_tool_calls: None = None
    moderation: None = None
    prompt: None = None
    prompt_cache_options: None = None


class _Input(Struct):
    input: list[InputItem]


class _Tools(Struct):
    tools: list[FunctionBody]


def decode_body(raw: Raw) -> ResponsesBody:
    """Check and decode a body, except its items and tools. Raises InvalidRequest naming the field."""
    body = decode(raw, ResponsesBody)
    if body.background:
        raise InvalidRequest("background responses are not supported; leave it out, or stream", param="background")
    for name in ELSEWHERE:
        if getattr(body, name) is not None:
            raise InvalidRequest(f"'{name}' is not supported by this endpoint", param=name)
    check_stream_options(body.stream, body.stream_options)
    for index, name in enumerate(body.include or ()):
        if name not in (LOGPROBS, IN_THE_CLEAR):
            raise InvalidRequest(f"'{name}' cannot be included, '{LOGPROBS}' can", param=f"include[{index}]")
    if body.top_logprobs and LOGPROBS not in (body.include or ()):
        raise InvalidRequest(f"top_logprobs needs include=['{LOGPROBS}']", param="top_logprobs")
    return body


def input_items(body: ResponsesBody) -> list[InputItem]:
    """Return the items of `input`; one without a type is a message, or, if it has only an id, a reference."""
    if isinstance(body.input, str):
        return [MessageItem(role="user", content=body.input)]
    if not body.input:
        raise InvalidRequest("input is empty", param="input")
    items = [item if item.get("type") is not None else {**item, "type": _untyped(item)} for item in body.input]
    try:
        return msgspec.convert({"input": items}, _Input).input
    except msgspec.ValidationError as error:
        raise explain(str(error), _Input, {"input": items}) from error


def _untyped(item: dict[str, Any]) -> str:
    return "item_reference" if "role" not in item and "id" in item else "message"


def function_tools(body: ResponsesBody) -> list[FunctionTool]:
    """Return the functions of `tools`. Raises InvalidRequest for other kinds: this server does not run tools."""
    for index, tool in enumerate(body.tools or ()):
        if (kind := tool.get("type")) != "function":
            raise InvalidRequest(
                f"'tools[{index}].type': this server supports tools of type 'function' only, not {kind!r}",
                param=f"tools[{index}].type",
            )
    try:
        functions = msgspec.convert({"tools": body.tools or []}, _Tools).tools
    except msgspec.ValidationError as error:
        raise explain(str(error), _Tools, {"tools": body.tools}) from error
    declared = [function.tool for function in functions]
    check_tools(declared, name=NAME_FIELD, parameters=SCHEMA_FIELD)
    if repeated(declared) is not None:
        raise InvalidRequest("two tools have the same name", param="tools")
    return declared

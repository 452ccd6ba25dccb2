"""`/v1/chat/completions`: its body, and a body as a request to the engine.

Fields that this server does not know or does not have are refused by name, never ignored. A few are accepted because
they cannot change an answer: labels for the operator's records (`user`, `metadata`, `safety_identifier`,
`prompt_cache_key`), and what can only be as it is (`store: false`, `service_tier`, `prompt_cache_retention`).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta
from starlette.requests import Request as HttpRequest
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from eyas.base.errors import InvalidRequest
from eyas.base.harmony.rendering import render_conversation
from eyas.base.harmony.tools import FunctionTool, ResponseFormat, check_schema, check_tool_name
from eyas.base.types import MAX_TOP_LOGPROBS, Request
from eyas.gateway.grammar.checker import (
    AnswerFormat,
    JsonObject,
    JsonSchema,
    NamedTool,
    ToolChoice,
    answer_grammar,
    is_bound,
)
from eyas.gateway.http.body import Fields, Raw, decode
from eyas.gateway.openai.chat.messages import ChatMessages, conversation
from eyas.gateway.openai.chat.reply import ChatReply, ReplyOptions
from eyas.gateway.openai.common import StreamOptions, allowed_tools, answer, check_stream_options
from eyas.gateway.openai.structured import StructuredOutputs, structured_format
from eyas.gateway.question.prompt_limit import check_length, prompt_codec
from eyas.gateway.question.sampling import (
    AskedEffort,
    CacheRetention,
    SamplingFields,
    ServiceTier,
    effort_of,
    sampling_params,
    stops_of,
)
from eyas.gateway.question.service import check_model
from eyas.gateway.server.context import Context
from eyas.gateway.turn.readers import HarmonyReader
from eyas.gateway.turn.stops import Stops
from eyas.gateway.turn.turn import Turn

__all__ = ["FunctionEntries", "routes", "tools_of"]

PATH = "/v1/chat/completions"
MAX_TOOLS = 128

Label = Annotated[str, Meta(max_length=512)]


class FunctionDefinition(Fields, kw_only=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionEntry(Fields, kw_only=True):
    type: Literal["function"]
    function: FunctionDefinition


FunctionEntries = Annotated[list[FunctionEntry], Meta(max_length=MAX_TOOLS)]


class ChosenFunction(Fields, kw_only=True):
    name: str


class ChosenTool(Fields, tag="function", kw_only=True):
    function: ChosenFunction


class Allowed(Fields, kw_only=True):
    mode: Literal["auto", "required"]
    tools: Annotated[list[ChosenTool], Meta(min_length=1, max_length=MAX_TOOLS)]


class AllowedTools(Fields, tag="allowed_tools", kw_only=True):
    allowed_tools: Allowed


class SchemaFormat(Fields, kw_only=True):
    name: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None  # it is enforced in any case


class AnswerFormatField(Fields, kw_only=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None


class TemplateArguments(Fields, kw_only=True):
    reasoning_effort: AskedEffort | None = None


class ChatBody(SamplingFields, kw_only=True):
    """The request body. A field of type None is one of OpenAI's or vLLM's that this server lacks."""

    messages: ChatMessages
    model: str | None = None
    reasoning_effort: AskedEffort | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: TemplateArguments | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: AnswerFormatField | None = None
    structured_outputs: StructuredOutputs | None = None
    tools: FunctionEntries | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | AllowedTools | None = None
    parallel_tool_calls: bool | None = None  # gpt-oss makes one call a turn: both values are kept
    modalities: list[Literal["text"]] | None = None
    verbosity: Literal["medium"] | None = None
    service_tier: ServiceTier | None = None
    prompt_cache_retention: CacheRetention | None = None
    user: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    metadata: Annotated[dict[str, Label], Meta(max_length=16)] | None = None
    store: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    echo: bool | None = None
    functions: None = None
    function_call: None = None
    audio: None = None
    prediction: None = None
    web_search_options: None = None
    moderation: None = None
    chat_template: None = None
    documents: None = None
    add_special_tokens: None = None
    thinking_token_budget: None = None


# Switches that this server has in one position only.
FIXED = {"store": False, "add_generation_prompt": True, "continue_final_message": False, "echo": False}


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A checked body: what the engine is asked and how the answer is read and told."""

    request: Request
    stops: Stops
    functions: frozenset[str]
    reply: ReplyOptions
    is_stream: bool
    bound_by: str | None  # the field that binds the answer


def routes(context: Context) -> list[BaseRoute]:
    async def chat(http: HttpRequest) -> ASGIApp:
        prepared = await context.read(http, lambda raw: prepare(context, raw))
        reply = ChatReply(prepared.request, context.info.name, context.codec, prepared.reply)
        turn = Turn(
            context,
            prepared.request,
            lambda: HarmonyReader(context.codec, prepared.functions),
            route=PATH,
            stops=prepared.stops,
            param=prepared.bound_by,
        )
        chunks = reply.chunks if prepared.is_stream else None
        return await answer(http, turn.deltas(), close=turn.close, whole=reply.whole, chunks=chunks)

    return [Route(PATH, chat, methods=["POST"])]


def prepare(context: Context, raw: Raw) -> Prepared:
    """Check everything that can be checked without the engine. Raises InvalidRequest naming the field."""
    body = decode(raw, ChatBody)
    _check_switches(context, body)
    tools = tools_of(body.tools)
    choice, offered = _tool_choice(body, tools)
    wanted, bound_by = _answer_format(body)
    grammar = answer_grammar(tools=offered, tool_choice=choice, response=wanted)
    if grammar is not None:
        _check_bound(context, tools, offered, choice, wanted, bound_by)
    return Prepared(
        request=Request(
            request_id=f"chatcmpl-{uuid.uuid4().hex}",
            prompt_ids=_prompt_ids(context, body, offered),
            params=sampling_params(
                body,
                context.codec,
                context.options.defaults,
                max_tokens=body.max_completion_tokens if body.max_tokens is None else body.max_tokens,
                logprobs=_num_logprobs(body),
                grammar=grammar,
            ),
            cache_salt=body.cache_salt or "",
        ),
        stops=stops_of(body),
        functions=frozenset(tool.name for tool in offered),
        reply=ReplyOptions(
            stream=body.stream_options,
            with_logprobs=bool(body.logprobs),
            with_reasoning=body.include_reasoning is not False,
            with_token_ids=bool(body.return_token_ids),
            tokens_as_ids=bool(body.return_tokens_as_token_ids),
        ),
        is_stream=bool(body.stream),
        bound_by=bound_by or ("tools" if grammar is not None else None),
    )


def _check_switches(context: Context, body: ChatBody) -> None:
    check_model(context, body.model)
    check_stream_options(body.stream, body.stream_options)
    for name, only in FIXED.items():
        if getattr(body, name) not in (None, only):
            raise InvalidRequest(f"'{name}' can only be {str(only).lower()} with this server", param=name)
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise InvalidRequest("max_tokens and max_completion_tokens are one limit; give one", param="max_tokens")
    if body.stream and body.prompt_logprobs is not None:
        raise InvalidRequest("prompt_logprobs come with whole answers only, not with stream", param="prompt_logprobs")


def _num_logprobs(body: ChatBody) -> int | None:
    if body.top_logprobs is not None:
        if not body.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs=true", param="top_logprobs")
        if not 0 <= body.top_logprobs <= MAX_TOP_LOGPROBS:
            raise InvalidRequest(f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def _prompt_ids(context: Context, body: ChatBody, tools: tuple[FunctionTool, ...]) -> tuple[int, ...]:
    template = body.chat_template_kwargs
    asked = (body.reasoning_effort, None if template is None else template.reasoning_effort)
    efforts = {effort_of(effort) for effort in asked if effort is not None}
    if len(efforts) > 1:
        raise InvalidRequest("reasoning_effort is given twice, differently", param="reasoning_effort")
    codec = prompt_codec(context, "messages", tools)
    messages = conversation(
        body.messages,
        date=context.options.today().isoformat(),
        effort=next(iter(efforts), effort_of(None)),
        tools=tools,
        response_format=_told_format(body.response_format),
    )
    ids = tuple(render_conversation(codec, messages))
    check_length(context, len(ids), "messages")
    return ids


def _told_format(field: AnswerFormatField | None) -> ResponseFormat | None:
    """The schema as the model is told of it."""
    if field is None or field.json_schema is None:
        return None
    schema = field.json_schema
    return ResponseFormat(name=schema.name, schema=schema.schema, description=schema.description or "")


def tools_of(entries: list[FunctionEntry] | None) -> tuple[FunctionTool, ...]:
    """The declared functions. Raises InvalidRequest naming the tool and its field."""
    tools: dict[str, FunctionTool] = {}
    for index, entry in enumerate(entries or ()):
        function, where = entry.function, f"tools[{index}].function"
        check_tool_name(function.name, param=f"{where}.name")
        if function.name in tools:
            raise InvalidRequest(f"'{where}.name': there is a '{function.name}' already", param=f"{where}.name")
        if function.parameters is not None:
            check_schema(function.parameters, param=f"{where}.parameters")
        tools[function.name] = FunctionTool(
            name=function.name,
            description=function.description or "",
            parameters=function.parameters,
            strict=bool(function.strict),
        )
    return tuple(tools.values())


def _tool_choice(body: ChatBody, tools: tuple[FunctionTool, ...]) -> tuple[ToolChoice, tuple[FunctionTool, ...]]:
    """The choice, and the tools that the model is told of."""
    choice = body.tool_choice
    if isinstance(choice, AllowedTools):
        where = "tool_choice.allowed_tools"
        names = [one.function.name for one in choice.allowed_tools.tools]
        return choice.allowed_tools.mode, allowed_tools(tools, names, where=where, field="function.name")
    if isinstance(choice, ChosenTool):
        if not tools:
            raise InvalidRequest("tool_choice needs tools", param="tool_choice")
        return NamedTool(choice.function.name), tools
    return choice or "auto", () if choice == "none" else tools


def _answer_format(body: ChatBody) -> tuple[AnswerFormat | None, str | None]:
    """The format that the answer is bound to, and the field that says so."""
    plain, vllm = body.response_format, body.structured_outputs
    if vllm is not None:
        if plain is not None and plain.type != "text":
            raise InvalidRequest("response_format and structured_outputs exclude each other", param="response_format")
        return structured_format(vllm)
    if plain is None or plain.type == "text":
        return None, None
    if plain.type == "json_object":
        return JsonObject(), "response_format"
    if plain.json_schema is None:
        raise InvalidRequest("'response_format.json_schema' is missing", param="response_format.json_schema")
    where = "response_format.json_schema.schema"
    check_schema(plain.json_schema.schema, param=where)
    return JsonSchema(plain.json_schema.schema), where


def _check_bound(
    context: Context,
    tools: tuple[FunctionTool, ...],
    offered: tuple[FunctionTool, ...],
    choice: ToolChoice,
    wanted: AnswerFormat | None,
    bound_by: str | None,
) -> None:
    """Raises InvalidRequest for a schema or grammar that cannot be enforced."""
    if wanted is not None and bound_by is not None:
        context.checker.check_answer(wanted, param=bound_by)
    for index, tool in enumerate(tools):
        if tool in offered and is_bound(tool, choice):
            context.checker.check_tool(tool, param=f"tools[{index}].function.parameters")

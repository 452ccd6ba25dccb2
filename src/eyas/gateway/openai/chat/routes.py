"""`/v1/chat/completions`: the body, and its conversion to a request to the engine.

Fields that this server does not know or support are refused by name, never ignored. A few are accepted because they
cannot change an answer: labels for the operator's records (`user`, `metadata`, `safety_identifier`,
`prompt_cache_key`), and fields with one possible effect (`store: false`, `service_tier`, `prompt_cache_retention`).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta
from starlette.requests import Request as HttpRequest
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from eyas.base.errors import InvalidRequest
from eyas.base.harmony.conversation import Conversation
from eyas.base.harmony.openai_messages import MAX_TOOLS, SCHEMA_FIELD, check_functions, entries_of
from eyas.base.harmony.tools import FunctionTool, check_schema
from eyas.base.types import MAX_TOP_LOGPROBS
from eyas.gateway.grammar.checker import AnswerFormat, JsonObject, JsonSchema, NamedTool
from eyas.gateway.http.answer import answer
from eyas.gateway.http.body import Fields, Raw, decode
from eyas.gateway.openai.chat.messages import ChatMessages
from eyas.gateway.openai.chat.reply import ChatReply, ReplyOptions
from eyas.gateway.openai.common import DONE
from eyas.gateway.openai.fields import (
    CacheRetention,
    FunctionFields,
    Label,
    SchemaFields,
    ServiceTier,
    StreamOptions,
    allowed_tools,
    check_stream_options,
)
from eyas.gateway.openai.sampling import (
    AskedEffort,
    SamplingFields,
    effort_of,
    params_of,
    stops_of,
    with_token_fields,
)
from eyas.gateway.openai.structured import StructuredOutputs, structured_format
from eyas.gateway.question.engine_answers import EngineAnswers, EngineQuestion
from eyas.gateway.question.model import check_model
from eyas.gateway.question.question import FieldNames, Question
from eyas.gateway.question.tools import Offer, offer
from eyas.gateway.server.context import Context

__all__ = ["FunctionEntries", "routes", "tools_of"]

PATH = "/v1/chat/completions"


class FunctionDefinition(FunctionFields, kw_only=True):
    pass


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


class SchemaFormat(SchemaFields, kw_only=True):
    pass


class AnswerFormatField(Fields, kw_only=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None


class TemplateArguments(Fields, kw_only=True):
    reasoning_effort: AskedEffort | None = None


class ChatBody(SamplingFields, kw_only=True):
    """The request body. A field of type None is one of OpenAI's or vLLM's that this server does not support."""

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
    parallel_tool_calls: bool | None = None  # gpt-oss makes one call a turn: both values hold
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


# Switches that this server supports with one value only.
FIXED = {"store": False, "add_generation_prompt": True, "continue_final_message": False, "echo": False}


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A checked body: what the engine gets, and how its answer is formatted."""

    question: EngineQuestion
    reply: ReplyOptions
    is_stream: bool


def routes(context: Context) -> list[BaseRoute]:
    answers = EngineAnswers(context)

    async def chat(http: HttpRequest) -> ASGIApp:
        prepared = await context.read(http, lambda raw: prepare(context, raw))
        reply = ChatReply(prepared.question.request, context.info.name, context.codec, prepared.reply)
        turn = answers.ask(prepared.question, route=PATH)
        chunks = reply.chunks if prepared.is_stream else None
        return await answer(http, turn.deltas(), close=turn.close, whole=reply.whole, chunks=chunks, last=DONE)

    return [Route(PATH, chat, methods=["POST"])]


def prepare(context: Context, raw: Raw) -> Prepared:
    """Check everything that does not need the engine. Raises InvalidRequest naming the field."""
    body = decode(raw, ChatBody)
    _check_switches(context, body)
    offered = _tool_choice(body, tools_of(body.tools))
    wanted, answer_param = _answer_format(body)
    question = Question(
        request_id=f"chatcmpl-{uuid.uuid4().hex}",
        conversation=_conversation(context, body, offered),
        offer=offered,
        params=params_of(
            body,
            context.options.defaults,
            max_tokens=body.max_completion_tokens if body.max_tokens is None else body.max_tokens,
        ),
        fields=FieldNames(prompt="messages", schemas=SCHEMA_FIELD, answer_format=answer_param),
        answer_format=wanted,
        stops=stops_of(body),
        cache_salt=body.cache_salt or "",
    )
    prepared = EngineAnswers(context).prepare(question)
    params = with_token_fields(prepared.request.params, body, context.codec, logprobs=_num_logprobs(body))
    return Prepared(
        question=prepared.with_params(params),
        reply=ReplyOptions(
            stream=body.stream_options,
            with_logprobs=bool(body.logprobs),
            with_reasoning=body.include_reasoning is not False,
            with_token_ids=bool(body.return_token_ids),
            tokens_as_ids=bool(body.return_tokens_as_token_ids),
        ),
        is_stream=bool(body.stream),
    )


def _check_switches(context: Context, body: ChatBody) -> None:
    check_model(context, body.model)
    check_stream_options(body.stream, body.stream_options)
    for name, only in FIXED.items():
        if getattr(body, name) not in (None, only):
            raise InvalidRequest(f"'{name}' can only be {str(only).lower()} with this server", param=name)
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise InvalidRequest("max_tokens and max_completion_tokens are the same limit; give one", param="max_tokens")
    if body.stream and body.prompt_logprobs is not None:
        raise InvalidRequest("prompt_logprobs come with whole answers only, not with stream", param="prompt_logprobs")


def _num_logprobs(body: ChatBody) -> int | None:
    if body.top_logprobs is not None:
        if not body.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs=true", param="top_logprobs")
        if not 0 <= body.top_logprobs <= MAX_TOP_LOGPROBS:
            raise InvalidRequest(f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def _conversation(context: Context, body: ChatBody, offered: Offer) -> Conversation:
    template = body.chat_template_kwargs
    asked = (body.reasoning_effort, None if template is None else template.reasoning_effort)
    efforts = {effort_of(effort) for effort in asked if effort is not None}
    if len(efforts) > 1:
        raise InvalidRequest("reasoning_effort is given twice, differently", param="reasoning_effort")
    schema = None if body.response_format is None else body.response_format.json_schema
    return Conversation(
        entries=entries_of(body.messages),
        tools=offered.shown,
        answer_format=None if schema is None else schema.response_format,
        effort=next(iter(efforts), effort_of(None)),
        date=context.options.today().isoformat(),
    )


def tools_of(entries: list[FunctionEntry] | None) -> tuple[FunctionTool, ...]:
    """Return the declared functions. Raises InvalidRequest naming the tool and its field."""
    tools = tuple(entry.function.tool for entry in entries or ())
    check_functions(tools)
    return tools


def _tool_choice(body: ChatBody, tools: tuple[FunctionTool, ...]) -> Offer:
    """Return the tools for the choice; tools that are not allowed are left out of the prompt."""
    choice = body.tool_choice
    if isinstance(choice, AllowedTools):
        where = "tool_choice.allowed_tools"
        names = [one.function.name for one in choice.allowed_tools.tools]
        allowed = allowed_tools(tools, names, where=where, field="function.name")
        return Offer(declared=tools, shown=allowed, callable=allowed, choice=choice.allowed_tools.mode)
    return offer(tools, NamedTool(choice.function.name) if isinstance(choice, ChosenTool) else choice or "auto")


def _answer_format(body: ChatBody) -> tuple[AnswerFormat | None, str | None]:
    """Return the format that the answer is bound to, and the field that asks for it."""
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

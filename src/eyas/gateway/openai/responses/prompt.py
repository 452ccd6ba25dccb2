"""Converts a body of `/v1/responses` to an engine request: the prompt in Harmony, the grammar, the parameters."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
from msgspec import Struct

from eyas.base.harmony.conversation import Conversation
from eyas.base.harmony.tools import FunctionTool, check_schema
from eyas.base.types import Request
from eyas.gateway.grammar.checker import AnswerFormat, JsonObject, JsonSchema, NamedTool
from eyas.gateway.openai.fields import allowed_tools
from eyas.gateway.openai.responses.body import (
    LOGPROBS,
    SCHEMA_FIELD,
    AllowedTools,
    NamedFunction,
    ObjectFormat,
    ResponsesBody,
    SchemaFormat,
    TextFormat,
    function_tools,
)
from eyas.gateway.openai.responses.items import InputItem, Item, keep, to_entries
from eyas.gateway.openai.responses.store import Kept
from eyas.gateway.openai.responses.stream import ResponseObject
from eyas.gateway.openai.sampling import effort_of, params_of, stops_of, with_token_fields
from eyas.gateway.question.engine_answers import EngineAnswers, EngineQuestion
from eyas.gateway.question.question import FieldNames, Question
from eyas.gateway.question.tools import Offer, offer
from eyas.gateway.server.context import Context

__all__ = ["Prepared", "prepare"]


class _StoredResponse(Struct):
    output: list[Item]


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """One request, ready to run. `items` are those that its input adds to the conversation."""

    question: EngineQuestion
    response: ResponseObject
    items: tuple[Item, ...]
    is_stream: bool


def prepare(
    context: Context,
    body: ResponsesBody,
    items: Sequence[InputItem],
    *,
    stem: str,
    previous: Kept | None,
    referenced: Mapping[str, Kept],
) -> Prepared:
    """Check the body and render the prompt; `items` are the input's. Slow for long texts. Raises InvalidRequest."""
    offered = _tool_choice(body, function_tools(body))
    wanted, answer_param = _answer_format(body)
    kept = keep(items, stem, _items_of(referenced))
    history = [] if previous is None else [item for link in previous.chain() for item in stored_items(link)]
    asked = None if body.text is None else body.text.format
    question = Question(
        request_id=f"resp_{stem}",
        conversation=Conversation(
            entries=to_entries(history, kept),
            instructions=body.instructions,
            tools=offered.shown,
            answer_format=asked.response_format if isinstance(asked, SchemaFormat) else None,
            effort=effort_of(None if body.reasoning is None else body.reasoning.effort),
            date=context.options.today().isoformat(),
        ),
        offer=offered,
        params=params_of(body, context.options.defaults, max_tokens=body.max_output_tokens),
        fields=FieldNames(prompt="input", schemas=SCHEMA_FIELD, answer_format=answer_param),
        answer_format=wanted,
        stops=stops_of(body),
        cache_salt=body.cache_salt or "",
        newest=_newest(context, body) if body.truncation == "auto" else None,
    )
    prepared = EngineAnswers(context).prepare(question)
    logprobs = (body.top_logprobs or 0) if LOGPROBS in (body.include or ()) else None
    prepared = prepared.with_params(with_token_fields(prepared.request.params, body, context.codec, logprobs=logprobs))
    return Prepared(
        question=prepared,
        response=_response_object(context.info.name, body, prepared.request),
        items=tuple(kept),
        is_stream=bool(body.stream),
    )


def stored_items(kept: Kept) -> list[Item]:
    """Return the items that one response added to its conversation: input, then output."""
    answered = msgspec.json.decode(kept.response, type=_StoredResponse)
    return [*msgspec.json.decode(kept.input_items, type=list[Item]), *answered.output]


def _items_of(referenced: Mapping[str, Kept]) -> dict[str, Item]:
    """Return items by id; `referenced` maps each id to the response that holds the item."""
    return {
        item.id: item
        for kept in dict.fromkeys(referenced.values())
        for item in reversed(stored_items(kept))  # if two have the same id, the first counts
        if item.id is not None and referenced.get(item.id) is kept
    }


def _tool_choice(body: ResponsesBody, tools: Sequence[FunctionTool]) -> Offer:
    """Return the tools for the choice; those not allowed stay in the prompt, and a grammar prevents calls of them."""
    choice = body.tool_choice
    if isinstance(choice, AllowedTools):
        names = [allowed.name for allowed in choice.tools]
        allowed = allowed_tools(tools, names, where="tool_choice", field="name")
        strict = [replace(tool, strict=True) for tool in allowed]
        return Offer(declared=tools, shown=tools, callable=strict, choice=choice.mode)
    return offer(tools, NamedTool(choice.name) if isinstance(choice, NamedFunction) else choice or "auto")


def _answer_format(body: ResponsesBody) -> tuple[AnswerFormat | None, str | None]:
    """Return the format that the answer is bound to, and the field that asks for it."""
    match None if body.text is None else body.text.format:
        case SchemaFormat(schema=schema):
            where = "text.format.schema"
            check_schema(schema, param=where)
            return JsonSchema(schema), where
        case ObjectFormat():
            return JsonObject(), "text.format"
    return None, None


def _newest(context: Context, body: ResponsesBody) -> int:
    """Return how many tokens of the prompt are kept: a quarter of the context at most is left to the answer."""
    reserve = min(body.max_output_tokens or context.info.context, context.info.context // 4)
    return context.info.context - reserve


def _response_object(model: str, body: ResponsesBody, request: Request) -> ResponseObject:
    """Return the initial response: the request's fields, with the values in force."""
    text, reasoning, choice = body.text, body.reasoning, body.tool_choice
    return ResponseObject(
        id=request.request_id,
        created_at=int(time.time()),
        model=model,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning={"effort": effort_of(None if reasoning is None else reasoning.effort), "summary": None},
        safety_identifier=body.safety_identifier,
        store=body.store is not False,
        temperature=request.params.temperature,
        text={"format": (text and text.format) or TextFormat()},
        tool_choice=choice or "auto",
        tools=body.tools or [],
        top_logprobs=body.top_logprobs or 0,
        top_p=request.params.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
    )

"""Converts a body of `/v1/responses` to an engine request: the prompt in Harmony, the grammar, the parameters."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import msgspec
from msgspec import Struct

from eyas.base.conversation import Conversation, to_harmony
from eyas.base.errors import TooManyTokens
from eyas.base.harmony.rendering import Message, render_conversation, visible_messages
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
from eyas.gateway.question.prompt import prompt_ids
from eyas.gateway.question.prompt_limit import CountingCodec, check_length, prompt_codec
from eyas.gateway.question.sampling import effort_of, sampling_params, stops_of
from eyas.gateway.question.tools import Offer, bind, offer
from eyas.gateway.server.context import Context
from eyas.gateway.turn.stops import Stops

__all__ = ["Prepared", "prepare", "render_newest"]


class _StoredResponse(Struct):
    output: list[Item]


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """One request, ready to run. `items` are those that its input adds to the conversation."""

    request: Request
    response: ResponseObject
    items: tuple[Item, ...]
    stops: Stops
    functions: frozenset[str]
    bound_by: str | None  # the field that binds the answer
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
    answer, answer_param = _answer_format(body)
    binding = bind(context.checker, offered, answer, answer_param=answer_param, parameters=SCHEMA_FIELD)
    kept = keep(items, stem, _items_of(referenced))
    history = [] if previous is None else [item for link in previous.chain() for item in stored_items(link)]
    asked = None if body.text is None else body.text.format
    conversation = Conversation(
        entries=to_entries(history, kept),
        instructions=body.instructions,
        tools=offered.shown,
        answer_format=asked.response_format if isinstance(asked, SchemaFormat) else None,
        effort=effort_of(None if body.reasoning is None else body.reasoning.effort),
        date=context.options.today().isoformat(),
    )
    ids = _prompt_ids(context, body, conversation)
    params = sampling_params(
        body,
        context.codec,
        context.options.defaults,
        max_tokens=body.max_output_tokens,
        logprobs=(body.top_logprobs or 0) if LOGPROBS in (body.include or ()) else None,
        grammar=binding.grammar,
    )
    request = Request(request_id=f"resp_{stem}", prompt_ids=ids, params=params, cache_salt=body.cache_salt or "")
    return Prepared(
        request=request,
        response=_response_object(context.info.name, body, request),
        items=tuple(kept),
        stops=stops_of(body),
        functions=offered.functions,
        bound_by=binding.param,
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


def _prompt_ids(context: Context, body: ResponsesBody, conversation: Conversation) -> tuple[int, ...]:
    if body.truncation != "auto":
        return prompt_ids(context, conversation, param="input")
    reserve = min(body.max_output_tokens or context.info.context, context.info.context // 4)
    ids = render_newest(context, *to_harmony(conversation), limit=context.info.context - reserve)
    check_length(context, len(ids), "input")
    return tuple(ids)


def render_newest(
    context: Context, head: Sequence[Message], conversation: Sequence[Message], *, limit: int
) -> list[int]:
    """Return the prompt's ids without the oldest turns, so that at most `limit` ids remain. Only whole turns are
    dropped, each from a user's message to the next.

    `head` and the last turn always stay. Turns are rendered only until the limit is reached.
    """
    rest = visible_messages([*head, *conversation], prompted=True)[len(head) :]
    starts = [0, *(at for at, message in enumerate(rest) if at and message.role == "user"), len(rest)]
    turns = [rest[at:end] for at, end in pairwise(starts)]
    codec = prompt_codec(context, "input")
    ids = render_conversation(codec, head, purpose="history")
    kept = [render_conversation(codec, turns.pop(), drop_analysis=False)]
    num_ids = len(ids) + len(kept[0])
    while turns:
        older = CountingCodec(
            context.codec, limit - num_ids, error=lambda number: TooManyTokens(number, limit), param="input"
        )
        try:
            kept.append(render_conversation(older, turns.pop(), purpose="history", drop_analysis=False))
        except TooManyTokens:
            break
        num_ids += len(kept[-1])
        if num_ids > limit:
            kept.pop()
            break
    return [*ids, *chain.from_iterable(reversed(kept))]


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

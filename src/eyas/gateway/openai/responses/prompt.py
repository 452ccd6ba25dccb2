"""From a body of `/v1/responses` to what the engine gets: the prompt in Harmony, the grammar, the parameters."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import msgspec
from msgspec import Struct

from eyas.base.errors import TooManyTokens
from eyas.base.harmony.rendering import (
    Message,
    developer_message,
    render_conversation,
    system_message,
    visible_messages,
)
from eyas.base.harmony.tools import FunctionTool, ResponseFormat, check_schema
from eyas.base.types import Request
from eyas.gateway.grammar.checker import (
    AnswerFormat,
    GrammarChecker,
    JsonObject,
    JsonSchema,
    NamedTool,
    ToolChoice,
    answer_grammar,
    is_bound,
)
from eyas.gateway.openai.common import allowed_tools
from eyas.gateway.openai.responses.body import (
    LOGPROBS,
    AllowedTools,
    NamedFunction,
    ObjectFormat,
    ResponsesBody,
    SchemaFormat,
    TextFormat,
    function_tools,
)
from eyas.gateway.openai.responses.items import InputItem, Item, MessageItem, keep, text_of, to_messages
from eyas.gateway.openai.responses.store import Kept
from eyas.gateway.openai.responses.stream import ResponseObject
from eyas.gateway.question.prompt_limit import CountingCodec, check_length, prompt_codec
from eyas.gateway.question.sampling import effort_of, sampling_params, stops_of
from eyas.gateway.server.context import Context
from eyas.gateway.turn.stops import Stops

__all__ = ["Prepared", "prepare", "render_newest"]


class _StoredResponse(Struct):
    output: list[Item]


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """One request, ready to run. `items` is what its input adds to the conversation."""

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
    """Check everything and render the prompt; `items` are the input's. Slow for long texts. Raises InvalidRequest.

    The model is not told of tools that it must not call. Without `instructions`, a system prompt that the conversation
    begins with takes their place.
    """
    tools = function_tools(body)
    if body.tool_choice == "none":
        tools = []
    choice, callable_tools = _tool_choice(body, tools)
    answer = _answer_format(body)
    _check_grammars(context.checker, tools, callable_tools, choice, answer)
    kept = keep(items, stem, _items_of(referenced))
    history = [] if previous is None else [item for link in previous.chain() for item in stored_items(link)]
    conversation = to_messages(history, kept)
    first = (history or kept)[0]
    instructions = body.instructions
    if instructions is None and isinstance(first, MessageItem) and first.role in ("system", "developer"):
        instructions, conversation = text_of(first.content), conversation[1:]
    ids = _render(context, body, instructions, conversation, tools)
    check_length(context, len(ids), "input")
    grammar = answer_grammar(tools=callable_tools, tool_choice=choice, response=answer)
    params = sampling_params(
        body,
        context.codec,
        context.options.defaults,
        max_tokens=body.max_output_tokens,
        logprobs=(body.top_logprobs or 0) if LOGPROBS in (body.include or ()) else None,
        grammar=grammar,
    )
    request = Request(request_id=f"resp_{stem}", prompt_ids=tuple(ids), params=params, cache_salt=body.cache_salt or "")
    return Prepared(
        request=request,
        response=_response_object(context.info.name, body, request),
        items=tuple(kept),
        stops=stops_of(body),
        functions=frozenset(tool.name for tool in tools),
        bound_by=None if grammar is None else "tools" if answer is None else "text.format",
        is_stream=bool(body.stream),
    )


def stored_items(kept: Kept) -> list[Item]:
    """What one response added to its conversation: input, then output."""
    answered = msgspec.json.decode(kept.response, type=_StoredResponse)
    return [*msgspec.json.decode(kept.input_items, type=list[Item]), *answered.output]


def _items_of(referenced: Mapping[str, Kept]) -> dict[str, Item]:
    """The items by their ids, of which `referenced` says in which response each one is."""
    return {
        item.id: item
        for kept in dict.fromkeys(referenced.values())
        for item in reversed(stored_items(kept))  # of two with the same id the first counts
        if item.id is not None and referenced.get(item.id) is kept
    }


def _tool_choice(body: ResponsesBody, tools: Sequence[FunctionTool]) -> tuple[ToolChoice, Sequence[FunctionTool]]:
    """The choice, and the tools that it is among. Tools that are not allowed take a grammar to be kept out."""
    choice = body.tool_choice or "auto"
    if isinstance(choice, NamedFunction):
        return NamedTool(choice.name), tools
    if not isinstance(choice, AllowedTools):
        return choice, tools
    names = [allowed.name for allowed in choice.tools]
    allowed = allowed_tools(tools, names, where="tool_choice", field="name")
    return choice.mode, [replace(tool, strict=True) for tool in allowed]


def _answer_format(body: ResponsesBody) -> AnswerFormat | None:
    match None if body.text is None else body.text.format:
        case SchemaFormat(schema=schema):
            return JsonSchema(schema)
        case ObjectFormat():
            return JsonObject()
    return None


def _check_grammars(
    checker: GrammarChecker,
    tools: Sequence[FunctionTool],
    callable_tools: Sequence[FunctionTool],
    choice: ToolChoice,
    answer: AnswerFormat | None,
) -> None:
    """Each schema on its own, so that the error names the field."""
    bound = {tool.name for tool in callable_tools if is_bound(tool, choice)}
    for index, tool in enumerate(tools):
        if tool.name in bound:
            checker.check_tool(tool, param=f"tools[{index}].parameters")
    if isinstance(answer, JsonSchema):
        check_schema(answer.schema, param="text.format.schema")
        checker.check_answer(answer, param="text.format.schema")


def _render(
    context: Context,
    body: ResponsesBody,
    instructions: str | None,
    conversation: list[Message],
    tools: Sequence[FunctionTool],
) -> list[int]:
    """The prompt's ids; tools and the answer's schema are told beside the instructions."""
    asked = None if body.text is None else body.text.format
    formats = []
    if isinstance(asked, SchemaFormat):
        formats = [ResponseFormat(name=asked.name, schema=asked.schema, description=asked.description or "")]
    effort = effort_of(None if body.reasoning is None else body.reasoning.effort)
    head = [system_message(date=context.options.today().isoformat(), effort=effort, has_functions=bool(tools))]
    if instructions is not None or tools or formats:
        head.append(developer_message(instructions, tools=tools, response_formats=formats))
    if body.truncation != "auto":
        return render_conversation(prompt_codec(context, "input", tools), [*head, *conversation])
    reserve = min(body.max_output_tokens or context.info.context, context.info.context // 4)
    return render_newest(context, head, conversation, limit=context.info.context - reserve)


def render_newest(
    context: Context, head: Sequence[Message], conversation: Sequence[Message], *, limit: int
) -> list[int]:
    """The prompt's ids without the oldest turns, so that at most `limit` ids remain: whole turns, each from a user's
    message to the next.

    `head` and the last turn always stay. What is left out is not read further than there is room.
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
    """The response as it begins: what was asked for, with the values in force."""
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

"""`/tokenize` and `/detokenize` in vLLM's format: the number and ids of the tokens of a prompt or a conversation."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from eyas.base.errors import InvalidRequest
from eyas.base.harmony.conversation import Conversation, to_harmony
from eyas.base.harmony.openai_messages import entries_of
from eyas.base.harmony.rendering import render_conversation
from eyas.gateway.http.body import Fields, Raw, decode, json_response
from eyas.gateway.openai.chat.messages import ChatMessages
from eyas.gateway.openai.chat.routes import FunctionEntries, tools_of
from eyas.gateway.openai.raw_text import decode_raw, encode_raw
from eyas.gateway.openai.sampling import AskedEffort, effort_of
from eyas.gateway.question.model import check_model
from eyas.gateway.question.prompt_limit import counting_codec
from eyas.gateway.server.context import Context

__all__ = ["routes"]


class TokenizeBody(Fields, kw_only=True):
    """`prompt` as in `/v1/completions`, or `messages` and `tools` as in `/v1/chat/completions`."""

    model: str | None = None
    prompt: str | None = None
    messages: ChatMessages | None = None
    tools: FunctionEntries | None = None
    reasoning_effort: AskedEffort | None = None
    add_generation_prompt: bool | None = None
    add_special_tokens: bool | None = None  # gpt-oss has none to add: both values are the same
    return_token_strs: bool | None = None
    continue_final_message: None = None
    chat_template: None = None
    chat_template_kwargs: None = None


class DetokenizeBody(Fields, kw_only=True):
    tokens: list[Annotated[int, Meta(ge=0)]]
    model: str | None = None


class Tokenized(Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


def routes(context: Context) -> list[BaseRoute]:
    async def tokenize(http: HttpRequest) -> Response:
        return await context.read(http, lambda raw: json_response(tokenized(context, raw)))

    async def detokenize(http: HttpRequest) -> Response:
        return await context.read(http, lambda raw: json_response(detokenized(context, raw)))

    return [
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
    ]


def tokenized(context: Context, raw: Raw) -> Tokenized:
    """Raises InvalidRequest naming the field."""
    body = decode(raw, TokenizeBody)
    check_model(context, body.model)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give either prompt or messages", param="prompt")
    if body.messages is not None:
        tools = tools_of(body.tools)
        codec = counting_codec(context, "messages")
        codec.expect(sum(len(tool.description) for tool in tools))
        head, rest = to_harmony(
            Conversation(
                entries=entries_of(body.messages),
                tools=tools,
                effort=effort_of(body.reasoning_effort),
                date=context.options.today().isoformat(),
            )
        )
        purpose: Literal["history", "completion"] = "completion"
        if body.add_generation_prompt is False:
            purpose = "history"
        drop = not context.options.keep_reasoning
        ids = render_conversation(codec, [*head, *rest], purpose=purpose, drop_analysis=drop)
    else:
        ids = encode_raw(counting_codec(context, "prompt"), body.prompt or "")
    result = Tokenized(count=len(ids), max_model_len=context.engine.info.context, tokens=ids)
    if body.return_token_strs:
        result.token_strs = [context.codec.token_bytes(token_id).decode(errors="replace") for token_id in ids]
    return result


def detokenized(context: Context, raw: Raw) -> dict[str, str]:
    """Raises InvalidRequest naming the field."""
    body = decode(raw, DetokenizeBody)
    check_model(context, body.model)
    num_bytes = sum(len(context.codec.token_bytes(token_id)) for token_id in body.tokens)
    if num_bytes > context.options.max_body:
        raise InvalidRequest(
            f"'tokens' are a text of {num_bytes} bytes, and {context.options.max_body} go into one answer; send them "
            "in parts",
            param="tokens",
        )
    return {"prompt": decode_raw(context.codec, body.tokens)}

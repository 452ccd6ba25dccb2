"""The OpenAI dialect: `/v1/chat/completions` bodies to engine requests, deltas to its answers and chunks.

Fields that this server does not know or does not have are refused by name, never ignored; a message's `name` is
checked and has no place in Harmony.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from eyas.base.errors import InvalidRequest
from eyas.base.harmony import Effort, Message, developer_message, render_conversation, system_message
from eyas.base.tokenizer import TextCodec
from eyas.base.types import ModelInfo, Request, SamplingParams
from eyas.gateway.body import decode, in_thread_if_large, raw_response, read_body
from eyas.gateway.context import Context
from eyas.gateway.delta import Delta, Kind, ScoredToken, Totals
from eyas.gateway.outcome import CLIENT_LEFT
from eyas.gateway.readers import HarmonyReader
from eyas.gateway.service import check_model
from eyas.gateway.stops import Stops
from eyas.gateway.stream import DONE, ClientGone, EventStream, sse, until_disconnect
from eyas.gateway.turn import Turn

__all__ = ["routes"]

PATH = "/v1/chat/completions"

MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 256


class TextPart(Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


class ChatMessage(Struct, kw_only=True, forbid_unknown_fields=True):
    """A message of the conversation. What the official SDK echoes as null is taken as null."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] | None = None
    name: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")] | None = None
    reasoning_content: str | None = None
    refusal: None = None
    annotations: None = None
    audio: None = None
    tool_calls: None = None
    function_call: None = None


class StreamOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool = False


class TextFormat(Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["text"]


class ChatBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The request body. None is "not given"; a field of type None is one of OpenAI's that this server lacks."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    model: str | None = None
    reasoning_effort: Effort | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: TextFormat | None = None
    user: str | None = None  # a label for the operator's own records, which cannot change an answer
    tools: None = None
    tool_choice: None = None
    parallel_tool_calls: None = None
    functions: None = None
    function_call: None = None
    modalities: None = None
    audio: None = None
    prediction: None = None
    web_search_options: None = None
    service_tier: None = None
    verbosity: None = None
    metadata: None = None
    store: None = None
    safety_identifier: None = None
    prompt_cache_key: None = None


def routes(context: Context) -> list[BaseRoute]:
    async def chat(request: HttpRequest) -> ASGIApp:
        raw = await read_body(request, context.options.max_body)
        body, ids = await in_thread_if_large(len(raw), lambda: prepare(context, raw))
        request_id = f"chatcmpl-{uuid.uuid4().hex}"
        engine_request = Request(request_id=request_id, prompt_ids=ids, params=sampling_params(body))
        reply = ChatReply(request_id, body, context.info, context.codec)
        turn = Turn(
            context,
            engine_request,
            lambda: HarmonyReader(context.codec),
            route=PATH,
            stops=Stops(strings=stop_strings(body)),
        )
        if body.stream:
            return EventStream(_chunks(turn, reply), on_close=turn.close)
        try:
            deltas = await until_disconnect(request.receive, _collect(turn))
        except ClientGone:
            return Response(status_code=CLIENT_LEFT)
        finally:
            turn.close()
        return raw_response(reply.whole(deltas))

    return [Route(PATH, chat, methods=["POST"])]


def prepare(context: Context, raw: bytes) -> tuple[ChatBody, tuple[int, ...]]:
    body = decode(raw, ChatBody)
    check_model(context, body.model)
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options is for stream=true only", param="stream_options")
    return body, prompt_ids(body, context.codec, date=context.options.today().isoformat())


async def _collect(turn: Turn) -> list[Delta]:
    return [delta async for delta in turn.deltas()]


async def _chunks(turn: Turn, reply: ChatReply) -> AsyncGenerator[bytes, None]:
    async for delta in turn.deltas():
        yield sse(reply.chunk(delta))
    if (usage := reply.usage_chunk()) is not None:
        yield sse(usage)
    yield DONE


def sampling_params(body: ChatBody) -> SamplingParams:
    """The engine's parameters; ranges are checked by SamplingParams itself. Raises InvalidRequest."""
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise InvalidRequest("max_tokens and max_completion_tokens are one limit; give one", param="max_tokens")
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs=true", param="top_logprobs")
    names = ("temperature", "top_p", "top_k", "min_p", "seed", "n", "min_tokens", "ignore_eos", "logit_bias")
    penalties = ("presence_penalty", "frequency_penalty", "repetition_penalty")
    given: dict[str, Any] = {
        name: value for name in names + penalties if (value := getattr(body, name)) is not None
    }  # fmt: skip
    limit = body.max_completion_tokens if body.max_tokens is None else body.max_tokens
    return SamplingParams(
        max_tokens=limit,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        **given,
    )


def stop_strings(body: ChatBody) -> tuple[str, ...]:
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if len(stops) > MAX_STOP_STRINGS or not all(0 < len(stop) <= MAX_STOP_CHARS for stop in stops):
        raise InvalidRequest(
            f"stop wants at most {MAX_STOP_STRINGS} strings of 1 to {MAX_STOP_CHARS} characters", param="stop"
        )
    return stops


def prompt_ids(body: ChatBody, codec: TextCodec, *, date: str) -> tuple[int, ...]:
    """The conversation in Harmony. A "system" message is the developer's there and keeps its place."""
    messages = [system_message(date=date, effort=body.reasoning_effort or "medium")]
    for index, message in enumerate(body.messages):
        messages += _to_harmony(message, f"messages[{index}]")
    return tuple(render_conversation(codec, messages))


def _to_harmony(message: ChatMessage, where: str) -> list[Message]:
    text = message.content
    if isinstance(text, list):
        text = "".join(part.text for part in text)
    if message.role == "assistant":
        parts = (("analysis", message.reasoning_content), ("final", text))
        return [Message(role="assistant", channel=channel, content=part) for channel, part in parts if part]
    if message.reasoning_content is not None:
        raise InvalidRequest(f"{where}: only the assistant has reasoning_content", param=f"{where}.reasoning_content")
    if text is None:
        raise InvalidRequest(f"'{where}.content' is missing", param=f"{where}.content")
    if message.role == "user":
        return [Message(role="user", content=text, name=message.name)]
    return [developer_message(text)]


class Usage(Struct, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class Timings(Struct, kw_only=True):
    """llama.cpp's names, which monitoring tools read; `predicted_per_second` leaves the first token's wait out."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float
    draft_n: int
    draft_n_accepted: int


class TopLogprob(Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(TopLogprob, kw_only=True):
    top_logprobs: list[TopLogprob]


class Logprobs(Struct, kw_only=True):
    content: list[ContentLogprob]
    refusal: None = None


class Part(Struct, kw_only=True):
    """`message` of a whole answer and `delta` of a chunk."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class Choice(Struct, kw_only=True):
    index: int
    message: Part | UnsetType = UNSET
    delta: Part | UnsetType = UNSET
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class Completion(Struct, kw_only=True):
    id: str
    object: Literal["chat.completion", "chat.completion.chunk"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET


class ChatReply:
    """Turns the deltas of one request into chunks, or into one whole answer."""

    def __init__(self, request_id: str, body: ChatBody, info: ModelInfo, codec: TextCodec) -> None:
        self._id = request_id
        self._model = info.name
        self._codec = codec
        self._created = int(time.time())
        self._with_logprobs = bool(body.logprobs)
        self._with_usage = body.stream_options is not None and body.stream_options.include_usage
        self._begun: set[int] = set()
        self._totals: list[Totals] = []

    def chunk(self, delta: Delta) -> bytes:
        """One `chat.completion.chunk`; the first of a choice names the role, the last carries the timings."""
        part = Part()
        if delta.choice not in self._begun:
            self._begun.add(delta.choice)
            part.role = "assistant"
        if delta.text(Kind.REASONING):
            part.reasoning_content = delta.text(Kind.REASONING)
        if delta.text(Kind.CONTENT):
            part.content = delta.text(Kind.CONTENT)
        if delta.totals is not None:
            self._totals.append(delta.totals)
        choice = Choice(
            index=delta.choice,
            delta=part,
            logprobs=self._logprobs(delta.scored),
            finish_reason=delta.finish,
        )
        return self._encode(
            "chat.completion.chunk",
            [choice],
            usage=None if self._with_usage else UNSET,
            timings=_timings([delta.totals]) if delta.totals is not None else UNSET,
        )

    def usage_chunk(self) -> bytes | None:
        """The chunk without choices that ends a stream with `include_usage`."""
        if not self._with_usage:
            return None
        return self._encode("chat.completion.chunk", [], usage=_usage(self._totals))

    def whole(self, deltas: Sequence[Delta]) -> bytes:
        """One `chat.completion` of all deltas."""
        choices = []
        for index in sorted({delta.choice for delta in deltas}):
            own = [delta for delta in deltas if delta.choice == index]
            message = Part(role="assistant", content="".join(delta.text(Kind.CONTENT) for delta in own))
            if reasoning := "".join(delta.text(Kind.REASONING) for delta in own):
                message.reasoning_content = reasoning
            scored = [token for delta in own for token in delta.scored]
            choices.append(
                Choice(index=index, message=message, logprobs=self._logprobs(scored), finish_reason=own[-1].finish)
            )
        totals = [delta.totals for delta in deltas if delta.totals is not None]
        return self._encode("chat.completion", choices, usage=_usage(totals), timings=_timings(totals))

    def _encode(
        self,
        kind: Literal["chat.completion", "chat.completion.chunk"],
        choices: list[Choice],
        *,
        usage: Usage | UnsetType | None,
        timings: Timings | UnsetType = UNSET,
    ) -> bytes:
        return msgspec.json.encode(
            Completion(
                id=self._id,
                object=kind,
                created=self._created,
                model=self._model,
                choices=choices,
                usage=usage,
                timings=timings,
            )
        )

    def _logprobs(self, scored: Sequence[ScoredToken]) -> Logprobs | None:
        if not self._with_logprobs:
            return None
        return Logprobs(
            content=[
                ContentLogprob(
                    **self._token(token.token_id, token.logprob.logprob),
                    top_logprobs=[TopLogprob(**self._token(*entry)) for entry in token.logprob.top],
                )
                for token in scored
            ]
        )

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        piece = self._codec.token_bytes(token_id)
        return {"token": piece.decode(errors="replace"), "logprob": logprob, "bytes": list(piece)}


def _usage(totals: Sequence[Totals]) -> Usage:
    prompt, completion = totals[0].num_prompt, sum(one.num_tokens for one in totals)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details={"cached_tokens": _num_cached(totals)},
        completion_tokens_details={"reasoning_tokens": sum(one.num_reasoning for one in totals)},
    )


def _timings(totals: Sequence[Totals]) -> Timings:
    """Of one choice, or of all choices of an answer, which ran side by side."""
    seconds = max(one.predicted_ms for one in totals) / 1e3
    return Timings(
        cache_n=_num_cached(totals),
        prompt_n=totals[0].num_prompt - _num_cached(totals),
        prompt_ms=round(min(one.prompt_ms for one in totals), 3),
        predicted_n=sum(one.num_tokens for one in totals),
        predicted_ms=round(seconds * 1e3, 3),
        predicted_per_second=round(sum(one.num_after_first for one in totals) / seconds, 2) if seconds else 0.0,
        draft_n=sum(one.num_drafted for one in totals),
        draft_n_accepted=sum(one.num_accepted for one in totals),
    )


def _num_cached(totals: Sequence[Totals]) -> int:
    """Of the choice that read the prompt first; the others find it in the cache."""
    return min(one.num_cached for one in totals)

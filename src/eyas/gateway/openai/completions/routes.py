"""`/v1/completions`: continues raw prompts, given as text or token ids; evaluation harnesses use it.

Spellings of special tokens in a prompt become the special tokens: users of this endpoint write the format themselves.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta
from starlette.requests import Request as HttpRequest
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from eyas.base.errors import EyasError, InvalidRequest
from eyas.base.types import MAX_TOP_LOGPROBS, Request, TokenEvent, check_prompt_logprobs
from eyas.gateway.grammar.checker import raw_grammar
from eyas.gateway.http.answer import answer
from eyas.gateway.http.body import Raw, decode
from eyas.gateway.openai.common import DONE
from eyas.gateway.openai.completions.reply import CompletionsOptions, CompletionsReply
from eyas.gateway.openai.fields import StreamOptions, check_stream_options
from eyas.gateway.openai.raw_text import decode_raw, encode_raw
from eyas.gateway.openai.sampling import SamplingFields, params_of, stops_of, with_token_fields
from eyas.gateway.openai.structured import StructuredOutputs, structured_format
from eyas.gateway.question.model import check_model
from eyas.gateway.question.prompt_limit import MAX_TOKENS, check_length, prompt_codec
from eyas.gateway.server.context import Context
from eyas.gateway.server.mailroom import Inbox
from eyas.gateway.turn.readers import PlainReader
from eyas.gateway.turn.stops import Stops
from eyas.gateway.turn.turn import Turn, deltas_of

__all__ = ["routes"]

PATH = "/v1/completions"
MAX_PROMPTS = 256
DEFAULT_MAX_TOKENS = 16  # OpenAI's


class CompletionsBody(SamplingFields, kw_only=True):
    """The request body. A field of type None is one of OpenAI's or vLLM's that this server does not support."""

    prompt: str | Annotated[list[str | int | list[int]], Meta(min_length=1)]
    model: str | None = None
    max_tokens: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    add_special_tokens: bool | None = None  # gpt-oss has none to add: both values are the same
    user: Annotated[str, Meta(max_length=512)] | None = None
    suffix: None = None
    response_format: None = None
    structured_outputs: StructuredOutputs | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A checked body: one engine request for each prompt, and how the answers are read and formatted."""

    requests: tuple[Request, ...]
    stops: Stops
    bound_by: str | None  # the field that binds the answers
    with_special: bool
    options: CompletionsOptions
    is_stream: bool


def routes(context: Context) -> list[BaseRoute]:
    async def completions(http: HttpRequest) -> ASGIApp:
        prepared = await context.read(http, lambda raw: prepare(context, raw))
        reply = CompletionsReply(prepared.requests, context.info.name, context.codec, prepared.options)
        inbox: Inbox[tuple[Turn, TokenEvent, float]] = Inbox()
        turns: list[Turn] = []

        def close(error: EyasError | None = None) -> None:
            for turn in turns:
                turn.close(error)

        try:
            for request in prepared.requests:
                reader = lambda: PlainReader(context.codec, with_special=prepared.with_special)  # noqa: E731
                turn = Turn(
                    context,
                    request,
                    reader,
                    route=PATH,
                    stops=prepared.stops,
                    param=prepared.bound_by,
                    inbox=inbox,
                )
                turns.append(turn)
        except EyasError as error:
            close(error)
            raise
        chunks = reply.chunks if prepared.is_stream else None
        deltas = deltas_of(turns, inbox)
        return await answer(http, deltas, close=close, whole=reply.whole, chunks=chunks, last=DONE)

    return [Route(PATH, completions, methods=["POST"])]


def prepare(context: Context, raw: Raw) -> Prepared:
    """Check everything that does not need the engine. Raises InvalidRequest naming the field."""
    body = decode(raw, CompletionsBody)
    check_model(context, body.model)
    check_stream_options(body.stream, body.stream_options)
    _check(body)
    prompts = _all_prompt_ids(context, body)
    is_echo, max_tokens = bool(body.echo), DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    with_prompt_logprobs = body.prompt_logprobs is not None
    if is_echo and body.logprobs is not None:
        body.prompt_logprobs = max(body.logprobs, body.prompt_logprobs or 0)
    check_prompt_logprobs(sum(map(len, prompts)), body.prompt_logprobs)
    grammar = bound_by = None
    if body.structured_outputs is not None:
        wanted, bound_by = structured_format(body.structured_outputs)
        context.checker.check_answer(wanted, param=bound_by)
        grammar = raw_grammar(wanted)
    params = params_of(
        body,
        context.options.defaults,
        max_tokens=max_tokens or 1,  # with 0, the one token is hidden
        grammar=grammar,
        allowed=frozenset({"skip_special_tokens"}),
    )
    params = with_token_fields(params, body, context.codec, logprobs=body.logprobs)
    request_id = f"cmpl-{uuid.uuid4().hex}"
    with_special = body.skip_special_tokens is False
    return Prepared(
        requests=tuple(
            Request(
                request_id=request_id if len(prompts) == 1 else f"{request_id}-{index}",
                prompt_ids=tuple(ids),
                params=params,
                cache_salt=body.cache_salt or "",
            )
            for index, ids in enumerate(prompts)
        ),
        stops=stops_of(body),
        bound_by=bound_by,
        with_special=with_special,
        options=CompletionsOptions(
            request_id=request_id,
            stream=body.stream_options,
            echo=tuple(decode_raw(context.codec, ids) for ids in prompts) if is_echo else None,
            only_prompt=max_tokens == 0,
            with_logprobs=body.logprobs is not None,
            with_prompt_logprobs=with_prompt_logprobs,
            with_token_ids=bool(body.return_token_ids),
            tokens_as_ids=bool(body.return_tokens_as_token_ids),
            hidden=frozenset() if with_special else frozenset(context.codec.special.values()),
        ),
        is_stream=bool(body.stream),
    )


def _check(body: CompletionsBody) -> None:
    if body.best_of not in (None, body.n or 1):
        raise InvalidRequest("best_of is not supported by this server, unless it equals n", param="best_of")
    if body.logprobs is not None and not 0 <= body.logprobs <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(f"logprobs must be between 0 and {MAX_TOP_LOGPROBS}", param="logprobs")
    if body.max_tokens == 0 and not body.echo:
        raise InvalidRequest("max_tokens must be 1 or more, or 0 with echo=true", param="max_tokens")
    if body.stream and body.prompt_logprobs is not None:
        raise InvalidRequest("prompt_logprobs come with whole answers only, not with stream", param="prompt_logprobs")
    if body.stream and body.echo and body.logprobs is not None and (body.n or 1) > 1:
        raise InvalidRequest("echo with logprobs of several choices comes with whole answers only", param="stream")


def _prompts(body: CompletionsBody) -> list[tuple[str | Sequence[int], str]]:
    """Return the prompts, each with its path in the body."""
    given = body.prompt
    if isinstance(given, str):
        return [(given, "prompt")]
    if all(isinstance(part, int) for part in given):
        return [([part for part in given if isinstance(part, int)], "prompt")]
    if len(given) > MAX_PROMPTS:
        raise InvalidRequest(f"at most {MAX_PROMPTS} prompts go into one request", param="prompt")
    prompts: list[tuple[str | Sequence[int], str]] = []
    for index, part in enumerate(given):
        if isinstance(part, int):
            raise InvalidRequest("prompt must be one text, one list of token ids, or a list of these", param="prompt")
        prompts.append((part, f"prompt[{index}]"))
    return prompts


def _all_prompt_ids(context: Context, body: CompletionsBody) -> list[Sequence[int]]:
    prompts, num_ids = [], 0
    for prompt, where in _prompts(body):
        prompts.append(_prompt_ids(context, prompt, where))
        num_ids += len(prompts[-1])
        if num_ids > MAX_TOKENS:
            raise InvalidRequest(
                f"the prompts have more than {MAX_TOKENS} tokens together; send them in several requests",
                param="prompt",
            )
    return prompts


def _prompt_ids(context: Context, prompt: str | Sequence[int], where: str) -> Sequence[int]:
    ids = encode_raw(prompt_codec(context, "prompt"), prompt) if isinstance(prompt, str) else prompt
    vocab_size = context.engine.info.vocab_size
    if not ids:
        raise InvalidRequest(f"'{where}' is empty; there is nothing to continue", param=where)
    check_length(context, len(ids), "prompt")
    bad = next((token_id for token_id in ids if not 0 <= token_id < vocab_size), None)
    if bad is not None:
        raise InvalidRequest(f"'{where}': token id {bad} is outside the vocabulary of {vocab_size}", param=where)
    return ids

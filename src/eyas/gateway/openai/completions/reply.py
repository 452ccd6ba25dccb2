"""Converts deltas of `/v1/completions` to `text_completion` answers and chunks, with the legacy log-probabilities."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from eyas.base.tokens.tokenizer import TextCodec
from eyas.base.types import Request, TokenLogprob
from eyas.gateway.http.stream import sse
from eyas.gateway.openai.common import (
    Metrics,
    Timings,
    TokenNames,
    Usage,
    finite,
    metrics_of,
    prompt_logprobs_json,
    timings_of,
    usage_of,
)
from eyas.gateway.openai.fields import StreamOptions
from eyas.gateway.openai.raw_text import Offsets
from eyas.gateway.turn.delta import Delta, Kind, Totals

__all__ = ["CompletionsOptions", "CompletionsReply"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletionsOptions:
    """Options for the contents of an answer. `echo` has the text of each prompt, `hidden` the ids without text."""

    request_id: str
    stream: StreamOptions | None
    echo: tuple[str, ...] | None
    only_prompt: bool  # max_tokens was 0
    with_logprobs: bool
    with_prompt_logprobs: bool
    with_token_ids: bool
    tokens_as_ids: bool
    hidden: frozenset[int]


class LegacyLogprobs(Struct, kw_only=True):
    """Lists with one entry per token; log-probabilities of a prompt's first token are None."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(Struct, kw_only=True):
    index: int
    text: str
    logprobs: LegacyLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    prompt_logprobs: list[dict[str, Any] | None] | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET
    token_ids: Sequence[int] | UnsetType = UNSET


class Completion(Struct, kw_only=True):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET
    metrics: Metrics | UnsetType = UNSET


@dataclass(slots=True)
class _Choice:
    offsets: Offsets
    begun: bool = False


class CompletionsReply:
    """Turns the deltas of the requests of one body into chunks, or into one whole answer."""

    def __init__(self, requests: Sequence[Request], model: str, codec: TextCodec, options: CompletionsOptions) -> None:
        self._requests = requests
        self._model = model
        self._options = options
        self._names = TokenNames(codec, as_ids=options.tokens_as_ids)
        self._created = int(time.time())
        self._n = requests[0].params.n
        self._choices = [_Choice(Offsets(codec)) for _ in range(len(requests) * self._n)]
        self._totals: list[list[Totals]] = [[] for _ in requests]
        self._prompt_logprobs: list[Sequence[TokenLogprob]] = [() for _ in requests]
        self._num_tokens = 0
        self._with_usage = options.stream is not None and bool(options.stream.include_usage)
        self._is_continuous = options.stream is not None and options.stream.is_continuous

    async def chunks(self, deltas: AsyncGenerator[tuple[int, Delta], None]) -> AsyncGenerator[bytes, None]:
        """Yield an event for each chunk as its delta comes, and the usage at the end if it was requested."""
        async for index, delta in deltas:
            self._note(index, delta)
            choice = self._choice(index, delta)
            completion = self._completion([choice])
            if self._with_usage:
                completion.usage = None
            if self._is_continuous:
                prompt = len(self._requests[index].prompt_ids)
                self._num_tokens += 0 if self._options.only_prompt else len(delta.token_ids)
                completion.usage = Usage(
                    prompt_tokens=prompt, completion_tokens=self._num_tokens, total_tokens=prompt + self._num_tokens
                )
            if delta.totals is not None:
                completion.timings, completion.metrics = timings_of([delta.totals]), metrics_of(delta.totals)
            yield sse(msgspec.json.encode(completion))
        if self._with_usage:
            completion = self._completion([])
            completion.usage = self._usage()
            yield sse(msgspec.json.encode(completion))

    def whole(self, deltas: list[tuple[int, Delta]]) -> bytes:
        """Return all deltas as the JSON of one `text_completion`; choices of the same prompt are adjacent."""
        choices: list[TextChoice | None] = [None] * len(self._choices)
        for index, delta in deltas:
            self._note(index, delta)
        for index, delta in deltas:
            part = self._choice(index, delta)
            before = choices[part.index]
            choices[part.index] = part if before is None else _merged(before, part)
        completion = self._completion([choice for choice in choices if choice is not None])
        completion.usage = self._usage()
        if len(self._requests) == 1:
            completion.timings = timings_of(self._totals[0])
            if self._n == 1:
                completion.metrics = metrics_of(self._totals[0][0])
        return msgspec.json.encode(completion)

    def _note(self, index: int, delta: Delta) -> None:
        if delta.totals is not None:
            self._totals[index].append(delta.totals)
        if delta.prompt_logprobs is not None:
            self._prompt_logprobs[index] = delta.prompt_logprobs

    def _choice(self, index: int, delta: Delta) -> TextChoice:
        """Return what one delta of prompt number `index` adds; a choice's first adds the prompt, if it is echoed."""
        options, number = self._options, index * self._n + delta.choice
        state, prompt_ids = self._choices[number], self._requests[index].prompt_ids
        choice = TextChoice(index=number, text="", finish_reason="length" if delta.finish else None)
        if not options.only_prompt:
            choice.text, choice.finish_reason = delta.text(Kind.CONTENT), delta.finish
            choice.stop_reason = delta.stop_reason
        is_first, state.begun = not state.begun, True
        if is_first and options.echo is not None:
            choice.text = options.echo[index] + choice.text
        if options.with_logprobs:
            choice.logprobs = LegacyLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
            if is_first and options.echo is not None:
                self._add(choice.logprobs, prompt_ids, [None, *self._prompt_logprobs[index]])
                choice.logprobs.text_offset = state.offsets.add(prompt_ids)
            if not options.only_prompt:
                ids = [token.token_id for token in delta.scored]
                self._add(choice.logprobs, ids, [token.logprob for token in delta.scored])
                choice.logprobs.text_offset += state.offsets.add(ids, hidden=options.hidden)
        if options.with_token_ids:
            choice.token_ids = () if options.only_prompt else delta.token_ids
            if is_first:
                choice.prompt_token_ids = prompt_ids
        if is_first and options.with_prompt_logprobs:
            choice.prompt_logprobs = prompt_logprobs_json(self._names, prompt_ids, self._prompt_logprobs[index])
        return choice

    def _add(self, out: LegacyLogprobs, ids: Sequence[int], scores: Sequence[TokenLogprob | None]) -> None:
        for token_id, score in zip(ids, scores, strict=True):
            name = self._names.name(token_id)
            out.tokens.append(name)
            if score is None:
                out.token_logprobs.append(None)
                out.top_logprobs.append(None)
                continue
            top: dict[str, float] = {}
            for other, logprob in (*score.top, (token_id, score.logprob)):
                top.setdefault(self._names.name(other), finite(logprob))
            out.token_logprobs.append(finite(score.logprob))
            out.top_logprobs.append(top)

    def _usage(self) -> Usage:
        """Return the usage summed over the prompts."""
        parts = [usage_of(totals) for totals in self._totals]
        prompt = sum(part.prompt_tokens for part in parts)
        completion = 0 if self._options.only_prompt else sum(part.completion_tokens for part in parts)
        cached = sum((part.prompt_tokens_details or {})["cached_tokens"] for part in parts)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details={"cached_tokens": cached},
        )

    def _completion(self, choices: list[TextChoice]) -> Completion:
        return Completion(id=self._options.request_id, created=self._created, model=self._model, choices=choices)


def _merged(before: TextChoice, part: TextChoice) -> TextChoice:
    """Return a choice extended by its next delta."""
    before.text += part.text
    before.finish_reason, before.stop_reason = part.finish_reason, part.stop_reason
    if before.logprobs is not None and part.logprobs is not None:
        before.logprobs.tokens += part.logprobs.tokens
        before.logprobs.token_logprobs += part.logprobs.token_logprobs
        before.logprobs.top_logprobs += part.logprobs.top_logprobs
        before.logprobs.text_offset += part.logprobs.text_offset
    if before.token_ids is not UNSET and part.token_ids is not UNSET:
        before.token_ids = [*before.token_ids, *part.token_ids]
    return before

"""`eyas.LLM`: offline inference from Python, with vLLM's names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from eyas.base.errors import InvalidRequest
from eyas.base.harmony.rendering import Message, render_conversation, system_message
from eyas.base.settings.config import EngineConfig
from eyas.base.types import EngineStats, FinishReason, Request, SamplingParams, TokenEvent, TokenLogprob
from eyas.engine.startup.load import load_engine_parts

__all__ = ["LLM", "CompletionOutput", "RequestOutput"]


@dataclass(kw_only=True, slots=True)
class CompletionOutput:
    """A single choice: its tokens, their text without special tokens, and `finish_reason`: "stop", "length" or "error".

    `error` says why a choice ended with an error: the model or its grammar could not go on.
    """

    index: int
    token_ids: list[int]
    text: str = ""
    logprobs: list[TokenLogprob] | None = None
    finish_reason: str | None = None
    error: str | None = None


@dataclass(kw_only=True, slots=True)
class RequestOutput:
    """The choices of a request. Entry i of `prompt_logprobs`, where they were asked for, is for prompt token i + 1."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[TokenLogprob] | None = None


class LLM:
    """Load a model and generate, all requests batched together. Settings are those of `eyas serve`.

    >>> llm = LLM("demo", draft="auto")
    >>> llm.generate("def add(a, b):", SamplingParams(max_tokens=8))[0].outputs[0].text
    """

    def __init__(self, model: str = "demo", **settings: Any) -> None:
        loaded = load_engine_parts(replace(EngineConfig(), model=model, **settings))
        self._core = loaded.built.core
        self._memory_bytes = loaded.built.memory_bytes
        self.tokenizer = loaded.tokenizer
        self.info = loaded.info
        self._num_requests = 0
        self._special = frozenset(self.tokenizer.special.values())

    def generate(
        self,
        prompts: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Continue each prompt, given as text or token ids, in the order given. Raises InvalidRequest."""
        batch: list[Any] = [prompts] if isinstance(prompts, str) or _is_token_ids(prompts) else list(prompts)
        params = self._params_for(batch, sampling_params)
        return self._run(
            [
                (prompt, self.tokenizer.encode(prompt)) if isinstance(prompt, str) else (None, list(prompt))
                for prompt in batch
            ],
            params,
        )

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answer each conversation in Harmony form; without a system message the default one is put in front."""
        batch: list[Any] = (
            [conversations] if conversations and isinstance(conversations[0], Message) else list(conversations)
        )
        prompts: list[tuple[str | None, list[int]]] = []
        for messages in batch:
            has_system = any(message.role == "system" for message in messages)
            messages = list(messages) if has_system else [system_message(), *messages]
            prompts.append((None, render_conversation(self.tokenizer, messages)))
        return self._run(prompts, self._params_for(batch, sampling_params))

    def stats(self) -> EngineStats:
        return self._core.stats(self._memory_bytes)

    @staticmethod
    def _params_for(
        batch: Sequence[Any], given: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[SamplingParams]:
        if given is None:
            given = SamplingParams()
        if isinstance(given, SamplingParams):
            return [given] * len(batch)
        if len(given) != len(batch):
            raise InvalidRequest(f"{len(batch)} prompts, but {len(given)} sampling_params")
        return list(given)

    def _run(self, prompts: list[tuple[str | None, list[int]]], params: list[SamplingParams]) -> list[RequestOutput]:
        requests = []
        for (_, token_ids), settings in zip(prompts, params, strict=True):
            requests.append(
                Request(request_id=f"llm-{self._num_requests}", prompt_ids=tuple(token_ids), params=settings)
            )
            self._num_requests += 1
        for request in requests:
            self._core.check(request)  # all are refused before any is queued
        collected: dict[str, RequestOutput] = {}
        for request, (text, token_ids) in zip(requests, prompts, strict=True):
            collected[request.request_id] = RequestOutput(
                request_id=request.request_id,
                prompt=text,
                prompt_token_ids=token_ids,
                outputs=[_empty(request, choice) for choice in range(request.params.n)],
            )
            self._core.add(request, lambda event: _collect(collected[event.request_id], event))
        try:
            while not self._core.is_idle:
                self._core.step()
        except BaseException:
            self._core.fail_all(None, FinishReason.CANCELLED)
            raise
        for output in [output for result in collected.values() for output in result.outputs]:
            if output.finish_reason == FinishReason.INVALID:
                raise InvalidRequest(output.error or "", param="grammar")
            output.text = self.tokenizer.decode([t for t in output.token_ids if t not in self._special])
        return list(collected.values())


def _is_token_ids(prompts: object) -> bool:
    return isinstance(prompts, Sequence) and bool(prompts) and all(isinstance(item, int) for item in prompts)


def _empty(request: Request, choice: int) -> CompletionOutput:
    return CompletionOutput(index=choice, token_ids=[], logprobs=None if request.params.logprobs is None else [])


def _collect(result: RequestOutput, event: TokenEvent) -> None:
    output = result.outputs[event.choice]
    if event.prompt_logprobs is not None:
        result.prompt_logprobs = list(event.prompt_logprobs)
    output.token_ids += event.token_ids
    if output.logprobs is not None and event.logprobs is not None:
        output.logprobs += event.logprobs
    output.finish_reason, output.error = event.finish and event.finish.value, event.error

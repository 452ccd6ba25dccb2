"""Sampling fields of OpenAI's APIs, vLLM's among them, and their conversion to the engine's parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from eyas.base.errors import InvalidRequest
from eyas.base.harmony.rendering import Effort
from eyas.base.tokens.tokenizer import TextCodec
from eyas.base.types import MAX_BAD_WORDS, SamplingParams
from eyas.gateway.http.body import Fields
from eyas.gateway.question.sampling import checked_stops, sampling_params
from eyas.gateway.turn.stops import Stops

__all__ = [
    "AskedEffort",
    "SamplingFields",
    "effort_of",
    "encode_bad_words",
    "params_of",
    "stops_of",
    "with_token_fields",
]

AskedEffort: TypeAlias = Literal["none", "minimal", "low", "medium", "high"]

MAX_BAD_WORD_CHARS = 1024

# Options that other servers have and this one lacks, each with the only value that has no effect.
NEUTRAL: Mapping[str, object] = {
    "use_beam_search": False,
    "length_penalty": 1.0,
    "priority": 0,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
}


class SamplingFields(Fields, kw_only=True):
    """Shared sampling fields of `/v1/chat/completions` and `/v1/completions`."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    prompt_logprobs: int | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    cache_salt: str | None = None
    cache_prompt: bool | None = None  # llama.cpp's: prefixes are cached in any case, and change no answer
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    priority: int | None = None
    truncate_prompt_tokens: None = None
    logits_processors: None = None
    guided_json: None = None  # vLLM's names before structured_outputs
    guided_regex: None = None
    guided_choice: None = None
    guided_grammar: None = None
    request_id: None = None
    kv_transfer_params: None = None
    vllm_xargs: None = None
    repetition_detection: None = None


def params_of(
    body: SamplingFields,
    defaults: Mapping[str, float],
    *,
    max_tokens: int | None,
    grammar: str | None = None,
    allowed: frozenset[str] = frozenset(),
) -> SamplingParams:
    """Return the parameters that say nothing in token ids. Raises InvalidRequest.

    `allowed` are names of NEUTRAL that this endpoint supports.
    """
    for name, neutral in NEUTRAL.items():
        if name not in allowed and getattr(body, name) not in (None, neutral):
            raise InvalidRequest(f"'{name}' is not supported by this server; leave it out", param=name)
    return sampling_params(msgspec.structs.asdict(body), defaults, max_tokens=max_tokens, grammar=grammar)


def with_token_fields(
    params: SamplingParams, body: SamplingFields, codec: TextCodec, *, logprobs: int | None
) -> SamplingParams:
    """Return `params` with the fields of `body` that name tokens or ask for their scores. Raises InvalidRequest."""
    return dataclasses.replace(
        params,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        logit_bias=body.logit_bias or {},
        logprobs=logprobs,
        prompt_logprobs=body.prompt_logprobs,
        allowed_token_ids=None if body.allowed_token_ids is None else tuple(body.allowed_token_ids),
        bad_words=encode_bad_words(codec, body.bad_words or []),
    )


def effort_of(asked: AskedEffort | None) -> Effort:
    """Return an effort that gpt-oss knows; it always reasons, "low" being the least."""
    if asked is None:
        return "medium"
    return "low" if asked == "none" or asked == "minimal" else asked


def stops_of(body: SamplingFields) -> Stops:
    """Return the stop strings. Raises InvalidRequest."""
    strings = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return checked_stops(strings, include=bool(body.include_stop_str_in_output), param="stop")


def encode_bad_words(codec: TextCodec, words: list[str]) -> tuple[tuple[int, ...], ...]:
    """Return the ids of each word at the beginning of a text and after a space.

    vLLM leaves the second out if its number of tokens differs, so that the word may still be generated. Raises
    InvalidRequest.
    """
    if len(words) > MAX_BAD_WORDS or any(len(word) > MAX_BAD_WORD_CHARS for word in words):  # before they are encoded
        raise InvalidRequest(
            f"bad_words takes at most {MAX_BAD_WORDS} words of at most {MAX_BAD_WORD_CHARS} characters",
            param="bad_words",
        )
    sequences: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip()
        if not bare:
            raise InvalidRequest("bad_words must not be empty or only white space", param="bad_words")
        sequences |= {tuple(codec.encode(text)): None for text in (bare, f" {bare}")}
    return tuple(sequences)

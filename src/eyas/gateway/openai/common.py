"""Shared parts of the OpenAI API's answers: usage, timings, acceptance, log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from eyas.base.tokens.tokenizer import TextCodec
from eyas.base.types import TokenLogprob
from eyas.gateway.turn.delta import Totals

__all__ = [
    "DONE",
    "LogprobEntry",
    "Metrics",
    "Timings",
    "TokenNames",
    "Usage",
    "metrics_of",
    "prompt_logprobs_json",
    "timings_of",
    "usage_of",
]

DONE = b"data: [DONE]\n\n"  # ends a stream of chat or completions


class Usage(Struct, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int] | None = None
    completion_tokens_details: dict[str, int] | None = None


class Timings(Struct, kw_only=True):
    """Timings by llama.cpp's names, which monitoring tools read; `predicted_per_second` excludes the first token."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float
    draft_n: int
    draft_n_accepted: int


class Speculation(Struct, kw_only=True):
    """Acceptance by vLLM's names. Entry j of the histogram counts the rounds that accepted exactly j drafts."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int


class Metrics(Struct, kw_only=True):
    time_to_first_token_ms: float
    generation_time_ms: float
    mean_itl_ms: float | None
    tokens_per_second: float | None
    speculative_decoding: Speculation | None


def usage_of(totals: Sequence[Totals]) -> Usage:
    """Return the usage of the choices of one prompt."""
    prompt, completion = totals[0].num_prompt, sum(one.num_tokens for one in totals)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details={"cached_tokens": _num_cached(totals)},
        completion_tokens_details={"reasoning_tokens": sum(one.num_reasoning for one in totals)},
    )


def timings_of(totals: Sequence[Totals]) -> Timings:
    """Return the timings of one choice, or of all choices of an answer, which ran concurrently."""
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


def metrics_of(totals: Totals) -> Metrics:
    """Return the metrics of one choice."""
    after, ms = totals.num_after_first, totals.predicted_ms
    return Metrics(
        time_to_first_token_ms=round(totals.prompt_ms, 3),
        generation_time_ms=round(ms, 3),
        mean_itl_ms=round(ms / after, 3) if after else None,
        tokens_per_second=round(after / ms * 1e3, 2) if ms else None,
        speculative_decoding=_speculation(totals) if totals.num_drafted else None,
    )


def _speculation(totals: Totals) -> Speculation:
    at_least = [totals.num_rounds, *totals.accepted_per_position]
    return Speculation(
        mean_acceptance_length=round(1 + totals.num_accepted / totals.num_rounds, 4),
        draft_acceptance_rate=round(totals.num_accepted / totals.num_drafted, 4),
        acceptance_histogram=[a - b for a, b in zip(at_least, [*at_least[1:], 0], strict=True)],
        num_spec_steps=totals.num_rounds,
        num_accepted_draft_tokens=totals.num_accepted,
        num_draft_tokens=totals.num_drafted,
        num_spec_tokens=len(totals.accepted_per_position),
    )


def _num_cached(totals: Sequence[Totals]) -> int:
    """Return the cached tokens of the choice that computed the prompt first; the others find it in the cache."""
    return min(one.num_cached for one in totals)


class LogprobEntry(Struct, kw_only=True, omit_defaults=True):
    """One token of `logprobs.content`, or of its `top_logprobs`."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[LogprobEntry] | None = None


class TokenNames:
    """Spells tokens in answers: as text, or as `token_id:N` with vLLM's return_tokens_as_token_ids."""

    def __init__(self, codec: TextCodec, *, as_ids: bool = False) -> None:
        self._token_bytes = codec.token_bytes
        self._as_ids = as_ids

    def name(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._as_ids else self._token_bytes(token_id).decode(errors="replace")

    def entry(self, token_id: int, logprob: TokenLogprob) -> LogprobEntry:
        entry = self._entry(token_id, logprob.logprob)
        entry.top_logprobs = [self._entry(*other) for other in logprob.top]
        return entry

    def _entry(self, token_id: int, logprob: float) -> LogprobEntry:
        return LogprobEntry(token=self.name(token_id), logprob=finite(logprob), bytes=list(self._token_bytes(token_id)))


def finite(logprob: float) -> float:
    """Replace -infinity, which JSON lacks, by -9999, as OpenAI's API and vLLM do for impossible tokens."""
    return max(logprob, -9999.0)


def prompt_logprobs_json(
    names: TokenNames, prompt_ids: Sequence[int], logprobs: Sequence[TokenLogprob]
) -> list[dict[str, Any] | None]:
    """Return vLLM's `prompt_logprobs`: per position a map by token id, None for the first."""
    out: list[dict[str, Any] | None] = [None]
    for token_id, logprob in zip(prompt_ids[1:], logprobs, strict=True):
        ranks = {other: (rank, value) for rank, (other, value) in enumerate(logprob.top, 1)}
        ranks.setdefault(token_id, (0, logprob.logprob))
        out.append(
            {
                str(other): {"logprob": finite(value), "rank": rank or None, "decoded_token": names.name(other)}
                for other, (rank, value) in ranks.items()
            }
        )
    return out

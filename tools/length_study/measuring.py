"""Lets the engine answer held-out chats with a head, and counts its rounds by context and by distance of the quote.

By context: rounds over content, as `eyas bench acceptance` counts them; prompt and answer of a chat lie within one
bucket. By distance: rounds whose first token belongs to a quoted text, as long as the answer is the right one, with
their content.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tools.length_study.quoting import BUCKETS, Quote, QuoteWriter, bucket_lengths, bucket_of, quotes_of

from eyas.base.harmony.rendering import render_conversation
from eyas.base.settings.config import EngineConfig
from eyas.base.tokens.tokenizer import TextCodec
from eyas.base.types import Request, SamplingParams, TokenEvent
from eyas.bench.engine.drive import run_requests
from eyas.bench.engine.rounds import ContentMarker, count_content
from eyas.engine.startup.load import load_engine_parts

__all__ = ["DRAFT_TOKENS", "Counts", "Prompt", "counts_of", "engine_events", "measure", "prompts_of"]

DRAFT_TOKENS = 4
AT_ONCE = 8
SPARE_TOKENS = 24  # of an answer that is longer than the right one

Counts = dict[str, list[list[tuple[int, int]]]]  # tokens and rounds, by "context" or "distance", bucket and prompt
Events = Sequence[TokenEvent]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, the right answer behind it, and the texts that this repeats; `bucket` is that of its context."""

    bucket: int
    ids: tuple[int, ...]
    answer: tuple[int, ...]
    quotes: tuple[Quote, ...]


def prompts_of(codec: TextCodec, *, count: int, longest: int) -> list[Prompt]:
    """Return `count` prompts a bucket, which no training draws."""
    found: list[Prompt] = []
    for bucket, (least, most) in enumerate(bucket_lengths(longest)):
        writer = QuoteWriter(codec, Random(f"measured:{bucket}"))
        while len(found) < count * (bucket + 1):
            chat = writer.chat(least, most)
            prompt = render_conversation(codec, chat.given())
            answer = render_conversation(codec, [*chat.given(), *chat.own()], purpose="training")[len(prompt) :]
            if len(prompt) >= BUCKETS[bucket]:
                found.append(Prompt(bucket, tuple(prompt), tuple(answer), tuple(quotes_of(codec, chat))))
    return found


def engine_events(
    target: Path | str,
    head: Path,
    prompts: Sequence[tuple[Sequence[int], int]],
    *,
    context: int,
    temperature: float,
    device: str,
) -> tuple[TextCodec, list[Events]]:
    """Answer prompts, each with the most tokens of its answer; return the tokenizer and the events of each answer."""
    config = EngineConfig(
        model=str(target), draft=str(head), draft_tokens=DRAFT_TOKENS, context=context, concurrency=AT_ONCE,
        device=device,
    )  # fmt: skip
    loaded = load_engine_parts(config)
    requests = [
        Request(
            request_id=str(number),
            prompt_ids=tuple(ids),
            params=SamplingParams(temperature=temperature, seed=0, max_tokens=min(limit, context - len(ids))),
        )
        for number, (ids, limit) in enumerate(prompts)
    ]
    done = run_requests(loaded.built.core, requests, batch=AT_ONCE)
    return loaded.tokenizer, list(done.events.values())


def measure(target: Path, head: Path, prompts: Sequence[Prompt], *, longest: int, device: str) -> Counts:
    """Return what the engine commits with a head at temperature 0."""
    asked = [(one.ids, len(one.answer) + SPARE_TOKENS) for one in prompts]
    codec, events = engine_events(target, head, asked, context=longest, temperature=0.0, device=device)
    return counts_of(prompts, events, codec)


def counts_of(prompts: Sequence[Prompt], events: Sequence[Events], codec: TextCodec) -> Counts:
    num_buckets = 1 + max(one.bucket for one in prompts)
    counts: Counts = {kind: [[(0, 0)] * len(prompts) for _ in range(num_buckets)] for kind in ("context", "distance")}
    for number, (prompt, some) in enumerate(zip(prompts, events, strict=True)):
        content = count_content(some, codec)
        counts["context"][prompt.bucket][number] = (content.num_tokens, content.num_rounds)
        for bucket, tokens in _quoting_rounds(prompt, some, codec):
            before = counts["distance"][bucket][number]
            counts["distance"][bucket][number] = (before[0] + tokens, before[1] + 1)
    return counts


def _quoting_rounds(prompt: Prompt, events: Events, codec: TextCodec) -> Iterator[tuple[int, int]]:
    """Yield the bucket of the distance and the content tokens of each round that begins in a quoted text."""
    marker, at = ContentMarker(codec), 0
    for event in events:
        ids = event.token_ids
        num_content = (marker.mark(ids) + [False]).index(False)
        place = len(prompt.ids) + at
        quote = next((one for one in prompt.quotes if one.answer <= place < one.answer + one.length), None)
        if event.round is not None and num_content and quote is not None:
            yield bucket_of(quote.distance), num_content
        if tuple(ids) != prompt.answer[at : at + len(ids)]:
            return
        at += len(ids)

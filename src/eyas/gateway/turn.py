"""One assistant turn: a request on its way through the engine, its tokens read as reasoning and content.

Knows the engine port and Harmony, and no dialect: what it yields is what every dialect needs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from eyas.base.harmony_parser import ParserEvent, StreamParser, TextDelta, is_addressed
from eyas.base.ports import EnginePort
from eyas.base.tokenizer import CONTROL_TOKENS, TextCodec
from eyas.base.types import FinishReason, Request, TokenEvent, TokenLogprob
from eyas.gateway.errors import EngineFailed
from eyas.gateway.stops import StopMatcher

__all__ = ["Delta", "ScoredToken", "Totals", "Turn"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredToken:
    """A token of the content with its log-probabilities."""

    token_id: int
    logprob: TokenLogprob


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """What one choice took. `num_tokens` counts up to the token that completed a stop string, and no further."""

    num_prompt: int
    num_cached: int
    num_tokens: int
    num_reasoning: int
    num_drafted: int
    num_accepted: int
    prompt_ms: float  # from submitting to the first token
    predicted_ms: float  # from the first token to the last
    num_after_first: int  # tokens that came in predicted_ms


@dataclass(frozen=True, kw_only=True, slots=True)
class Delta:
    """What one engine event adds to one choice; the last delta of a choice has `finish` and `totals`."""

    choice: int
    reasoning: str = ""
    content: str = ""
    scored: tuple[ScoredToken, ...] = ()
    finish: FinishReason | None = None
    totals: Totals | None = None


class Turn:
    """Submits the request when made; whoever makes a turn calls `close` in the end, however it ends.

    Must be made inside the event loop. Stop strings are matched in the content, not in the reasoning.
    """

    def __init__(self, engine: EnginePort, codec: TextCodec, request: Request, *, stops: tuple[str, ...] = ()) -> None:
        self._engine = engine
        self._request_id = request.request_id
        self._choices = [_Choice(codec, request, index, StopMatcher(stops)) for index in range(request.params.n)]
        self._events: asyncio.Queue[tuple[float, TokenEvent]] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def deliver(event: TokenEvent) -> None:
            loop.call_soon_threadsafe(self._events.put_nowait, (time.perf_counter(), event))

        engine.submit(request, deliver)

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """Deltas of all choices as they come, those without anything to show left out. Raises EngineFailed."""
        while not all(choice.done for choice in self._choices):
            now, event = await self._events.get()
            choice = self._choices[event.choice]
            if choice.done:  # its stop string came earlier; other choices of the request still run
                continue
            if event.finish is FinishReason.ERROR:
                raise EngineFailed(event.error or "the engine failed")
            if event.finish is FinishReason.CANCELLED:
                raise EngineFailed("the request was cancelled: the server is stopping")
            delta = choice.take(event, now)
            if choice.done and event.finish is None:  # by a stop string, of which the engine knows nothing
                self._engine.cancel(self._request_id, event.choice)
            if delta.finish or delta.content or delta.reasoning:
                yield delta

    def close(self) -> None:
        """Give up what the engine still does for this turn."""
        self._engine.cancel(self._request_id)


class _Choice:
    """One choice of a turn: parses, stops, counts."""

    def __init__(self, codec: TextCodec, request: Request, index: int, matcher: StopMatcher) -> None:
        self.done = False
        self._index = index
        self._control = frozenset(codec.special[name] for name in CONTROL_TOKENS)
        self._parser = StreamParser(codec)
        self._matcher = matcher
        self._min_tokens = request.params.min_tokens
        self._num_prompt = len(request.prompt_ids)
        self._num_tokens = self._num_reasoning = self._num_drafted = self._num_accepted = 0
        self._submitted = self._first = time.perf_counter()
        self._num_first = 0
        self._unread: list[ScoredToken | None] = []  # tokens since the last delta: parts of a character
        self._num_fed = self._num_shown = 0  # characters of content
        self._scored: list[tuple[int, int, ScoredToken]] = []  # where in the content each begins and ends

    def take(self, event: TokenEvent, now: float) -> Delta:
        """Read one event's tokens, up to the one that completes a stop string."""
        if not self._num_tokens:
            self._first, self._num_first = now, len(event.token_ids)
        if event.round is not None:
            self._num_drafted += len(event.round.draft_ids)
            self._num_accepted += event.round.num_accepted
        reasoning: list[str] = []
        content: list[str] = []
        for i, token_id in enumerate(event.token_ids):
            self._num_tokens += 1
            scored = ScoredToken(token_id=token_id, logprob=event.logprobs[i]) if event.logprobs else None
            self._read(token_id, scored, reasoning, content)
            if self._matcher.stopped:
                break
        finish = FinishReason.STOP if self._matcher.stopped else event.finish
        if finish is not None:
            self.done = True
            if not self._matcher.stopped:
                self._sort(self._parser.finish(), self._unread, reasoning, content)
                content.append(self._matcher.flush())
        text = "".join(content)
        self._num_shown += len(text)
        return Delta(
            choice=self._index,
            reasoning="".join(reasoning),
            content=text,
            scored=self._take_scored() if text or finish else (),
            finish=finish,
            totals=self._totals(event, now) if finish else None,
        )

    def _read(self, token_id: int, scored: ScoredToken | None, reasoning: list[str], content: list[str]) -> None:
        is_control = token_id in self._control
        if not is_control:
            self._unread.append(scored)
        deltas = self._parser.feed((token_id,))
        if deltas or is_control:  # what a control token leaves unread was a header
            tokens, self._unread = self._unread, []
            self._sort(deltas, tokens, reasoning, content)

    def _sort(
        self, events: list[ParserEvent], tokens: list[ScoredToken | None], reasoning: list[str], content: list[str]
    ) -> None:
        """Put text where it is shown: content is what is meant for the user, reasoning everything else."""
        for delta in events:
            if not isinstance(delta, TextDelta):
                continue
            if delta.channel == "analysis" or is_addressed(delta.recipient):
                self._num_reasoning += len(tokens)
                reasoning.append(delta.text)
                continue
            begin, self._num_fed = self._num_fed, self._num_fed + len(delta.text)
            self._scored += [(begin, self._num_fed, token) for token in tokens if token is not None]
            if self._num_tokens > self._min_tokens:
                content.append(self._matcher.feed(delta.text))
            else:
                content.append(delta.text)

    def _take_scored(self) -> tuple[ScoredToken, ...]:
        """Tokens whose text is shown: whole ones while the text grows, and the cut one at a stop string."""
        shown = self._num_shown
        out = [(begin < shown if self._matcher.stopped else end <= shown) for begin, end, _ in self._scored]
        ready = tuple(token for (_, _, token), is_out in zip(self._scored, out, strict=True) if is_out)
        self._scored = [entry for entry, is_out in zip(self._scored, out, strict=True) if not is_out]
        return ready

    def _totals(self, event: TokenEvent, now: float) -> Totals:
        return Totals(
            num_prompt=self._num_prompt,
            num_cached=event.num_cached,
            num_tokens=self._num_tokens,
            num_reasoning=self._num_reasoning,
            num_drafted=self._num_drafted,
            num_accepted=self._num_accepted,
            prompt_ms=(self._first - self._submitted) * 1e3,
            predicted_ms=(now - self._first) * 1e3,
            num_after_first=self._num_tokens - self._num_first,
        )

"""Chunks of a chat as deltas of an answer: one message after the other, stop strings, why it ended, what it took."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from eyas.base.harmony.tools import FUNCTIONS
from eyas.base.types import FinishReason
from eyas.gateway.turn.delta import Delta, Kind, Piece, PromptCounts, Totals
from eyas.gateway.turn.stops import StopMatcher, Stops
from eyas.router.messages.chunks import ChatAnswer, ChatCall, ChatMessage, ChatUsage
from eyas.router.messages.marks import Restorer
from eyas.router.upstream.errors import UpstreamError

__all__ = ["ChatReader"]

GIVEN_UP = ("abort", "error")  # vLLM and SGLang end a stream so when the engine has dropped the request


class _Saying:
    """One message of the answer: its text on the way from the backend to the client."""

    def __init__(self, number: int, kind: Kind, stops: Stops) -> None:
        self.number = number
        self.kind = kind
        self.name: str | None = None
        self.is_announced = False
        self._restorer = Restorer(is_json=kind is Kind.CALL)
        self._matcher = StopMatcher(stops.strings if kind is Kind.CONTENT else ())
        self._ready = ""

    @property
    def stopped(self) -> str | None:
        return self._matcher.stopped

    def add(self, text: str) -> None:
        self._ready += self._matcher.feed(self._restorer.feed(text))

    def close(self) -> None:
        """Release what is held back: no stop string spans two messages."""
        if self.stopped is None:
            self._ready += self._matcher.feed(self._restorer.flush())
        if self.stopped is None:
            self._ready += self._matcher.flush()

    def take(self) -> Piece | None:
        """Return what has come since the last time; a call is announced without text, too."""
        text, self._ready = self._ready, ""
        if not text and (self.kind is not Kind.CALL or self.is_announced):
            return None
        self.is_announced = True
        return Piece(message=self.number, kind=self.kind, text=text, name=self.name)


class ChatReader:
    """Reads the chunks of one answer, or a whole one.

    Blocks of a message never interleave, and chunks may: while a call is open, what does not belong to it waits. Stop
    strings are matched here, in the content only: backends match them in reasoning, too, and do not say which it was.
    `functions` are the names that may be called; backends leave the namespace in front of some.
    """

    def __init__(self, *, stops: Stops, functions: Collection[str], max_tokens: int) -> None:
        self.stopped: str | None = None  # the stop string that came: nothing behind it is read
        self._stops = stops
        self._functions = functions
        self._max_tokens = max_tokens
        self._open: list[_Saying] = []  # the first one's text is sent as it comes
        self._calls: dict[int, _Saying] = {}
        self._num_sayings = self._num_chunks = 0
        self._usage: ChatUsage | None = None
        self._reason: str | None = None
        self._is_new = True

    def feed(self, answer: ChatAnswer) -> Delta | None:
        """Return what a chunk adds, None if there is nothing to show yet."""
        if answer.usage is not None:
            self._usage = answer.usage
        for choice in answer.choices:
            if choice.index != 0:
                continue
            said = choice.message if choice.delta is None else choice.delta
            if said is not None and self.stopped is None:
                self._read(said)
            self._reason = choice.finish_reason or self._reason
        pieces = self._pieces()
        return self._delta(pieces) if pieces else None

    def finish(self) -> Delta:
        """Return the last delta. Raises UpstreamError if the answer is not complete."""
        if self.stopped is None:
            if self._reason is None:
                raise UpstreamError("broken", "the stream ended in the middle of the answer")
            if self._reason in GIVEN_UP:
                raise UpstreamError("broken", f"the backend gave the answer up: '{self._reason}'")
        pieces = self._pieces(is_last=True)
        is_cut = self.stopped is None and self._reason == "length"
        delta = self._delta(pieces)
        return msgspec.structs.replace(
            delta,
            finish=FinishReason.LENGTH if is_cut else FinishReason.STOP,
            stop_reason=self.stopped,
            totals=self._totals(is_cut=is_cut),
        )

    def _read(self, said: ChatMessage) -> None:
        if reasoning := said.reasoning_content or said.reasoning:
            self._text(Kind.REASONING, reasoning)
        for content in (said.content, said.refusal):
            if content and self.stopped is None:
                self._text(Kind.CONTENT, content)
        if self.stopped is None:
            for call in said.tool_calls or ():
                self._call(call)
        self._num_chunks += 1

    def _text(self, kind: Kind, text: str) -> None:
        last = self._open[-1] if self._open else None
        saying = last if last is not None and last.kind is kind else self._begin(kind)
        if saying is not None:
            saying.add(text)
            self.stopped = saying.stopped

    def _call(self, call: ChatCall) -> None:
        function = call.function
        name = None if function is None else function.name
        index = call.index
        if index is None:  # a whole answer, or a backend that does not count
            is_more = name is None and bool(self._calls)
            index = max(self._calls) if is_more else len(self._calls)
        saying = self._calls.get(index) or self._begin(Kind.CALL)
        if saying is None:
            return
        self._calls[index] = saying
        if name and saying.name is None:
            saying.name = self._bare(name)
        if function is not None and function.arguments:
            given = function.arguments
            saying.add(given if isinstance(given, str) else msgspec.json.encode(given).decode())

    def _bare(self, name: str) -> str:
        bare = name.removeprefix(f"{FUNCTIONS}.")
        return bare if bare in self._functions and name not in self._functions else name

    def _begin(self, kind: Kind) -> _Saying | None:
        """Return a new message; None if the end of the last one was a stop string."""
        if self._open and self._open[-1].kind is not Kind.CALL:
            self._open[-1].close()
            self.stopped = self._open[-1].stopped
            if self.stopped is not None:
                return None
        saying = _Saying(self._num_sayings, kind, self._stops)
        self._num_sayings += 1
        self._open.append(saying)
        return saying

    def _pieces(self, *, is_last: bool = False) -> tuple[Piece, ...]:
        """Return what the client may see: of the first message, and of the next ones if that one has ended."""
        pieces = []
        while self._open:
            first = self._open[0]
            is_done = is_last or (first.kind is not Kind.CALL and len(self._open) > 1)
            if is_last:
                first.close()
                self.stopped = self.stopped or first.stopped
            if first.kind is Kind.CALL and first.name is None:
                if not is_last:
                    break
                raise UpstreamError("malformed", "the answer calls a tool without its name")
            if (piece := first.take()) is not None:
                pieces.append(piece)
            if not is_done:
                break
            self._open.pop(0)
        return tuple(pieces)

    def _delta(self, pieces: tuple[Piece, ...]) -> Delta:
        usage, prompt = self._usage, None
        if self._is_new and usage is not None and usage.prompt_tokens is not None:
            prompt = PromptCounts(num_prompt=usage.prompt_tokens, num_cached=usage.num_cached)
        self._is_new = False
        return Delta(choice=0, pieces=pieces, prompt=prompt)

    def _totals(self, *, is_cut: bool) -> Totals:
        """Return the counts; without usage a chunk counts as a token."""
        usage = self._usage or ChatUsage()
        num_tokens = usage.completion_tokens
        if num_tokens is None:
            num_tokens = self._max_tokens if is_cut else self._num_chunks
        return Totals(
            num_prompt=usage.prompt_tokens or 0,
            num_cached=usage.num_cached,
            num_tokens=num_tokens,
            num_reasoning=usage.num_reasoning,
            num_rounds=0,
            num_drafted=0,
            num_accepted=0,
            accepted_per_position=(),
            queue_ms=0,
            prompt_ms=0,
            predicted_ms=0,
            num_after_first=0,
        )

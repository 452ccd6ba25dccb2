"""One choice of a turn: reads its tokens, ends it at a stop string, counts tokens and times. No engine, no loop."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec.structs import replace

from eyas.base.types import FinishReason, Request, TokenEvent, TokenLogprob
from eyas.gateway.turn.delta import Delta, Kind, Piece, PromptCounts, ScoredToken, Totals
from eyas.gateway.turn.readers import Reader
from eyas.gateway.turn.stops import StopMatcher, Stops

__all__ = ["ChoiceReader"]


class ChoiceReader:
    """Reads one choice. Stop strings are matched in the content of one message at a time, not in reasoning or calls."""

    def __init__(self, request: Request, index: int, reader: Reader, stops: Stops, eos_ids: Sequence[int]) -> None:
        params = request.params
        self.done = False
        self._is_new = True  # no delta yet
        self._index = index
        self._reader = reader
        self._matcher = StopMatcher(stops.strings, include=stops.include)
        self._include = stops.include
        self._by_token = params.logprobs is not None or bool(stops.strings)
        self._stop_ids = frozenset(params.stop_token_ids) - (frozenset() if params.ignore_eos else frozenset(eos_ids))
        self._min_tokens = params.min_tokens
        # Counters.
        self._num_prompt = len(request.prompt_ids)
        self._num_cached = self._num_tokens = self._num_reasoning = 0
        self._num_rounds = self._num_drafted = self._num_accepted = self._num_first = 0
        self._accepted: list[int] = []
        self._submitted = self._began = self._first = self._last = time.perf_counter()
        # Collected since the last delta.
        self._pieces: list[Piece] = []
        self._token_ids: list[int] = []
        self._prompt_logprobs: tuple[TokenLogprob, ...] | None = None
        # Tokens whose text is pending: parts of a character, then text that a stop string may still remove.
        self._unread: list[ScoredToken | None] = []
        self._num_fed = self._num_shown = 0  # characters of content
        self._scored: list[tuple[int, int, ScoredToken]] = []  # begin and end of each in the content
        self._content: Piece | None = None  # the matcher may hold back its end

    def take(self, event: TokenEvent, now: float) -> Delta | None:
        """Return the delta of one event; None if there is nothing to show yet. Reads up to the end of a stop string."""
        self._count(event, now)
        self._read_all(event)
        if event.prompt_logprobs is not None:
            self._prompt_logprobs = event.prompt_logprobs
        if event.finish is not None and self._matcher.stopped is None:
            tokens = [] if self._reader.kind is None else self._unread
            self._sort(self._reader.finish(), tokens)
            self._flush()
        finish = FinishReason.STOP if self._matcher.stopped is not None else event.finish
        if finish is not None:
            self.done = True
        elif not self._pieces and self._prompt_logprobs is None:
            return None
        delta = Delta(
            choice=self._index,
            pieces=tuple(self._pieces),
            token_ids=tuple(self._token_ids),
            scored=self._take_scored() if self._scored else (),
            finish=finish,
            stop_reason=self._stop_reason(event) if finish is FinishReason.STOP else None,
            totals=self.totals() if finish else None,
            prompt_logprobs=self._prompt_logprobs,
            prompt=PromptCounts(num_prompt=self._num_prompt, num_cached=self._num_cached) if self._is_new else None,
        )
        self._is_new = False
        self._pieces.clear()
        self._token_ids.clear()
        self._prompt_logprobs = None
        return delta

    def totals(self) -> Totals:
        """Return the current counters."""
        return Totals(
            num_prompt=self._num_prompt,
            num_cached=self._num_cached,
            num_tokens=self._num_tokens,
            num_reasoning=self._num_reasoning,
            num_rounds=self._num_rounds,
            num_drafted=self._num_drafted,
            num_accepted=self._num_accepted,
            accepted_per_position=tuple(self._accepted),
            queue_ms=(self._began - self._submitted) * 1e3,
            prompt_ms=(self._first - self._submitted) * 1e3,
            predicted_ms=(self._last - self._first) * 1e3,
            num_after_first=self._num_tokens - self._num_first,
        )

    def _count(self, event: TokenEvent, now: float) -> None:
        if not self._num_tokens:
            self._first, self._num_first = now, len(event.token_ids)
            self._began = event.began or self._submitted
        self._last = now
        self._num_cached = event.num_cached
        if event.round is not None:
            drafted, accepted = len(event.round.draft_ids), event.round.num_accepted
            self._num_rounds += 1
            self._num_drafted += drafted
            self._num_accepted += accepted
            if drafted > len(self._accepted):
                self._accepted += [0] * (drafted - len(self._accepted))
            for position in range(accepted):
                self._accepted[position] += 1

    def _read_all(self, event: TokenEvent) -> None:
        """Read all tokens; one by one only if it matters which token has which text."""
        ids = event.token_ids
        is_cut = event.finish is FinishReason.STOP and not self._include
        # A stop token that is text is hidden, as in vLLM.
        num_text = len(ids) - (1 if is_cut and ids and ids[-1] not in self._reader.control else 0)
        if not self._by_token and self._reader.control.isdisjoint(ids):
            self._take_ids(ids[:num_text], [None] * num_text)
        else:
            for i in range(num_text):
                scored = ScoredToken(token_id=ids[i], logprob=event.logprobs[i]) if event.logprobs else None
                self._take_ids(ids[i : i + 1], [scored])
                if self._matcher.stopped is not None:
                    return
        self._num_tokens += len(ids) - num_text
        self._token_ids += ids[num_text:]
        if num_text < len(ids) and event.logprobs and self._reader.kind is Kind.CONTENT:
            end = ScoredToken(token_id=ids[-1], logprob=event.logprobs[-1])
            self._scored.append((self._num_fed, self._num_fed, end))

    def _take_ids(self, ids: Sequence[int], scored: list[ScoredToken | None]) -> None:
        self._num_tokens += len(ids)
        self._token_ids += ids
        is_control = len(ids) == 1 and ids[0] in self._reader.control
        if not is_control:
            self._unread += scored
        in_header = self._reader.kind is None
        pieces = self._reader.read(ids)
        if pieces or is_control:
            tokens, self._unread = self._unread, []
            self._sort(pieces, [] if in_header else tokens)  # of a malformed header words are shown, and no token is

    def _sort(self, pieces: list[Piece], tokens: list[ScoredToken | None]) -> None:
        for piece in pieces:
            if self._content is not None and piece.message != self._content.message:
                self._flush()
            if piece.kind is Kind.CONTENT:
                self._content = piece
                piece = self._match(piece, tokens)
            elif piece.kind is Kind.REASONING:
                self._num_reasoning += len(tokens)
            tokens = []
            if piece.text or piece.kind is Kind.CALL:
                self._show(piece)

    def _match(self, piece: Piece, tokens: list[ScoredToken | None]) -> Piece:
        begin, self._num_fed = self._num_fed, self._num_fed + len(piece.text)
        self._scored += [(begin, self._num_fed, token) for token in tokens if token is not None]
        text = self._matcher.feed(piece.text) if self._num_tokens > self._min_tokens else piece.text
        self._num_shown += len(text)
        return piece if text == piece.text else replace(piece, text=text)

    def _flush(self) -> None:
        """Release held text at the end of a message: no stop string spans two messages, or the end."""
        text = self._matcher.flush()
        if text and self._content is not None:
            self._num_shown += len(text)
            self._show(replace(self._content, text=text))
        self._content = None

    def _show(self, piece: Piece) -> None:
        if self._pieces and (last := self._pieces[-1]).message == piece.message:
            self._pieces[-1] = replace(last, text=last.text + piece.text)
        else:
            self._pieces.append(piece)

    def _take_scored(self) -> tuple[ScoredToken, ...]:
        """Return the tokens whose text is shown: whole ones while the text grows, the cut one at a stop string."""
        shown, stopped = self._num_shown, self._matcher.stopped is not None
        out = [begin < shown if stopped else end <= shown for begin, end, _ in self._scored]
        ready = tuple(token for (_, _, token), is_out in zip(self._scored, out, strict=True) if is_out)
        self._scored = [entry for entry, is_out in zip(self._scored, out, strict=True) if not is_out]
        return ready

    def _stop_reason(self, event: TokenEvent) -> str | int | None:
        if self._matcher.stopped is not None:
            return self._matcher.stopped
        last = event.token_ids[-1] if event.token_ids else None
        return last if last in self._stop_ids else None

"""Shows the tokens of random weights as text, so that every client of an endpoint can measure them.

They are drawn from a vocabulary that no tokenizer here knows, and follow no format. Each becomes a word of the
tokenizer, and the first of an answer become the header of a final message. How many there are, and when, stays as it
was.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from eyas.base.ports import Deliver, Observe
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.base.types import EngineStats, ModelInfo, Request, StepReport, TokenEvent, TokenLogprob
from eyas.engine.ports.threaded import Engine

__all__ = ["RandomText"]


class RandomText:
    """An engine whose reports have readable tokens; events come with them alone, as in an engine's process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        tokenizer = engine.tokenizer
        special = tokenizer.special
        self._header = (special["<|channel|>"], *tokenizer.encode("final"), special["<|message|>"])
        self._words = _words(tokenizer)
        self._lengths: dict[tuple[str, int], int] = {}  # tokens so far, of the answers under way

    @property
    def info(self) -> ModelInfo:
        return self._engine.info

    @property
    def failure(self) -> str | None:
        return self._engine.failure

    @property
    def current_step(self) -> int:
        """The number of the current step, from 1; 0 between steps."""
        return self._engine.current_step

    def submit(self, request: Request, deliver: Deliver) -> None:
        self._engine.submit(request, deliver)

    def cancel(self, request_id: str, choice: int | None = None) -> None:
        self._engine.cancel(request_id, choice)

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def observe(self, observe: Observe | None) -> None:
        if observe is None:
            self._engine.observe(None)
            return

        def report(step: StepReport) -> None:
            observe(replace(step, events=tuple(map(self.readable, step.events))))

        self._engine.observe(report)

    def close(self) -> None:
        self._engine.close()

    def readable(self, event: TokenEvent) -> TokenEvent:
        """Return an event with words in place of its tokens; events of an answer come in order."""
        key = (event.request_id, event.choice)
        begin = self._lengths.pop(key, 0)
        if event.finish is None:
            self._lengths[key] = begin + len(event.token_ids)
        header = self._header[begin : begin + len(event.token_ids)]
        ids = (*header, *self._of(event.token_ids[len(header) :]))
        trace = event.round and event.round._replace(draft_ids=self._of(event.round.draft_ids))
        logprobs = event.logprobs and tuple(map(self._logprob, event.logprobs))
        prompt = event.prompt_logprobs and tuple(map(self._logprob, event.prompt_logprobs))
        return replace(event, token_ids=ids, round=trace, logprobs=logprobs, prompt_logprobs=prompt)

    def _of(self, ids: Iterable[int]) -> tuple[int, ...]:
        return tuple(self._words[token % len(self._words)] for token in ids)

    def _logprob(self, one: TokenLogprob) -> TokenLogprob:
        return replace(one, top=tuple((self._words[token % len(self._words)], value) for token, value in one.top))


def _words(tokenizer: Tokenizer) -> tuple[int, ...]:
    """List the tokens that are letters after a blank."""
    pieces = ((token, tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size))
    return tuple(token for token, piece in pieces if piece[:1] == b" " and piece[1:].isalpha() and piece.isascii())

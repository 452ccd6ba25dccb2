"""An engine without a model: replays fixed token ids, so that all layers above an engine run without torch.

It behaves like an engine (own thread, rounds, stops, budgets, cancellation, statistics) but refuses nothing, and it
simulates speculation: every round drafts `drafts_per_round` tokens and accepts all but the last.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from eyas.base.checks import check_request
from eyas.base.errors import Unavailable
from eyas.base.histogram import STEP_TOKENS, Histogram
from eyas.base.ports import Deliver, Observe
from eyas.base.types import (
    EngineStats,
    FinishReason,
    ModelInfo,
    PageOwner,
    Request,
    RoundTrace,
    StepReport,
    TokenEvent,
    TokenLogprob,
)

__all__ = ["StubEngine"]

STUB_LOGPROB = -0.25
PAGE_SIZE = 16
SLIDING_PAGES = 9  # a window of 128 tokens and the page that it has partly left
NUM_PAGES = 8192
log = logging.getLogger(__name__)


class StubEngine:
    """Answers every choice with `reply(request, choice)`, `drafts_per_round` tokens at a time, all from one thread.

    `round_s` is the pause before each round; `num_cached` is reported as served from the prefix cache.
    The context's end, `max_tokens`, stop ids and end-of-turn ids cut the reply as in a real engine.
    """

    def __init__(
        self,
        info: ModelInfo,
        reply: Callable[[Request, int], Sequence[int]],
        *,
        drafts_per_round: int = 3,
        round_s: float = 0.0,
        num_cached: int = 0,
    ) -> None:
        self.info = info
        self.failure: str | None = None  # set by tests
        self._reply = reply
        self._drafts_per_round = drafts_per_round
        self._round_s = round_s
        self._num_cached = num_cached
        self._stats = EngineStats(pages_total={"full": NUM_PAGES, "sliding": NUM_PAGES})
        self._observe: Observe | None = None
        self._num_steps = 0
        self.step_tokens = Histogram(STEP_TOKENS)
        self._step_numbers = itertools.count(1)
        self._current_step = 0
        self._running: dict[str, list[_Choice]] = {}
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="stub-engine", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        return None

    @property
    def current_step(self) -> int:
        """The number of the current step, from 1; 0 between steps."""
        return self._current_step

    def submit(self, request: Request, deliver: Deliver) -> None:
        budget = check_request(request, context=self.info.context, vocab_size=self.info.vocab_size)
        choices = [
            _Choice(request, index, tuple(self._reply(request, index)), budget, self.info.eos_ids, deliver)
            for index in range(request.params.n)
        ]
        with self._wake:
            if self.failure is not None or self._closing:
                raise Unavailable(self.failure or "the engine is stopping")
            self._running[request.request_id] = choices
            self._stats = replace(
                self._stats,
                num_prompt_tokens=self._stats.num_prompt_tokens + len(request.prompt_ids),
                num_cached_tokens=self._stats.num_cached_tokens + self._num_cached,
            )
            self._wake.notify()

    def cancel(self, request_id: str, choice: int | None = None) -> None:
        with self._wake:
            for one in self._running.get(request_id, ()):
                one.cancelled |= choice in (None, one.index)

    def stats(self) -> EngineStats:
        with self._wake:
            pages = self._pages()
            used = {"full": sum(p.num_full for p in pages), "sliding": sum(p.num_sliding for p in pages)}
            return replace(self._stats, num_running=sum(map(len, self._running.values())), pages_used=used)

    def observe(self, observe: Observe | None) -> None:
        self._observe = observe

    def close(self) -> None:
        with self._wake:
            for one in (one for group in self._running.values() for one in group):
                one.cancelled = True
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _loop(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._running or self._closing)
                if not self._running:
                    return
                newest_first = reversed(self._running.values())
                choices = [choice for request in newest_first for choice in request if not choice.done]
            began, self._current_step = time.perf_counter(), next(self._step_numbers)
            new = [choice for choice in choices if not choice.began]
            for choice in new:
                choice.began = began
            if self._round_s:
                time.sleep(self._round_s)
            events = [(choice, self._round(choice)) for choice in choices]
            with self._wake:
                for _, event in events:
                    self._count(event)
                for request_id in [key for key, group in self._running.items() if all(one.done for one in group)]:
                    del self._running[request_id]
            self._current_step = 0
            for choice, event in events:
                try:
                    choice.deliver(event)
                except Exception:
                    log.exception("token callback of request %s raised", event.request_id)
            num_prompt = sum(len(choice.request.prompt_ids) for choice in new if choice.index == 0)
            self._report(tuple(event for _, event in events), (time.perf_counter() - began) * 1e3, num_prompt)

    def _report(self, events: tuple[TokenEvent, ...], ms: float, num_prompt_tokens: int) -> None:
        self._num_steps += 1
        self.step_tokens.add(num_prompt_tokens + sum(len(event.token_ids) for event in events))
        if (observe := self._observe) is None:
            return
        has_round = any(event.round is not None for event in events)
        with self._wake:
            pages = self._pages()
        report = StepReport(
            step=self._num_steps,
            ms=ms,
            num_drafts=self._drafts_per_round if has_round else 0,
            events=events,
            stats=self.stats(),
            pages=pages,
            num_prompt_tokens=num_prompt_tokens,
        )
        try:
            observe(report)
        except Exception:
            log.exception("step observer raised")

    def _pages(self) -> tuple[PageOwner, ...]:
        """Return the pages of each choice as if it held its own for its prompt and answer."""
        return tuple(choice.pages() for group in self._running.values() for choice in group if not choice.done)

    def _round(self, choice: _Choice) -> TokenEvent:
        if choice.cancelled:
            return choice.event((), FinishReason.CANCELLED, None, self._num_cached)
        first = choice.num_done == 0
        ids, finish = choice.take(1 if first else self._drafts_per_round)
        trace = None
        if not first and self._drafts_per_round:
            wrong = (ids[-1] + 1) % self.info.vocab_size
            trace = RoundTrace(draft_ids=(*ids[:-1], wrong), num_accepted=len(ids) - 1)
        return choice.event(ids, finish, trace, self._num_cached)

    def _count(self, event: TokenEvent) -> None:
        self._stats = replace(
            self._stats,
            num_rounds=self._stats.num_rounds + 1,
            num_generated_tokens=self._stats.num_generated_tokens + len(event.token_ids),
            num_draft_tokens=self._stats.num_draft_tokens + (len(event.round.draft_ids) if event.round else 0),
            num_accepted_tokens=self._stats.num_accepted_tokens + (event.round.num_accepted if event.round else 0),
        )


class _Choice:
    """A choice and the reply that it replays."""

    def __init__(
        self,
        request: Request,
        index: int,
        reply: tuple[int, ...],
        budget: int,
        eos_ids: tuple[int, ...],
        deliver: Deliver,
    ) -> None:
        self.request = request
        self.index = index
        self.deliver = deliver
        self.num_done = 0
        self.began = 0.0
        self.done = self.cancelled = self._begun = False
        params = request.params
        stops = set(params.stop_token_ids) | (set() if params.ignore_eos else set(eos_ids))
        end = next((i + 1 for i, token in enumerate(reply) if token in stops and i + 1 > params.min_tokens), None)
        self._ids = reply[: min(budget, end or budget)]
        self._finish = FinishReason.STOP if end is not None and end <= budget else FinishReason.LENGTH

    def take(self, count: int) -> tuple[tuple[int, ...], FinishReason | None]:
        ids = self._ids[self.num_done : self.num_done + max(count, 1)]
        self.num_done += len(ids)
        return ids, self._finish if self.num_done >= len(self._ids) else None

    def pages(self) -> PageOwner:
        num_full = -(-(len(self.request.prompt_ids) + self.num_done) // PAGE_SIZE)
        return PageOwner(
            request_id=self.request.request_id,
            choice=self.index,
            num_full=num_full,
            num_sliding=min(num_full, SLIDING_PAGES),
        )

    def event(
        self, ids: tuple[int, ...], finish: FinishReason | None, trace: RoundTrace | None, num_cached: int
    ) -> TokenEvent:
        self.done = finish is not None
        params, prompt_ids = self.request.params, self.request.prompt_ids
        is_first, self._begun = not self._begun and self.index == 0, True
        return TokenEvent(
            request_id=self.request.request_id,
            choice=self.index,
            token_ids=ids,
            logprobs=_scores(ids, params.logprobs),
            finish=finish,
            round=trace,
            num_cached=num_cached,
            prompt_logprobs=_scores(prompt_ids[1:], params.prompt_logprobs) if is_first else None,
            began=self.began,
        )


def _scores(ids: Sequence[int], top: int | None) -> tuple[TokenLogprob, ...] | None:
    """Return made-up log-probabilities in which every token is the most likely one."""
    if top is None:
        return None
    return tuple(
        TokenLogprob(
            logprob=STUB_LOGPROB,
            top=((i, STUB_LOGPROB), *((i + 1 + k, STUB_LOGPROB - 1 - k) for k in range(top - 1)))[:top],
        )
        for i in ids
    )

"""One assistant turn: a request submitted to the engine, its tokens read as deltas for any dialect.

It depends on the engine port and the readers, and on no dialect.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence

from eyas.base.errors import EyasError, InvalidRequest, Unavailable
from eyas.base.types import FinishReason, Request, TokenEvent
from eyas.gateway.http.errors import EngineFailed, status_of
from eyas.gateway.http.outcome import CLIENT_LEFT, Outcome
from eyas.gateway.server.context import Context
from eyas.gateway.server.mailroom import Inbox
from eyas.gateway.turn.choice import ChoiceReader
from eyas.gateway.turn.delta import Delta, Totals
from eyas.gateway.turn.readers import MakeReader
from eyas.gateway.turn.stops import Stops

__all__ = ["Turn", "deltas_of"]


class Turn:
    """Submits the request when constructed; the caller must always call `close` at the end.

    A turn must be made inside the event loop. `route` is the path under which the outcome is reported. `param` is the
    field to name if the engine finds the request invalid. Raises what `EnginePort.submit` raises.
    """

    def __init__(
        self,
        context: Context,
        request: Request,
        reader: MakeReader,
        *,
        route: str,
        stops: Stops = Stops(),  # noqa: B008 - frozen
        param: str | None = None,
        inbox: Inbox[tuple[Turn, TokenEvent, float]] | None = None,
    ) -> None:
        self.request = request
        self._context = context
        self._route = route
        self._param = param
        self._choices = [
            ChoiceReader(request, index, reader(), stops, context.engine.info.eos_ids)
            for index in range(request.params.n)
        ]
        self._num_open = request.params.n
        self._started = time.perf_counter()
        self._totals: list[Totals] = []
        self._finishes: list[str] = []
        self._error: EyasError | None = None
        self._is_closed = False
        self._inbox = inbox if inbox is not None else Inbox()
        put = self._inbox.put
        try:
            context.engine.submit(request, context.mailroom.address(lambda event, now: put((self, event, now))))
        except EyasError as error:
            self.close(error)
            raise

    @property
    def done(self) -> bool:
        return self._num_open == 0

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """Yield deltas of all choices as they come, without those that have nothing to show.

        Raises InvalidRequest, Unavailable or EngineFailed when the engine ends the request.
        """
        while self._num_open:
            _, event, now = await self._inbox.get()
            if (delta := self.take(event, now)) is not None:
                yield delta

    def take(self, event: TokenEvent, now: float) -> Delta | None:
        """Read one event, for `deltas` and `deltas_of`."""
        choice = self._choices[event.choice]
        if choice.done:  # ended by a stop string earlier; other choices of the request still run
            return None
        if event.finish in (FinishReason.INVALID, FinishReason.ERROR, FinishReason.CANCELLED):
            self._error = self._error_of(event)
            raise self._error
        delta = choice.take(event, now)
        if choice.done:
            self._num_open -= 1
            if event.finish is None:  # ended by a stop string, which the engine does not know
                self._context.engine.cancel(self.request.request_id, event.choice)
        if delta is not None and delta.totals is not None:
            self._totals.append(delta.totals)
            self._finishes.append(str(delta.finish))
        return delta

    def _error_of(self, event: TokenEvent) -> EyasError:
        if event.finish is FinishReason.INVALID:
            return InvalidRequest(event.error or "the engine refused the request", param=self._param)
        if event.finish is FinishReason.CANCELLED:
            return Unavailable("the request was cancelled: the server is stopping")
        return EngineFailed(event.error or "the engine failed")

    def close(self, error: EyasError | None = None) -> None:
        """Cancel what the engine still computes for this turn, and report the outcome. Idempotent.

        `error` is the reason for ending an unfinished turn that has no error of its own; None: its client disconnected.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if not self.done and self._error is None:
            self._error = error
        if self._num_open:
            self._context.engine.cancel(self.request.request_id)
        outcome = self._outcome()
        for listener in self._context.listeners:
            listener(outcome)

    def _outcome(self) -> Outcome:
        status = 200 if self.done else CLIENT_LEFT
        totals = [choice.totals() for choice in self._choices]
        began = [one for one in totals if one.num_tokens]
        first = min((one.prompt_ms for one in began), default=None)
        num_positions = max(len(one.accepted_per_position) for one in totals)
        params = self.request.params
        return Outcome(
            request_id=self.request.request_id,
            route=self._route,
            status=status if self._error is None else status_of(self._error),
            finishes=tuple(self._finishes),
            num_prompt=totals[0].num_prompt,
            num_cached=min(one.num_cached for one in totals),
            num_tokens=sum(one.num_tokens for one in totals),
            max_num_tokens=max(one.num_tokens for one in totals),
            num_reasoning=sum(one.num_reasoning for one in totals),
            num_rounds=sum(one.num_rounds for one in totals),
            num_drafted=sum(one.num_drafted for one in totals),
            num_accepted=sum(one.num_accepted for one in totals),
            accepted_per_position=tuple(
                sum(one.accepted_per_position[i] for one in totals if i < len(one.accepted_per_position))
                for i in range(num_positions)
            ),
            max_tokens=params.max_tokens,
            n=params.n,
            queue_s=min((one.queue_ms for one in began), default=0.0) / 1e3,
            ttft_s=None if first is None else first / 1e3,
            last_s=max((one.prompt_ms + one.predicted_ms for one in began), default=0.0) / 1e3,
            e2e_s=time.perf_counter() - self._started,
            error=None if self._error is None else str(self._error),
        )


async def deltas_of(
    turns: Sequence[Turn], inbox: Inbox[tuple[Turn, TokenEvent, float]]
) -> AsyncGenerator[tuple[int, Delta], None]:
    """Yield deltas of several turns that share `inbox`, as they come, each with its turn's index.

    Raises as `deltas` does; the error of one turn closes them all.
    """
    index_of = {turn: index for index, turn in enumerate(turns)}
    while not all(turn.done for turn in turns):
        turn, event, now = await inbox.get()
        try:
            delta = turn.take(event, now)
        except EyasError as error:
            for one in turns:
                one.close(error)
            raise
        if delta is not None:
            yield index_of[turn], delta

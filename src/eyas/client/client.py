"""`AsyncClient`: asks OpenAI endpoints, tries again and goes on to fallbacks before the first piece, never after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from types import TracebackType
from typing import Any

import msgspec

from eyas.base.errors import UserError
from eyas.base.serving.breaker import Breaker
from eyas.base.serving.budgets import LOAD_S, Budgets
from eyas.client.clock import Clock
from eyas.client.errors import ClientError, Closed, Refused, TimedOut
from eyas.client.pieces import Answer, Asked, Call, Content, End, Piece, Reasoning
from eyas.client.question import Messages, Question
from eyas.client.run import Run
from eyas.client.server import Server
from eyas.client.whole import model_names, vectors_of

__all__ = ["AsyncClient"]


class AsyncClient:
    """An OpenAI endpoint, and others that answer in its place. Safe for many tasks of one event loop.

    `base_url` may end in `/v1` or not. `model` is what requests name that name none; None is the server's first.
    Budgets and breaker: docs/client.md. `fallbacks` are asked in order where this endpoint gives nothing: further
    clients, with their own fallbacks, or addresses, which are not sent `api_key` and have this endpoint's budgets.
    `load_s` bounds the time that the server may load a model.

    `async with` closes the connections of it and of its fallbacks at the end; without, `close` does.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        model: str | None = None,
        *,
        budgets: Budgets | None = None,
        breaker: Breaker | None = None,
        fallbacks: Iterable[AsyncClient | str] = (),
        max_tries: int = 3,
        name: str | None = None,
        load_s: float = LOAD_S,
    ) -> None:
        self._server = Server(base_url, key=api_key, name=name, breaker=breaker)
        self._budgets = Budgets() if budgets is None else budgets
        self._max_tries = max(1, max_tries)
        self._load_s = load_s
        self._num_entered = 0
        self.model = model
        chain = [self]
        for other in fallbacks:
            if isinstance(other, str):
                other = AsyncClient(other, budgets=self._budgets, max_tries=self._max_tries, load_s=load_s)
            chain += [client for client in other._chain if client not in chain]
        self._chain: tuple[AsyncClient, ...] = tuple(chain)

    async def __aenter__(self) -> AsyncClient:
        for client in self._chain:
            client._num_entered += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for client in self._chain:
            client._num_entered -= 1
        await _close(client._server for client in self._chain if client._num_entered == 0)

    async def close(self) -> None:
        """Close all connections, those of the fallbacks too, and end what is being answered."""
        await _close(client._server for client in self._chain)

    @property
    def name(self) -> str:
        """The name of the endpoint: as given, else host and port."""
        return self._server.name

    @property
    def breaker(self) -> Breaker:
        """The breaker of the endpoint."""
        return self._server.breaker

    async def stream(
        self,
        messages: Messages,
        *,
        max_tokens: int | None = 2048,
        model: str | None = None,
        budgets: Budgets | None = None,
        **fields: Any,
    ) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of an answer to messages, or to one text; the last is an End.

        `fields` are further fields of a chat completion. `model` is for this endpoint; a fallback is asked for its own.
        Leaving the loop or cancelling the task closes the connection at once. Raises ClientError.
        """
        question = Question(messages, max_tokens, fields)
        began = asyncio.get_running_loop().time()
        before: list[ClientError] = []
        total_s = (self._budgets if budgets is None else budgets).total_s
        for client in self._chain:
            run: Run | None = None
            try:
                asked = client.model if client is not self or model is None else model
                run = client._run(question, asked, budgets, began, total_s)
                reason = before[-1] if before else None
                yield Asked(endpoint=client.name, model=asked, is_fallback=client is not self, reason=reason)
                while not run.is_over:
                    for piece in await run.batch():
                        yield piece
                await run.finish()
                return
            except ClientError as error:
                error.before = tuple(before)
                is_last = client is self._chain[-1]
                if is_last or (run is not None and run.has_begun) or not goes_on(error):
                    raise
                before.append(error)
            finally:
                if run is not None:
                    run.close()

    async def complete(
        self,
        messages: Messages,
        *,
        max_tokens: int | None = 2048,
        model: str | None = None,
        budgets: Budgets | None = None,
        **fields: Any,
    ) -> Answer:
        """Return a whole answer; as `stream` otherwise."""
        content: list[str] = []
        reasoning: list[str] = []
        calls: list[Call] = []
        end: End | None = None
        pieces = self.stream(messages, max_tokens=max_tokens, model=model, budgets=budgets, **fields)
        async with aclosing(pieces):
            async for piece in pieces:
                match piece:
                    case Content():
                        content.append(piece.text)
                    case Reasoning():
                        reasoning.append(piece.text)
                    case Call():
                        calls.append(piece)
                    case End():
                        end = piece
        assert end is not None, "a stream ends with it, or with an error"
        return Answer(
            content="".join(content), reasoning="".join(reasoning), calls=tuple(calls), **msgspec.structs.asdict(end)
        )

    async def generate_stream(
        self, prompt: str, max_tokens: int = 2048, timeout: float | None = 120.0
    ) -> AsyncGenerator[str, None]:
        """Yield the texts of the content alone. `timeout` is in seconds, for the first token and each further one."""
        budgets = self._budgets.with_spans({"queue_s": timeout, "prefill_s": timeout, "stall_s": timeout})
        pieces = self.stream(prompt, max_tokens=max_tokens, budgets=budgets)
        async with aclosing(pieces):
            async for piece in pieces:
                if isinstance(piece, Content):
                    yield piece.text

    async def embed(self, texts: Sequence[str], *, model: str | None = None) -> list[list[float]]:
        """Return a vector for each text, in their order. No fallback is asked: vectors of two models do not compare."""
        if isinstance(texts, str):
            raise UserError("embed takes a list of texts, not one text")
        return await vectors_of(self._server, texts, model or self.model, self._clock(), max_tries=self._max_tries)

    async def models(self) -> tuple[str, ...]:
        """Return the names of the endpoint's models. The breaker neither stops this nor counts it."""
        clock = self._clock()
        try:
            return await model_names(self._server, until=clock.due)
        except TimeoutError as error:
            if isinstance(error, ClientError):
                raise
            raise clock.error(asyncio.get_running_loop().time(), self.name) from None

    def _clock(self) -> Clock:
        """Return the budgets of a whole answer, which cannot say what it waits for: queue and prefill are one."""
        budgets, now = self._budgets, asyncio.get_running_loop().time()
        both_s = None if budgets.queue_s is None or budgets.prefill_s is None else budgets.queue_s + budgets.prefill_s
        return Clock(budgets.with_spans({"prefill_s": both_s}), now, began=now, load_s=self._load_s)

    def _run(
        self, question: Question, model: str | None, budgets: Budgets | None, began: float, total_s: float | None
    ) -> Run:
        """Return a request at this endpoint, in its budgets and in what the call has altogether."""
        own = self._budgets if budgets is None else budgets
        totals = [seconds for seconds in (own.total_s, total_s) if seconds is not None]
        own = own.with_spans({"total_s": min(totals, default=None)})
        clock = Clock(own, asyncio.get_running_loop().time(), began=began, load_s=self._load_s)
        return Run(self._server, question, model, clock, began=began, max_tries=self._max_tries)


async def _close(servers: Iterable[Server]) -> None:
    """Close the connections to all servers, even if the task is cancelled meanwhile."""
    async with AsyncExitStack() as stack:
        for server in servers:
            stack.push_async_callback(server.close)


def goes_on(error: ClientError) -> bool:
    """Return whether the next endpoint may be asked after an error, if nothing of an answer has come.

    A mistake of the request is one there, too, spent time is spent, and a closed client asks no other.
    """
    is_mistake = isinstance(error, Refused) and error.kind is None
    return (
        not is_mistake and not isinstance(error, Closed) and not (isinstance(error, TimedOut) and error.span == "total")
    )

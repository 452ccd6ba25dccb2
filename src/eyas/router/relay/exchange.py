"""One request from its arrival to its end: it waits for a backend, asks it, and asks the next one if that fails."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import AsyncExitStack, aclosing

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.types import Receive, Scope, Send

from eyas.base.serving.connections import DRAIN_S
from eyas.base.serving.failures import FailureKind
from eyas.base.serving.repetition import Loop
from eyas.base.serving.waiting import Waiting
from eyas.gateway.http.body import Raw
from eyas.gateway.http.errors import Failure
from eyas.gateway.http.outcome import CLIENT_LEFT
from eyas.router.guard.watch import Watch, watch_for
from eyas.router.guard.watch import failure_of as kind_of_loop
from eyas.router.manager.visit import Go, NoBackend, Visit
from eyas.router.messages.translation import Translation
from eyas.router.relay.alarm import Alarm, ClientLeft
from eyas.router.relay.body import small_body
from eyas.router.relay.client import EVENT_STREAM, Client, failure_for
from eyas.router.relay.life import short_question, until_dead
from eyas.router.relay.names import MESSAGES
from eyas.router.relay.outcome import Outcome, Trip
from eyas.router.relay.pouring import Pouring, one_by_one, parts_of
from eyas.router.relay.readers import READERS
from eyas.router.relay.refusals import Full, Passed, hidden, read_refusal
from eyas.router.relay.shared import Shared
from eyas.router.relay.sight import described
from eyas.router.relay.whole import check_whole, stored_id, text_of
from eyas.router.relay.wish import Wish, owner_of, read_wish
from eyas.router.upstream.errors import UpstreamError
from eyas.router.upstream.headers import Headers
from eyas.router.upstream.upstream import Reply, Sending

__all__ = ["Exchange"]

log = logging.getLogger(__name__)

REPORT_S = 0.002
MAX_AGAIN = 2  # requests that a backend gets in another form, after it has refused the first
JSON: Headers = [(b"content-type", b"application/json")]


class Exchange:
    """Answers one request to `path`, which generates: `run` is called once, in a task of its own."""

    def __init__(self, shared: Shared, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        self._shared, self._scope, self._receive, self._path = shared, scope, receive, path
        self._loop = asyncio.get_running_loop()
        self._arrived = self._loop.time()
        self._client = Client(scope, send, self._loop)
        task = asyncio.current_task()
        assert task is not None
        self._alarm = Alarm(task, self._loop)
        self._held = AsyncExitStack()  # room for the body
        self._room: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._visit: Visit | None = None
        self._wish: Wish | None = None
        self._backend: str | None = None
        self._num_asked = 0
        self._queue_s: float | None = None
        self._ttft_s: float | None = None
        self._error: str | None = None

    async def run(self) -> None:
        """Answer it. The client learns what goes wrong, and the listeners everything."""
        status = None
        try:
            await self._run()
        except (ClientLeft, ClientDisconnect):
            status = CLIENT_LEFT
        except asyncio.CancelledError:
            if not isinstance(self._alarm.cause(), ClientLeft):
                raise
            status = CLIENT_LEFT
        finally:
            self._alarm.off()
            if self._watcher is not None:
                self._watcher.cancel()
            if self._visit is not None:
                self._visit.left()
            self._client.close()
            await self._held.aclose()
            self._report(status or self._client.status or CLIENT_LEFT)

    async def _run(self) -> None:
        try:
            await self._answer()
        except (ClientLeft, ClientDisconnect):
            raise
        except Exception as error:
            await self._fail(*failure_for(error))

    async def _answer(self) -> None:
        shared = self._shared
        raw: Raw | None = await small_body(self._scope, self._receive)
        if raw is None:
            room = shared.intake.body(HttpRequest(self._scope, self._receive))
            raw = await self._held.enter_async_context(room)
        self._wish = wish = await read_wish(shared, self._scope, self._path, raw, on_wait=self._attend)
        del raw
        if wish.wanted.route is not None:
            self._client.shown.append((b"x-eyas-route", wish.wanted.route.encode()))
        if wish.sidecar is not None:
            self._client.shown.append((b"x-eyas-sidecar", wish.sidecar.encode()))
        if wish.images is not None:
            self._attend()
            wish.body, done = await described(shared, wish.body, wish.path, wish.images, wish.wanted)
            wish.images = None  # they may be large
            self._client.shown.append((b"x-eyas-images", done))
        self._visit = visit = shared.manager.arrive(wish.wanted)
        while True:
            go = visit.place() or await self._place(visit)
            if self._loop.time() >= self._until(go):
                visit.left()
                raise NoBackend("the request's time is up before a backend had room for it", 504, code="queue_timeout")
            self._backend, self._num_asked = go.backend, self._num_asked + 1
            if self._queue_s is None:
                self._queue_s = self._loop.time() - self._arrived
            if await self._ask(visit, go, wish):
                return

    def _attend(self) -> None:
        """Look after the client from the first wait on: does it leave, and does a stream of it wait for long?"""
        if self._watcher is None:
            self._watcher = self._loop.create_task(self._watch())
        if self._wish is not None and self._wish.is_stream:
            self._client.waits(self._arrived)

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._alarm.left()

    async def _place(self, visit: Visit) -> Go:
        """Wait for a place at a backend. Raises NoBackend."""
        async with aclosing(visit.news()) as all_news:
            async for news in all_news:
                if isinstance(news, Go):
                    return news
                self._attend()
                self._client.hears(news)
        raise NoBackend("the request was ended", 503)

    async def _ask(self, visit: Visit, go: Go, wish: Wish) -> bool:
        """Ask a backend. Returns whether the request is over, with an answer or without; else the next is asked."""
        pouring: Pouring | None = None
        sent_at = self._loop.time()
        try:
            if wish.is_stream:
                pouring = self._pouring(visit, go, wish)
                await self._stream(go, wish, pouring)
            else:
                await self._whole(visit, go, wish)
            return True
        except Full as full:
            self._alarm.unset()
            visit.full(full.retry_after_s)
            return False
        except Passed as passed:
            self._alarm.unset()
            visit.done()
            await self._pass(passed, wish)
            return True
        except UpstreamError as error:
            key = self._shared.upstream.address(go.backend).key
            kind, detail = error.kind, hidden(error.detail.encode(), key).decode()
        except asyncio.CancelledError:
            cause = self._alarm.cause()
            if cause is None:
                raise
            if isinstance(cause, ClientLeft):
                raise cause from None
            kind, detail = "budget", str(cause)
        self._alarm.unset()
        if pouring is not None and pouring.is_shown:
            visit.shown()
        is_out_of_time = self._loop.time() >= self._until(go)
        if is_out_of_time and kind == "budget" and not self._had_its_share(go, sent_at):
            visit.left()
        else:
            visit.failed(kind, detail)
        if not is_out_of_time and not (pouring is not None and pouring.is_shown):
            return False
        await self._break_off(kind, detail, pouring)
        return True

    async def _break_off(self, kind: FailureKind, detail: str, pouring: Pouring | None) -> None:
        """End an answer that no backend can go on with."""
        if pouring is not None and pouring.has_sent_error:
            self._error = detail
            await self._client.end()
            self._client.status = 502
            return
        code = "degenerate_output" if kind in ("degenerate", "one_symbol") else None
        message = f"the backend {self._backend} failed inside its answer: {detail}"
        failure = Failure(status=504 if kind == "budget" else 502, message=message, code=code)
        await self._fail(failure, None, pouring.num_events if pouring is not None else 0)

    async def _fail(self, failure: Failure, retry_after_s: float | None, number: int = 0) -> None:
        self._error = failure.message
        await self._client.fail(failure, retry_after_s=retry_after_s, number=number)

    async def _pass(self, passed: Passed, wish: Wish) -> None:
        """Send a backend's refusal to the client."""
        if wish.translation is not None and not self._shared.is_ours(self._backend or ""):
            passed.failure = wish.translation.error(passed.status, passed.body)
        elif not self._client.is_started:
            self._error = passed.failure.message
            await self._client.answer(passed.status, [*passed.headers, *self._by()], passed.body)
            return
        await self._fail(passed.failure, None)

    # -- answers -------------------------------------------------------------------------------------------------------

    async def _stream(self, go: Go, wish: Wish, pouring: Pouring) -> None:
        until = self._until(go)

        def on_wait() -> None:
            self._attend()
            prefill_s = math.inf if go.budgets.prefill_s is None else go.budgets.prefill_s
            seconds = min(prefill_s, until - self._loop.time())
            self._alarm.set(self._loop.time() + seconds, f"it has shown nothing within {seconds:.1f} s")
            self._client.hears(Waiting(state="reading", backend=go.backend))
            pouring.watch = self._watch_for(go, wish)

        path, translation, body = self._request(go.backend, wish)
        key = self._shared.upstream.address(go.backend).key
        for _ in range(1 + MAX_AGAIN):
            async with self._send(go.backend, path, body, on_wait) as reply:
                if not 200 <= reply.status < 300:
                    body = await self._again(reply, go.backend, translation)
                    continue
                if reply.media_type != "text/event-stream":
                    raise UpstreamError("malformed", f"its answer to a stream is of the type '{reply.media_type[:80]}'")
                body = b""
                if translation is None:
                    batches, headers = parts_of(reply, READERS[path](), key), reply.headers
                else:
                    batches, headers = one_by_one(translation.parts(reply.chunks())), [EVENT_STREAM]
                    translation = None  # it may be large, and the answer long
                await pouring.pour(
                    batches,
                    [*headers, *self._by()],
                    stall_s=go.budgets.stall_s,
                    until=until,
                    on_first=self._first,
                )
                self._alarm.off()
                await _drained(reply)
                return
        raise UpstreamError("malformed", "it refuses each form of the request")

    async def _whole(self, visit: Visit, go: Go, wish: Wish) -> None:
        self._attend()
        self._alarm.set(self._until(go), f"no answer within {go.budgets.total_s} s")
        path, translation, body = self._request(go.backend, wish)
        alive = self._loop.create_task(self._check_life(go, wish))
        try:
            for _ in range(1 + MAX_AGAIN):
                async with self._send(go.backend, path, body) as reply:
                    if not 200 <= reply.status < 300:
                        body = await self._again(reply, go.backend, translation)
                        continue
                    answer = await reply.read()
                    headers = reply.headers
                check_whole(path, answer)
                self._guard_whole(go, wish, path, answer)
                if translation is not None:
                    answer, headers = translation.whole(answer), JSON
                elif path == "/v1/responses" and (response_id := stored_id(answer)) is not None:
                    self._keep(response_id)
                break
            else:
                raise UpstreamError("malformed", "it refuses each form of the request")
        finally:
            alive.cancel()
        self._alarm.unset()
        visit.done()
        await self._client.answer(200, [*headers, *self._by()], answer)

    async def _check_life(self, go: Go, wish: Wish) -> None:
        shared, backend = self._shared, go.backend
        engine = "eyas" if shared.is_ours(backend) else shared.settings.backend(backend).engine
        can_chat = wish.path != "/v1/embeddings"
        question = short_question(engine, shared.model_at(backend, wish.wanted.model)) if can_chat else None
        self._alarm.spend(await until_dead(shared.upstream, backend, go.budgets.stall_s, question))

    def _request(self, backend: str, wish: Wish) -> tuple[str, Translation | None, bytes]:
        """Return how a backend is asked: the path, the translation if it needs one, and the body."""
        model = self._shared.model_at(backend, wish.wanted.model)
        if wish.path == MESSAGES and not self._shared.is_ours(backend):
            translation = wish.translated(self._shared.names.models)
            return translation.path, translation, translation.request(model)
        return wish.path, None, wish.body.encoded(model)

    async def _again(self, reply: Reply, backend: str, translation: Translation | None) -> bytes:
        """Return the request in another form, where a backend does not take it as it was. Raises if it is refused."""
        passed = await read_refusal(reply, self._shared.upstream.address(backend).key)
        if translation is not None and (body := translation.retry_of(passed.status, passed.body)) is not None:
            return body
        raise passed

    # -- small things --------------------------------------------------------------------------------------------------

    def _send(self, backend: str, path: str, body: bytes, on_wait: Callable[[], None] | None = None) -> Sending:
        headers = [*self._scope["headers"], (b"x-request-id", self._scope["state"]["request_id"].encode())]
        return self._shared.upstream.send(backend, "POST", path, body=body, headers=headers, on_wait=on_wait)

    def _until(self, go: Go) -> float:
        total_s = go.budgets.total_s
        return math.inf if total_s is None else self._arrived + total_s

    def _had_its_share(self, go: Go, sent_at: float) -> bool:
        """Return whether a backend had half of the request's whole time: with less, running out of it is no failure."""
        total_s = go.budgets.total_s
        return total_s is None or self._loop.time() - sent_at >= total_s / 2

    def _by(self) -> Headers:
        return [(b"x-eyas-backend", (self._backend or "").encode("ascii", "replace"))]

    def _keep(self, response_id: str) -> None:
        if self._backend is not None:
            self._shared.stored.keep(response_id, self._backend, owner_of(self._scope))

    def _first(self) -> None:
        """Take note of the first content. No other backend will be asked: others can have the room of a large body."""
        self._ttft_s = self._loop.time() - self._arrived
        if self._wish is not None and self._wish.is_large:
            self._loop.call_soon(self._make_room)

    def _make_room(self) -> None:
        if self._wish is not None:
            self._wish.forget()
            self._room = self._loop.create_task(self._held.pop_all().aclose())

    def _pouring(self, visit: Visit, go: Go, wish: Wish) -> Pouring:
        def tripped(loop: Loop, is_acting: bool) -> None:
            self._tripped(go.backend, wish, loop, is_acting=is_acting)

        return Pouring(self._client, visit, self._alarm, self._loop, on_loop=tripped, on_stored=self._keep)

    def _watch_for(self, go: Go, wish: Wish) -> Watch | None:
        mode = self._shared.settings.guard_of(go.backend)
        return watch_for(mode, max_tokens=wish.max_tokens, prompt=wish.prompt)

    def _guard_whole(self, go: Go, wish: Wish, path: str, answer: bytes) -> None:
        """Look for a loop in a whole answer. Raises UpstreamError in mode act."""
        watch = self._watch_for(go, wish)
        if watch is None or (loop := watch.add(text_of(path, answer))) is None:
            return
        self._tripped(go.backend, wish, loop, is_acting=watch.is_acting)
        if watch.is_acting:
            raise UpstreamError(kind_of_loop(loop), f"its answer repeats itself: {loop}")

    def _tripped(self, backend: str, wish: Wish, loop: Loop, *, is_acting: bool) -> None:
        kind = kind_of_loop(loop)
        model = wish.wanted.model
        self._shared.tell(Trip(backend=backend, model=model, kind=kind, action="act" if is_acting else "observe"))
        if not is_acting:
            self._shared.manager.sighted(backend, kind, str(loop))

    def _report(self, status: int) -> None:
        wanted = self._wish.wanted if self._wish is not None else None
        self._loop.call_later(  # a client that asks again at once need not wait for it
            REPORT_S,
            self._shared.tell,
            Outcome(
                request_id=self._scope["state"]["request_id"],
                path=self._path,
                status=status,
                model=wanted.model if wanted is not None else None,
                route=wanted.route if wanted is not None else None,
                backend=self._backend,
                num_asked=self._num_asked,
                queue_s=self._queue_s,
                ttft_s=self._ttft_s,
                e2e_s=self._loop.time() - self._arrived,
                error=self._error,
            ),
        )


async def _drained(reply: Reply) -> None:
    """Read what comes after the last event: usually the end."""
    try:
        async with asyncio.timeout(DRAIN_S):
            while await reply.chunk():
                pass
    except (TimeoutError, UpstreamError):
        pass

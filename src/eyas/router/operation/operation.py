"""Assembles the operation of a router: its status, metrics, events, log lines, and what stands before every route."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from eyas.base.errors import UserError, nearest
from eyas.gateway.http.body import json_response
from eyas.gateway.http.errors import Refused
from eyas.gateway.http.stream import EventStream
from eyas.gateway.operation.gates import Access, behind_gates, refusal_state, version_route
from eyas.gateway.operation.metrics import CONTENT_TYPE
from eyas.gateway.server.dialect import Dialect, Dialects
from eyas.router.manager.happenings import Happening, Snapshot
from eyas.router.operation.access_log import AccessLog
from eyas.router.operation.feed import Feed
from eyas.router.operation.hiding import hider
from eyas.router.operation.metrics import Metrics
from eyas.router.operation.status import ORDERS, Control, Order, StatusMaker
from eyas.router.relay.outcome import Outcome, Trip
from eyas.router.settings.schema import RouterSettings

__all__ = ["Operation"]

NO_KEYS = (
    "starting, stopping, loading and pinning want an API key, and this router has none: make one with 'eyas key' and "
    "set api_key under 'server' in its file"
)


class Operation:
    """Made once by `create_app`: `record` is a listener of the relay, `happened` one of the manager."""

    def __init__(
        self,
        settings: RouterSettings,
        *,
        snapshot: Callable[[], Snapshot],
        control: Control,
        access: Access,
        dialects: Sequence[Dialect],
    ) -> None:
        self._access = access
        self._control = control
        self._dialects = Dialects(dialects)
        self._names = [backend.name for backend in settings.backends]
        hide = hider(settings)
        self._status = StatusMaker(settings, snapshot, can_control=bool(access.key_digests), pools=control.pools)
        self._metrics = Metrics(self._status)
        self._feed = Feed(self._status, hide)
        self._log = AccessLog(hide)

    def record(self, news: Outcome | Trip) -> None:
        """Count and log a finished request, or what a guard found."""
        self._metrics.record(news)
        self._log.record(news)

    def happened(self, event: Happening) -> None:
        """Count, show and log what happened at the manager."""
        self._metrics.happened(event)
        self._feed.happened(event)
        self._log.happened(event)

    def end_streams(self) -> None:
        """End the streams of open pages, which would otherwise delay the router's stop."""
        self._feed.end()

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/health", self._health),
            Route("/ready", self._ready),
            version_route(),
            Route("/metrics", self._show_metrics),
            Route("/router/status", self._show_status),
            Route("/router/events", self._show_events),
            Route("/router/backends/{name}/start", self._start, methods=["POST"]),
            Route("/router/backends/{name}/stop", self._stop, methods=["POST"]),
            *(Route(f"/router/backends/{{name}}/{order}", self._ordering(order), methods=["POST"]) for order in ORDERS),
        ]

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """Wrap `app` in keys, origins, hosts and limits; requests that these refuse have ids and are counted, too."""
        return behind_gates(app, self._access, dialects=self._dialects, on_status=self._metrics.answered)

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncGenerator[dict[str, Any], None]:
        """Give connections what they answer and count refusals by, while the router runs."""
        yield refusal_state(self._dialects, self._metrics.answered)

    async def _health(self, request: Request) -> Response:
        return json_response({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        """Answer whether a backend can answer for the resident model."""
        status = self._status()
        model = status.models[0]
        if status.is_ready:
            return json_response({"status": "ready", "model": model.name, "available": model.num_available})
        text = f"no backend of {model.name} can answer; /router/status says why"
        return json_response({"status": "failed", "error": text}, status=503)

    async def _show_metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def _show_status(self, request: Request) -> Response:
        return json_response(self._status())

    async def _show_events(self, request: Request) -> ASGIApp:
        if request.method == "HEAD":  # a stream without data would never notice its client's disconnect
            return Response(media_type="text/event-stream", headers={"cache-control": "no-cache"})
        viewer = self._feed.join()
        return EventStream(viewer.events(), on_close=lambda: self._feed.leave(viewer))

    async def _start(self, request: Request) -> Response:
        name = self._controlled(request)
        with _refusals():
            await self._control.start(name)
        return json_response({"name": name, "asked": "start"}, status=202)

    async def _stop(self, request: Request) -> Response:
        name = self._controlled(request)
        with _refusals():
            await self._control.stop(name)
        return json_response({"name": name, "asked": "stop"}, status=202)

    def _ordering(self, order: Order) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            name = self._controlled(request)
            with _refusals():
                await self._control.order(name, order)
            return json_response({"name": name, "asked": order}, status=202)

        return answer

    def _controlled(self, request: Request) -> str:
        """Return the backend that a request may give orders to. Raises Refused, HTTPException."""
        if not request.scope["state"].get("key"):  # with keys, `Auth` has refused those without one
            raise Refused(NO_KEYS, code="key_needed", status=403)
        name: str = request.path_params["name"]
        if name not in self._names:
            raise HTTPException(404, f"no backend is named '{name[:64]}'{nearest(name, self._names)}")
        return name


@contextmanager
def _refusals() -> Iterator[None]:
    """Answer 409 where a backend cannot be started or stopped."""
    try:
        yield
    except UserError as error:
        raise Refused(str(error), code="not_possible", status=409) from error

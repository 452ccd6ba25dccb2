"""Assembles the operation of a server: `/metrics`, `/version`, `/openapi.json`, log lines, traces, limits and keys.

Each of these parts is in a file of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from eyas.gateway.http.body import raw_response
from eyas.gateway.operation.access_log import ProgressLog, log_request
from eyas.gateway.operation.gates import Access, behind_gates, refusal_state, version_route
from eyas.gateway.operation.metrics import CONTENT_TYPE, EngineCounters, Metrics
from eyas.gateway.operation.openapi import document
from eyas.gateway.operation.trace import Trace
from eyas.gateway.server.context import Context
from eyas.gateway.server.dialect import Dialects

__all__ = ["Operation"]


class Operation:
    """Made once by `create_app`; listens to the context's outcomes from then on."""

    def __init__(self, context: Context, dialects: Dialects) -> None:
        self._context = context
        self._dialects = dialects
        self._counters = EngineCounters(context.engine)
        self._metrics = Metrics(
            context.engine,
            context.info.name,
            counters=self._counters,
            num_viewers=lambda: context.steps.num_listeners,
            tallies=context.tallies,
        )
        context.listeners.extend((self._metrics.record, log_request))

    def routes(self) -> list[BaseRoute]:
        description = document(self._context, self._dialects)

        async def metrics(request: Request) -> Response:
            return Response(self._metrics.text(), headers={"content-type": CONTENT_TYPE})

        async def openapi(request: Request) -> Response:
            return raw_response(description)

        return [Route("/metrics", metrics), version_route(), Route("/openapi.json", openapi)]

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """Wrap `app` in keys, origins, hosts and limits; requests that these refuse have ids and are counted, too."""
        options = self._context.options
        access = Access(
            key_digests=options.key_digests,
            hosts=options.hosts,
            cors_origins=options.cors_origins,
            max_body=options.max_body,
        )
        return behind_gates(app, access, dialects=self._dialects, on_status=self._metrics.answered)

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncGenerator[dict[str, Any], None]:
        """Run the progress log and the trace while the server runs."""
        steps, path = self._context.steps, self._context.options.trace
        trace = Trace(path) if path is not None else None
        if trace is not None:
            steps.add(trace)
        progress = asyncio.create_task(ProgressLog(self._counters).run())
        try:
            yield refusal_state(self._dialects, self._metrics.answered)
        finally:
            progress.cancel()
            with suppress(asyncio.CancelledError):
                await progress
            if trace is not None:
                steps.remove(trace)
                await asyncio.to_thread(trace.close)

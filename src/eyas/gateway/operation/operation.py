"""Assembles the operation of a server: `/metrics`, `/version`, `/openapi.json`, log lines, traces, limits and keys.

Each of these parts is in a file of its own.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

import eyas
from eyas.base.commit import commit
from eyas.gateway.http.body import json_response, raw_response
from eyas.gateway.http.errors import Failure
from eyas.gateway.operation.access_log import ProgressLog, log_request
from eyas.gateway.operation.auth import Auth
from eyas.gateway.operation.connections import ON_REFUSED, REFUSAL
from eyas.gateway.operation.host_guard import HostGuard
from eyas.gateway.operation.limits import Limits
from eyas.gateway.operation.metrics import CONTENT_TYPE, EngineCounters, Metrics
from eyas.gateway.operation.openapi import document
from eyas.gateway.operation.trace import Trace
from eyas.gateway.server.context import Context
from eyas.gateway.server.dialect import REQUEST_ID_HEADER, Dialects

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

        names = {"version": eyas.__version__, "commit": commit()}

        async def version(request: Request) -> Response:
            return json_response(names)

        async def openapi(request: Request) -> Response:
            return raw_response(description)

        return [Route("/metrics", metrics), Route("/version", version), Route("/openapi.json", openapi)]

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """Wrap `app` in keys, origins, hosts and limits; requests that these refuse have ids and are counted, too."""
        options = self._context.options
        app = Auth(app, key_digests=options.key_digests)
        if options.cors_origins:
            app = CORSMiddleware(
                app,
                allow_origins=options.cors_origins,
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],
                expose_headers=[REQUEST_ID_HEADER],
            )
        app = HostGuard(app, hosts=options.hosts, origins=options.cors_origins)
        return Limits(app, dialects=self._dialects, max_body=options.max_body, on_status=self._metrics.answered)

    def _refusal(self, path: str, failure: Failure) -> tuple[int, Mapping[str, str], bytes]:
        """Return the answer to a request that is refused before it has an id, with a new one."""
        dialect = self._dialects.of(path)
        request_id = uuid.uuid4().hex
        status, headers = dialect.errors.head(failure)
        ids = dict.fromkeys((REQUEST_ID_HEADER, dialect.id_header), request_id)
        return status, {**headers, **ids}, dialect.errors.body(replace(failure, request_id=request_id))

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncGenerator[dict[str, Any], None]:
        """Run the progress log and the trace while the server runs."""
        steps, path = self._context.steps, self._context.options.trace
        trace = Trace(path) if path is not None else None
        if trace is not None:
            steps.add(trace)
        progress = asyncio.create_task(ProgressLog(self._counters).run())
        try:
            yield {
                ON_REFUSED: self._metrics.answered,
                REFUSAL: self._refusal,
            }
        finally:
            progress.cancel()
            with suppress(asyncio.CancelledError):
                await progress
            if trace is not None:
                steps.remove(trace)
                await asyncio.to_thread(trace.close)

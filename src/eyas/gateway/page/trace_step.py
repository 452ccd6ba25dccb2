"""One step of the file of `--trace`, for a link to it: `GET /live/trace/{step}` answers with its line."""

from __future__ import annotations

import asyncio
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from eyas.gateway.server.context import Context

__all__ = ["find_step", "route"]

BLOCK = 1 << 20  # bytes that are read at once
MAX_BYTES = 256 << 20  # how far back a step is looked for


def route(context: Context) -> Route:
    """Return the route. The lines hold ids of all users' tokens: they are as open as the live view with texts."""
    path = context.options.trace

    async def trace_step(request: Request) -> Response:
        if context.options.live != "text":
            raise HTTPException(404, "steps are shown with --live text only")
        if path is None or not path.is_file():  # a pipe would wait for its writer
            raise HTTPException(404, "this server keeps no trace; start it with --trace FILE")
        step = request.path_params["step"]
        line = await asyncio.to_thread(find_step, path, step)
        if line is None:
            raise HTTPException(404, f"step {step} is not in the trace")
        return Response(line, media_type="application/json", headers={"cache-control": "no-store"})

    return Route("/live/trace/{step:int}", trace_step)


def find_step(path: Path, step: int) -> bytes | None:
    """Return the last line of a step, without its end; None if it is not among the file's last MAX_BYTES.

    An engine counts its steps from 1, so that a file may have several with one number. Raises OSError.
    """
    wanted = b'"step":%d,' % step
    with path.open("rb") as file:
        place = file.seek(0, 2)
        first = max(place - MAX_BYTES, 0)
        rest = b""  # the end of a line that begins further ahead
        while place > first:
            size = min(BLOCK, place - first)
            place -= size
            file.seek(place)
            lines = (file.read(size) + rest).split(b"\n")
            rest = lines.pop(0)
            for line in reversed(lines):
                if wanted in line[:80]:
                    return line
    return rest if first == 0 and wanted in rest[:80] else None

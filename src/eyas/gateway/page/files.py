"""Pages and their own files: `/` and `/page/{file}`, a fixed list, read once, whose policy allows no others.

The files here are those of the server's page; the router's page has some of them too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import PurePosixPath

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

__all__ = ["FILES", "INDEX", "MEDIA_TYPES", "page_routes", "read_files", "routes"]

INDEX = "index.html"
FILES = (
    *(INDEX, "style.css", "icon.svg"),
    *("theme.js", "app.js", "chat.js", "live.js", "markdown.js", "shell.js", "stream.js"),
)
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    "cache-control": "no-cache",  # cache, but revalidate
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def routes() -> list[Route]:
    """Return the routes of the server's page."""
    return page_routes(read_files("eyas.gateway.page", FILES))


def read_files(package: str, names: Iterable[str]) -> dict[str, bytes]:
    """Return files in the folder `static` of a package, by their names."""
    folder = files(package) / "static"
    return {name: (folder / name).read_bytes() for name in names}


def page_routes(bodies: Mapping[str, bytes]) -> list[Route]:
    """Return the route of `/`, and one route that serves exactly these files."""
    etags = {name: f'"{hashlib.sha256(body).hexdigest()[:32]}"' for name, body in bodies.items()}

    async def serve(request: Request) -> Response:
        name = request.path_params.get("file", INDEX)
        if name not in bodies:
            raise HTTPException(404, "no such file")
        headers = HEADERS | {"etag": etags[name]}
        if etags[name] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(bodies[name], headers=headers, media_type=MEDIA_TYPES[PurePosixPath(name).suffix])

    return [Route("/", serve), Route("/page/{file}", serve)]

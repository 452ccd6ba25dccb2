"""Pages and their own files: `/` and `/page/{file}`, a fixed list, read once, whose policy allows no others.

The files here are those of the server's page; `CHAT` are those that the router's page has, too, and `VENDORED` those
that others wrote.
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

__all__ = ["CHAT", "FILES", "INDEX", "MEDIA_TYPES", "VENDORED", "page_routes", "read_files", "routes"]

INDEX = "index.html"
VENDORED = (
    *(
        f"vendor/modes/{name}.js"
        for name in ("clike", "css", "diff", "go", "javascript", "lua", "properties", "python")
    ),
    *(f"vendor/modes/{name}.js" for name in ("ruby", "rust", "shell", "simple-mode", "sql", "toml", "xml", "yaml")),
    *(f"vendor/temml/{name}" for name in ("temml.mjs", "Temml-Local.css", "Temml.woff2", "LICENSE.txt")),
    *("vendor/modes/LICENSE.txt", "vendor/VERSIONS.txt"),
)
CHAT = (
    *("style.css", "chat.css", "reading.css", "live.css", "icon.svg", "icons.svg"),
    *("theme.js", "dom.js", "shell.js", "stream.js"),
    *(f"chat/{name}.js" for name in ("answer", "banner", "chat", "files", "page", "receive", "settings")),
    *(f"keep/{name}.js" for name in ("exchange", "library", "store", "tabs", "tree")),
    *(f"read/{name}.js" for name in ("blocks", "code", "highlight", "inline", "markdown", "maths")),
    *VENDORED,
)
LIVE = tuple(f"live/{name}.js" for name in ("cards", "figures", "live", "memory_map", "rounds"))
FILES = (INDEX, *CHAT, "app.js", *LIVE)
MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".txt": "text/plain",
}
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

    return [Route("/", serve), Route("/page/{file:path}", serve)]

"""The page's own files: `/` and `/page/{file}`, a fixed list read once; the content security policy allows no other."""

from __future__ import annotations

import hashlib
from importlib.resources import files

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

__all__ = ["routes"]

INDEX = "index.html"
MEDIA_TYPES = {
    INDEX: "text/html",
    "style.css": "text/css",
    "theme.js": "text/javascript",
    "app.js": "text/javascript",
    "chat.js": "text/javascript",
    "live.js": "text/javascript",
    "markdown.js": "text/javascript",
    "stream.js": "text/javascript",
    "icon.svg": "image/svg+xml",
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
    """Return the route of `/`, and one route that serves exactly the files above."""
    folder = files("eyas.gateway.page") / "static"
    bodies = {name: (folder / name).read_bytes() for name in MEDIA_TYPES}
    etags = {name: f'"{hashlib.sha256(body).hexdigest()[:32]}"' for name, body in bodies.items()}

    async def serve(request: Request) -> Response:
        name = request.path_params.get("file", INDEX)
        if name not in bodies:
            raise HTTPException(404, "no such file")
        headers = HEADERS | {"etag": etags[name]}
        if etags[name] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(bodies[name], headers=headers, media_type=MEDIA_TYPES[name])

    return [Route("/", serve), Route("/page/{file}", serve)]

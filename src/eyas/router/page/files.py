"""The files of the router's page: its own, and the chat, the looks and the tools of the server's page."""

from __future__ import annotations

from starlette.routing import Route

from eyas.gateway.page.files import INDEX, page_routes, read_files

__all__ = ["OWN", "SHARED", "routes"]

OWN = (INDEX, "router.css", "router.js", "backends.js", "events.js", "memory.js")
SHARED = ("style.css", "icon.svg", "theme.js", "chat.js", "markdown.js", "shell.js", "stream.js")


def routes() -> list[Route]:
    """Return the routes `/` and `/page/{file}`."""
    return page_routes(read_files("eyas.gateway.page", SHARED) | read_files("eyas.router.page", OWN))

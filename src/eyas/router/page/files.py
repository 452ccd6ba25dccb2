"""The files of the router's page: its own, and the chat, the looks and the tools of the server's page."""

from __future__ import annotations

from starlette.routing import Route

from eyas.gateway.page.files import CHAT, INDEX, page_routes, read_files

__all__ = ["OWN", "routes"]

OWN = (INDEX, "router.css", "router.js", "backends.js", "events.js", "memory.js")


def routes() -> list[Route]:
    """Return the routes `/` and `/page/{file}`."""
    return page_routes(read_files("eyas.gateway.page", CHAT) | read_files("eyas.router.page", OWN))

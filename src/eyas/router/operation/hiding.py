"""Keys are taken out of texts that people see. A backend's error, for one, may quote the key that it was sent."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import urlsplit, urlunsplit

from eyas.router.settings.schema import RouterSettings

__all__ = ["Hide", "hider", "shown_url"]

Hide = Callable[[str], str]
HIDDEN = "[key]"


def hider(settings: RouterSettings) -> Hide:
    """Return a function that replaces every key of a file in a text."""
    keys = {backend.key for backend in settings.backends} | set((settings.server.api_key or "").split(","))
    found = sorted((re.escape(key.strip()) for key in keys if key and key.strip()), key=len, reverse=True)
    if not found:
        return lambda text: text
    pattern = re.compile("|".join(found))
    return lambda text: pattern.sub(HIDDEN, text)


def shown_url(url: str) -> str:
    """Return a URL without user, password, query and fragment."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

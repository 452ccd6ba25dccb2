"""Reads what a person gives of a server: its address and its key."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from eyas.base.errors import UserError

__all__ = ["address", "bearer"]


def address(text: str) -> str:
    """Return the base URL in `text`, with or without `/v1` at its end. Raises ValueError if it is none.

    The error leaves out what stands before an @, which may be a password.
    """
    url = text.strip().rstrip("/").removesuffix("/v1").rstrip("/")
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of brackets and ports
        is_good = False
    if not is_good or set("?#@ ") & set(url):
        raise ValueError(f"wants a URL such as http://127.0.0.1:8000, got {text.rpartition('@')[2]!r}")
    return url


def bearer(key: str | None) -> dict[str, str]:
    """Return the headers that carry an API key, none without one. Raises UserError for what no header can hold."""
    if key is not None and not re.fullmatch(r"[!-~]+", key):
        raise UserError("the API key must be printable ASCII without spaces, and not empty")
    return {} if key is None else {"authorization": f"Bearer {key}"}

"""Authentication: API keys, and the origins of web pages. Pure ASGI, independent of the app inside.

Keys are kept and compared as SHA-256 digests, all of them each time, so that timing reveals nothing about them.
"""

from __future__ import annotations

import hashlib
import hmac
import re

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from eyas.base.errors import UserError
from eyas.gateway.http.errors import Failure
from eyas.gateway.operation.limits import send_failure
from eyas.gateway.server.hosts import is_loopback

__all__ = ["Auth", "digests", "origins", "public_warning"]

DIGEST_PREFIX = "sha256:"
OPEN_PATHS = frozenset({"/", "/health", "/ready", "/favicon.ico", "/api/hello"})
OPEN_FOLDER = "/page/"  # files of the page at /
CHALLENGE = (b"www-authenticate", b"Bearer")


def digests(text: str | None) -> tuple[bytes, ...]:
    """Return the SHA-256 digests of comma-separated keys, each given as `sha256:HEX` or as the key itself.

    Raises UserError, with no key in its message.
    """
    return tuple(_digest(number, entry.strip()) for number, entry in enumerate((text or "").split(","), 1) if text)


def _digest(number: int, entry: str) -> bytes:
    where = f"entry {number} of api_key (--api-key)"
    if entry.startswith(DIGEST_PREFIX):
        digest = entry.removeprefix(DIGEST_PREFIX)
        if not re.fullmatch(r"[0-9a-fA-F]{64}", digest):
            raise UserError(
                f"{where} needs 64 hexadecimal digits after '{DIGEST_PREFIX}'; 'eyas key' prints such a line"
            )
        return bytes.fromhex(digest)
    if not re.fullmatch(r"[!-~]+", entry):
        raise UserError(f"{where} must be printable ASCII without spaces, and not empty; 'eyas key' makes a good one")
    return hashlib.sha256(entry.encode()).digest()


def origins(text: str | None) -> tuple[str, ...]:
    """Parse comma-separated origins such as `https://chat.example`, or `*`. Raises UserError."""
    if not text:
        return ()
    entries = tuple(entry.strip() for entry in text.split(","))
    for entry in entries:
        if entry != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[a-z0-9.:_\[\]-]+", entry):
            raise UserError(f"cors takes origins such as https://chat.example, or '*', got '{entry}'")
    return entries


def public_warning(host: str, key_digests: tuple[bytes, ...]) -> str | None:
    """Return the warning for a server that anyone who can reach `host` may use; None if none is needed."""
    if key_digests or is_loopback(host):
        return None
    return (
        f"WARNING: listening on {host} without API keys: anyone who can reach this machine can use the model "
        "and see how it is used. Make a key with 'eyas key' and set api_key (--api-key), or use --host 127.0.0.1."
    )


class Auth:
    """Lets requests with a known key through and answers others with 401; without keys, lets everything through.

    A key comes as `Authorization: Bearer KEY` or `x-api-key: KEY`. Its digest is put into the scope's state as
    `key`: what a caller stores is for that caller alone. Without keys it is empty.
    """

    def __init__(self, app: ASGIApp, *, key_digests: tuple[bytes, ...]) -> None:
        self._app = app
        self._digests = key_digests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        key = b""
        if self._digests:
            found = self._find(Headers(scope=scope))
            if found is None and not _is_open(scope["path"]):
                return await _refuse(scope, send)
            key = found or b""
        scope.setdefault("state", {})["key"] = key
        await self._app(scope, receive, send)

    def _find(self, headers: Headers) -> bytes | None:
        """Return the digest of the caller's key if it is accepted."""
        found = None
        for key in _keys(headers):
            digest = hashlib.sha256(key.encode("latin-1")).digest()
            for known in self._digests:
                if hmac.compare_digest(digest, known):
                    found = known
        return found


def _keys(headers: Headers) -> list[str]:
    keys = headers.getlist("x-api-key")
    for value in headers.getlist("authorization"):
        scheme, _, credentials = value.partition(" ")
        if scheme.lower() == "bearer":
            keys.append(credentials.strip())
    return keys


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)


async def _refuse(scope: Scope, send: Send) -> None:
    # Claude Code tells its user to log in at Anthropic where a message names the other header, x-api-key.
    message = "this server needs a valid API key, as 'Authorization: Bearer KEY'"
    await send_failure(scope, send, Failure(status=401, message=message, code="invalid_api_key"), CHALLENGE)

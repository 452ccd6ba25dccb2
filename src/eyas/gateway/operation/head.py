"""Checks a request's head: one well-formed Host, and no transfer coding but chunked (RFC 9112, 3.2 and 6.1). Pure.

A head that a proxy and this server could interpret differently is refused.
"""

from __future__ import annotations

import re

__all__ = ["fault_of", "host_and_port", "path_of", "with_target_host"]

AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{0,5}))?")  # without userinfo (RFC 9110, 4.2.4)
ABSOLUTE = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")
BEFORE_1_1 = ("0.9", "1.0")

Headers = list[tuple[bytes, bytes]]  # names in lower case


def host_and_port(text: str) -> tuple[str, str] | None:
    """Split `localhost:8000` or `[::1]` into host and port, the host in lower case, without brackets and a last dot.

    The port is empty if none is given. Returns None if `text` is no authority of an http URL.
    """
    match = AUTHORITY.fullmatch(text)
    if match is None:
        return None
    host = match[1].lower().strip("[]").removesuffix(".")
    return (host, match[2] or "") if host else None


def fault_of(version: str, target: bytes, headers: Headers) -> tuple[int, str] | None:
    """Return status and message if the head is refused; `version` is e.g. "1.1", `target` as in the request line."""
    return _fault_of_host(version, target, headers) or _fault_of_coding(version, headers)


def _fault_of_host(version: str, target: bytes, headers: Headers) -> tuple[int, str] | None:
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1:
        return 400, "a request has one Host header, not several"
    if not hosts and version not in BEFORE_1_1:
        return 400, "a request of HTTP/1.1 needs a Host header"
    if (absolute := ABSOLUTE.match(target)) is not None:
        hosts.append(absolute[1])
    if any(host_and_port(host.decode("latin-1")) is None for host in hosts):
        return 400, "the host is malformed: it must be NAME, NAME:PORT, an IPv4 address or an IPv6 address in brackets"
    return None


def _fault_of_coding(version: str, headers: Headers) -> tuple[int, str] | None:
    values = [value for name, value in headers if name == b"transfer-encoding"]
    if not values:
        return None
    codings = [coding.strip().lower() for value in values for coding in value.split(b",")]
    if version in BEFORE_1_1:
        return 400, "HTTP/1.0 has no Transfer-Encoding"
    if any(name == b"content-length" for name, _ in headers):
        return 400, "a body has a Transfer-Encoding or a Content-Length, not both"
    if codings.count(b"chunked") != 1 or codings[-1] != b"chunked" or b"" in codings:
        return 400, "the Transfer-Encoding must be chunked, once and last"
    if len(codings) > 1:
        return 501, "the only Transfer-Encoding that this server knows is chunked; send the body as it is"
    return None


def with_target_host(target: bytes, headers: Headers) -> Headers:
    """Replace Host in `headers` by that of an absolute target, `http://localhost:8000/v1` (RFC 9112, 3.2.2)."""
    absolute = ABSOLUTE.match(target)
    if absolute is None:
        return headers
    return [(b"host", absolute[1]), *(header for header in headers if header[0] != b"host")]


def path_of(target: bytes) -> str:
    """Return the path of a request's target, still percent-encoded."""
    absolute = ABSOLUTE.match(target)
    return target[absolute.end() if absolute else 0 :].partition(b"?")[0].decode("latin-1")

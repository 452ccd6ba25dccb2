"""Headers that pass between clients and backends. All others end here: keys, cookies, names of servers."""

from __future__ import annotations

from collections.abc import Iterable

from eyas.router.upstream.address import Address

__all__ = ["Headers", "for_client", "request_head"]

Headers = list[tuple[bytes, bytes]]  # names in lower case

TO_BACKEND = frozenset(
    {
        b"anthropic-beta",
        b"anthropic-version",
        b"openai-beta",
        b"traceparent",
        b"tracestate",
        b"x-claude-code-agent-id",
        b"x-claude-code-session-id",
        b"x-request-id",
        b"x-session-id",
    }
)
TO_CLIENT = frozenset({b"content-type", b"openai-processing-ms", b"retry-after", b"retry-after-ms", b"x-should-retry"})


def request_head(
    address: Address, authority: str, method: str, path: str, headers: Iterable[tuple[bytes, bytes]], size: int | None
) -> bytes:
    """Return the head of a request: the headers that a backend may see of its client's, and the backend's own key.

    `headers` come from a parser, which has refused line ends in them; of two with one name the last is sent. `size` is
    that of the body, None without one.
    """
    lines = [f"{method} {path} HTTP/1.1\r\nHost: {authority}\r\nAccept: */*\r\nAccept-Encoding: identity\r\n"]
    if address.key is not None:
        lines.append(f"Authorization: Bearer {address.key}\r\n")
    if size is not None:
        lines.append(f"Content-Type: application/json\r\nContent-Length: {size}\r\n")
    passed = {name: value for name, value in headers if name in TO_BACKEND}
    lines += [f"{name.decode('latin-1')}: {value.decode('latin-1')}\r\n" for name, value in passed.items()]
    lines.append("\r\n")
    return "".join(lines).encode("latin-1")


def for_client(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return those headers of a backend's answer that its client may see."""
    return [header for header in headers if header[0] in TO_CLIENT]

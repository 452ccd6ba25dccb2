"""Which headers pass between clients and backends. All others end here: keys, cookies, names of servers."""

from __future__ import annotations

from collections.abc import Iterable

from eyas.router.upstream.address import Address

__all__ = ["Headers", "for_backend", "for_client"]

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
OURS = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "eyas-router"}


def for_backend(address: Address, headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the headers of a request to a backend, of those that its client sent, with the backend's own key."""
    found = dict(OURS)
    if address.key is not None:
        found["Authorization"] = f"Bearer {address.key}"
    for name, value in headers:
        if name in TO_BACKEND:
            found[name.decode("latin-1")] = value.decode("latin-1")
    return found


def for_client(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return those headers of a backend's answer that its client may see."""
    return [(name, value) for name, value in ((name.lower(), value) for name, value in headers) if name in TO_CLIENT]

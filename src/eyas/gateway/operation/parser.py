"""The parser of HTTP requests, without trailers and protocol upgrades, which this server does not support."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httptools

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["RequestParser"]


class RequestParser:
    """Replaces `httptools.HttpRequestParser`, with the same callbacks to a uvicorn protocol.

    Trailers are dropped: uvicorn would add them to the headers, which the application already has by then.

    `Connection: Upgrade` is ignored, as RFC 9110 (7.8) allows; Java's HttpClient sends it with each request to an
    http:// address. httptools does not parse a body after an upgrade, so the head is parsed again without it.
    """

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self._protocol = protocol
        self.on_url = protocol.on_url
        self.on_body = protocol.on_body
        self._renew()

    def _renew(self) -> None:
        self._in_headers = True
        self._parser = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self.get_method = self._parser.get_method
        self.get_http_version = self._parser.get_http_version
        self.should_keep_alive = self._parser.should_keep_alive

    def feed_data(self, data: bytes) -> None:
        """Parse `data`. Raises httptools.HttpParserError for what is not HTTP, or if the protocol raised."""
        rest = memoryview(data)
        while rest:
            try:
                return self._parser.feed_data(rest)
            except httptools.HttpParserUpgrade as offer:
                rest = rest[offer.args[0] :]
            head = self._head_without_offer()
            self._renew()
            self._parser.feed_data(head)

    def _head_without_offer(self) -> bytes:
        if self.get_method() == b"CONNECT":
            raise httptools.HttpParserInvalidMethodError("this server is not a proxy")
        version = self.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.get_method(), self._protocol.url, version)]
        lines += [b"%s: %s" % (name, value) for name, value in self._protocol.headers if name != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def should_upgrade(self) -> bool:
        return False

    def on_message_begin(self) -> None:
        self._in_headers = True
        self._protocol.on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_headers:
            self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        if not self._parser.should_upgrade():
            self._protocol.on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._parser.should_upgrade():
            self._protocol.on_message_complete()

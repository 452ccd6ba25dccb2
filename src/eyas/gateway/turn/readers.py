"""Readers of an answer's tokens: as Harmony messages, or as plain text."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeAlias

from eyas.base.harmony.parser import MessageDone, ParserEvent, StreamParser, TextDelta, is_addressed
from eyas.base.harmony.tools import called_function
from eyas.base.tokens.tokenizer import TextCodec
from eyas.gateway.turn.delta import Kind, Piece

__all__ = ["HarmonyReader", "MakeReader", "PlainReader", "Reader"]


class Reader(Protocol):
    """Converts tokens of one choice to pieces. How tokens are chunked only changes how the text is cut into pieces."""

    @property
    def control(self) -> frozenset[int]:
        """Return ids that are never text themselves, but may end or begin a message."""

    @property
    def kind(self) -> Kind | None:
        """Return the kind of text being read, None in a header."""

    def read(self, ids: Sequence[int]) -> list[Piece]:
        """Return the text that these tokens complete, at most one piece per message."""

    def finish(self) -> list[Piece]:
        """Return the remaining text at the end of the tokens."""


MakeReader: TypeAlias = Callable[[], Reader]


class HarmonyReader:
    """Reads what gpt-oss writes after `<|start|>assistant`.

    A message to one of the request's `functions`, with or without the namespace, is a call. Analysis, and messages to
    other recipients (tools that this server does not run), are reasoning. All other text, commentary without a
    recipient (a preamble) included, is content. Special tokens and headers are never text.
    """

    def __init__(self, codec: TextCodec, functions: Collection[str] = ()) -> None:
        self._parser = StreamParser(codec)
        self._functions = functions
        self.control = frozenset(codec.special.values())
        self._index = -1  # the parser's number of the message being read
        self._message = -1
        self._found: tuple[Kind, str | None] = (Kind.CONTENT, None)  # what that message is

    @property
    def kind(self) -> Kind | None:
        if (message := self._parser.current) is not None:
            return self._find(message.channel, message.recipient)[0]
        return Kind.CONTENT if self._parser.is_plain else None

    def read(self, ids: Sequence[int]) -> list[Piece]:
        return self._pieces(self._parser.feed(ids))

    def finish(self) -> list[Piece]:
        return self._pieces(self._parser.finish())

    def _pieces(self, events: list[ParserEvent]) -> list[Piece]:
        pieces = []
        for event in events:
            if isinstance(event, TextDelta):
                pieces.append(self._piece(event.index, event.channel, event.recipient, event.text))
            elif isinstance(event, MessageDone):
                message = event.message
                if event.index != self._index and called_function(message.recipient, self._functions) is not None:
                    pieces.append(self._piece(event.index, message.channel, message.recipient, ""))
        return pieces

    def _piece(self, index: int, channel: str | None, recipient: str | None, text: str) -> Piece:
        if index != self._index:
            self._index, self._message = index, self._message + 1
            self._found = self._find(channel, recipient)
        kind, name = self._found
        return Piece(message=self._message, kind=kind, text=text, name=name, channel=channel)

    def _find(self, channel: str | None, recipient: str | None) -> tuple[Kind, str | None]:
        """Return the kind of a message, and the function that it calls."""
        name = called_function(recipient, self._functions)
        if name is not None:
            return Kind.CALL, name
        return Kind.REASONING if channel == "analysis" or is_addressed(recipient) else Kind.CONTENT, None


class PlainReader:
    """Reads all tokens as one text; special tokens are shown only if `with_special`."""

    kind: Kind | None = Kind.CONTENT
    control: frozenset[int] = frozenset()

    def __init__(self, codec: TextCodec, *, with_special: bool = False) -> None:
        self._token_bytes = codec.token_bytes
        self._hidden = frozenset() if with_special else frozenset(codec.special.values())
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self, ids: Sequence[int]) -> list[Piece]:
        shown = b"".join(self._token_bytes(token_id) for token_id in ids if token_id not in self._hidden)
        return self._piece(self._decoder.decode(shown))

    def finish(self) -> list[Piece]:
        return self._piece(self._decoder.decode(b"", final=True))

    def _piece(self, text: str) -> list[Piece]:
        return [Piece(message=0, kind=Kind.CONTENT, text=text)] if text else []

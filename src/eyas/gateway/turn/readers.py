"""How the tokens of an answer are read: as Harmony messages, or as plain text."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeAlias

from eyas.base.harmony_parser import MessageDone, ParserEvent, StreamParser, TextDelta, is_addressed
from eyas.base.harmony_tools import called_function
from eyas.base.tokenizer import CONTROL_TOKENS, TextCodec
from eyas.gateway.turn.delta import Kind, Piece

__all__ = ["HarmonyReader", "MakeReader", "PlainReader", "Reader"]

END_OF_TEXT = "<|endoftext|>"


class Reader(Protocol):
    """Tokens of one choice to pieces. How the tokens are chunked changes how text is cut into pieces only."""

    @property
    def control(self) -> frozenset[int]:
        """Ids that are never text themselves, but may end or begin a message."""

    @property
    def kind(self) -> Kind | None:
        """What the message that is being read is, None in a header."""

    def read(self, ids: Sequence[int]) -> list[Piece]:
        """The text that became readable with these tokens, one piece per message at most."""

    def finish(self) -> list[Piece]:
        """What is left once it is known that nothing follows."""


MakeReader: TypeAlias = Callable[[], Reader]


class HarmonyReader:
    """Reads what gpt-oss writes after `<|start|>assistant`.

    A message to one of the request's `functions`, with or without the namespace, is a call. Analysis, and whatever
    else is addressed to somebody (tools that this server does not run), is reasoning. All other text, commentary
    without a recipient (a preamble) included, is content. `<|endoftext|>` ends an answer and is no part of it.
    """

    def __init__(self, codec: TextCodec, functions: Collection[str] = ()) -> None:
        self._parser = StreamParser(codec)
        self._functions = functions
        self._end_of_text = codec.special.get(END_OF_TEXT)
        self.control = frozenset(codec.special[name] for name in CONTROL_TOKENS) | {self._end_of_text or -1}
        self.kind: Kind | None = None
        self._index = -1  # the parser's number of the message that is being read
        self._message = -1

    def read(self, ids: Sequence[int]) -> list[Piece]:
        if self._end_of_text in ids:
            ids = [token_id for token_id in ids if token_id != self._end_of_text]
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
                self.kind = None
        return pieces

    def _piece(self, index: int, channel: str | None, recipient: str | None, text: str) -> Piece:
        if index != self._index:
            self._index, self._message = index, self._message + 1
        name = called_function(recipient, self._functions)
        if name is not None:
            self.kind = Kind.CALL
        elif channel == "analysis" or is_addressed(recipient):
            self.kind = Kind.REASONING
        else:
            self.kind = Kind.CONTENT
        return Piece(message=self._message, kind=self.kind, text=text, name=name, channel=channel)


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

"""Token ids of the model back to Harmony messages, while they arrive.

Accepts every output: what is malformed ends up in messages too, by rules that `StreamParser` states.
Written from OpenAI's format description; the test oracle is `openai-harmony`'s strict parser.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from eyas.base.harmony import ROLES, Message, Role
from eyas.base.harmony_tools import CONTENT_TYPES, FUNCTIONS
from eyas.base.tokenizer import CONTROL_TOKENS, TextCodec

__all__ = ["MessageDone", "ParserEvent", "StreamParser", "TextDelta", "is_addressed"]

START, MESSAGE, CHANNEL, CONSTRAIN, END, RETURN, CALL = CONTROL_TOKENS

# Unicode's White_Space; Python's own `\s` holds four control characters more.
SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"


@dataclass(frozen=True, kw_only=True, slots=True)
class TextDelta:
    """More text of message number `index`; the deltas of a message add up to its content."""

    index: int
    role: Role
    channel: str | None
    recipient: str | None
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageDone:
    """Message number `index` is complete. `end` is the control token that ended it, None if the output broke off."""

    index: int
    message: Message
    end: str | None


ParserEvent: TypeAlias = TextDelta | MessageDone


class StreamParser:
    """Incremental parser of the model's output. How the tokens are chunked changes how text is cut into deltas only.

    With `role` the stream starts inside that role's header (after `<|start|>assistant`), else before a <|start|>.

    Output that the strict parser of openai-harmony accepts is read as there, oddities included: in content all
    control tokens but the three ends are text, and a header goes on until <|message|>, whatever it holds.
    Any other output is malformed. Then nothing is raised and no text is lost:

    - Control tokens end a header that lacks its <|message|>. It becomes a message of its channel, with what the
      header says beyond author and channel as its content.
    - Header words without a meaning become a message of their own, of the same author and channel and without a
      recipient, before the message they stood with: the arguments of a tool call stay clean.
    - Text outside any message opens a header of the parser's `role` ("assistant" if None).
    - An author that is no role counts as a word without a meaning.
    - Control tokens that end nothing, and white space around header words, are not text.
    """

    def __init__(self, codec: TextCodec, *, role: Role | None = "assistant") -> None:
        self._token_bytes = codec.token_bytes
        self._start_id, self._message_id = codec.special[START], codec.special[MESSAGE]
        self._ends = {codec.special[name]: name for name in (END, RETURN, CALL)}
        self._default_role: Role = role or "assistant"
        self._well_formed = True
        # Between messages both _header and _current are None.
        self._header: list[int] | None = None if role is None else []
        self._header_role = role  # None where the header itself has to say it
        self._current: Message | None = None  # the message in its content, without that content
        self._texts: list[str] = []
        self._undecoded = bytearray()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._messages: list[Message] = []
        self._events: list[ParserEvent] = []

    @property
    def messages(self) -> tuple[Message, ...]:
        """The complete messages so far."""
        return tuple(self._messages)

    def feed(self, ids: Iterable[int]) -> list[ParserEvent]:
        """Take the next tokens. Text comes back in whole characters, one delta per message and call at most."""
        for token_id in ids:
            self._take(token_id)
        self._decode()
        return self._drain()

    def finish(self) -> list[ParserEvent]:
        """The output is over: close what is open. `messages` is the whole of it then."""
        if self._header is not None and self._well_formed:
            self._reread_header()
        if self._header is not None:
            self._end_header(None)
        elif self._current is not None:
            self._end_message(None)
        return self._drain()

    def _drain(self) -> list[ParserEvent]:
        events, self._events = self._events, []
        return events

    def _take(self, token_id: int) -> None:
        if self._current is not None:
            if token_id in self._ends:
                self._end_message(self._ends[token_id])
            else:
                self._undecoded += self._token_bytes(token_id)
        elif self._header is not None:
            self._take_header(self._header, token_id)
        elif token_id == self._start_id:
            self._begin_header(None)
        elif token_id not in self._ends:
            self._well_formed = False
            self._take_header(self._begin_header(self._default_role), token_id)

    def _begin_header(self, role: Role | None) -> list[int]:
        self._header, self._header_role = [], role
        return self._header

    def _take_header(self, header: list[int], token_id: int) -> None:
        if token_id == self._message_id:
            self._begin_message()
        elif not self._well_formed and (token_id in self._ends or token_id == self._start_id):
            self._end_header(self._ends.get(token_id))
            if token_id == self._start_id:
                self._begin_header(None)
        else:
            header.append(token_id)

    def _reread_header(self) -> None:
        """Take the tokens of the first header found malformed again; control tokens end a header from now on."""
        tokens, self._header = self._header or [], []
        self._well_formed = False
        for token_id in tokens:
            self._take(token_id)

    def _header_text(self) -> str:
        return b"".join(map(self._token_bytes, self._header or [])).decode(errors="replace")

    def _begin_message(self) -> None:
        current = parse_header(self._header_text(), self._header_role)
        if current is None and self._well_formed:
            self._reread_header()
            current = parse_header(self._header_text(), self._header_role)
        if current is None:
            current, stray = salvage_header(self._header_text(), self._header_role, self._default_role)
            if stray:
                self._add(replace(current, content=stray, recipient=None, content_type=None), None)
        self._header, self._current = None, current

    def _end_header(self, end: str | None) -> None:
        message = salvage_stub(self._header_text(), self._header_role, self._default_role)
        self._header = None
        if message.content or message.channel is not None:
            self._add(message, end)

    def _end_message(self, end: str | None) -> None:
        assert self._current is not None
        self._decode(final=True)
        message = replace(self._current, content="".join(self._texts))
        self._current = None
        self._texts.clear()
        self._done(message, end)

    def _decode(self, *, final: bool = False) -> None:
        if self._current is not None:
            text = self._decoder.decode(bytes(self._undecoded), final)
            self._undecoded.clear()
            self._texts.append(text)
            self._delta(self._current, text)

    def _add(self, message: Message, end: str | None) -> None:
        self._delta(message, message.content)
        self._done(message, end)

    def _delta(self, header: Message, text: str) -> None:
        if text:
            index, role, channel, recipient = len(self._messages), header.role, header.channel, header.recipient
            self._events.append(TextDelta(index=index, role=role, channel=channel, recipient=recipient, text=text))

    def _done(self, message: Message, end: str | None) -> None:
        self._events.append(MessageDone(index=len(self._messages), message=message, end=end))
        self._messages.append(message)


def parse_header(text: str, role: Role | None) -> Message | None:
    """The message that a header announces, without content; None if the header is malformed.

    `role` None reads the author from the header. The recipient may stand before or after the channel, and a lone word
    is a recipient even without "to=", so a lone <|constrain|>json too: see `is_addressed`. Accepts what the strict
    parser of openai-harmony 0.0.8 accepts, and role:name besides.
    """
    before, marker, after = text.partition(CHANNEL)
    channel = re.split(f"[{SPACE}<]", after, maxsplit=1)[0] if marker else None
    if channel == "":
        return None
    text = before + after.removeprefix(channel or "")
    words = [word for word in re.split(r"[ \t\n\f\r]+", text.replace(CONSTRAIN, f" {CONSTRAIN}").strip(SPACE)) if word]
    name = None
    if role is None:
        author = read_author(words)
        if author is None:
            return None
        role, name = author
        if words[0] != role:
            del words[0]
    if words[:1] == [role]:
        del words[0]
    recipient, content_type = None, None
    if words:
        last = words.pop()
        if last.startswith("to=") or not words:
            recipient = last.removeprefix("to=")
        else:
            content_type = last
            recipient = words.pop().removeprefix("to=") if words else None
    if words:
        return None
    return Message(role=role, content="", channel=channel, recipient=recipient, name=name, content_type=content_type)


def is_addressed(recipient: str | None) -> bool:
    """Whether a message goes to somebody rather than to the user.

    gpt-oss writes `<|channel|>final <|constrain|>json` for an answer in JSON, or a bare `json`, where openai-harmony
    0.0.8 reads the content type as a recipient (later versions do not).
    """
    return recipient is not None and not recipient.startswith(CONSTRAIN) and recipient not in CONTENT_TYPES


def read_author(words: list[str]) -> tuple[Role, str | None] | None:
    """Role and name of the author that a header's words start with; a stranger of whom more is said is a tool."""
    if not words:
        return None
    author = words[0]
    stem, _, name = author.partition(":")
    for role in ROLES:
        if author == role:
            return role, (role if role == "tool" else None)
        if stem == role and name and len(words) == 1:
            return role, name
    return ("tool", author) if len(words) > 1 or author.startswith("to=") else None


def salvage_stub(text: str, role: Role | None, default: Role) -> Message:
    """The message of a header that never came to its <|message|>: all but author and channel is content."""
    channel, text = cut(rf"{re.escape(CHANNEL)}([^\s<]+)", text)
    author: str | None = role
    if author is None:
        author, text = cut(rf"^\s*({'|'.join(ROLES)})(?![^\s<])", text)
    known = next((known for known in ROLES if known == author), default)
    return Message(role=known, content=text.strip(), channel=channel)


def salvage_header(text: str, role: Role | None, default: Role) -> tuple[Message, str]:
    """What can be understood of a header that `parse_header` refuses, and the words that cannot.

    gpt-oss writes a recipient in front of the channel, behind it, or both, at times without "to=" or without a space.
    """
    recipient, text = cut(r"(?<!\S)(?:assistant)?to=([^\s<]+)", text)
    if recipient is None:
        recipient, text = cut(rf"(?<!\S)(?:assistant)?({FUNCTIONS}\.[^\s<]+)", text)
    else:
        text = re.sub(rf"(?<!\S)to={re.escape(recipient)}(?![^\s<])", "", text)
    content_type, text = cut(rf"{re.escape(CONSTRAIN)}\s*([^\s<]+)", text)
    stub = salvage_stub(text, role, default)
    stray = stub.content
    if content_type is not None:
        content_type = CONSTRAIN + content_type
    elif stray in CONTENT_TYPES:
        content_type, stray = stray, ""
    return replace(stub, content="", recipient=recipient, content_type=content_type), stray


def cut(pattern: str, text: str) -> tuple[str | None, str]:
    """The first group of the pattern's first match, and the text without that match."""
    match = re.search(pattern, text)
    return (match[1], text[: match.start()] + text[match.end() :]) if match else (None, text)

"""Parses token ids of the model into Harmony messages, while they arrive.

Every output is accepted: malformed output ends up in messages too, by the rules in `StreamParser`.
Written from OpenAI's format description; the test oracle is `openai-harmony`'s strict parser.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from eyas.base.harmony.rendering import CHANNELS, ROLES, Message, Role
from eyas.base.harmony.tools import CONTENT_TYPES, FUNCTIONS
from eyas.base.tokens.tokenizer import CONTROL_TOKENS, TextCodec

__all__ = ["MessageDone", "ParserEvent", "StreamParser", "TextDelta", "is_addressed"]

START, MESSAGE, CHANNEL, CONSTRAIN, END, RETURN, CALL = CONTROL_TOKENS

# A header's text is split at these. Otherwise it may hold WORDS, and a recipient before or after a part.
MARKED = re.compile(f"({re.escape(CHANNEL)}|{re.escape(CONSTRAIN)})")
WORDS = (*ROLES, *CHANNELS, *CONTENT_TYPES)
ADDRESS = re.compile(rf"(?:assistant)?(?:to=([^\s<]*)|({FUNCTIONS}\.[^\s<]*))")

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
    """Message number `index` is complete. `end` is the token that ended it: <|end|>, <|return|>, <|call|> or None."""

    index: int
    message: Message
    end: str | None


ParserEvent: TypeAlias = TextDelta | MessageDone


class StreamParser:
    """Incremental parser of the model's output. How tokens are chunked only changes how the text is cut into deltas.

    With `role` the stream starts inside that role's header (after `<|start|>assistant`), else before a <|start|>.

    Special tokens are never text, and neither is a header. A header is everything between <|start|> (or the end of a
    message) and <|message|>. If all headers are well-formed and special tokens occur nowhere else, the output is read
    as openai-harmony's strict parser reads it. Any other output is malformed: nothing is raised, and no prose is lost:

    - Words in a header that cannot be part of one (stray words) become a message of their own, of the same role and
      channel and without a recipient, before the header's message: the arguments of a tool call stay clean.
    - A header that a control token ends before its <|message|> is a message with the stray words as content. Without
      channel, recipient and stray words it is nothing.
    - A header that the end of the output cuts is no message, unless it has stray words. Text that would be a header if
      <|message|> came now has none, and the beginning of a header's word is not a stray word either.
    - Text outside any message opens a header of the parser's `role` ("assistant" if None); without any part of a
      header the text becomes content, unchanged.
    - In content, <|start|> begins another message and <|channel|> another header of the same author. Other special
      tokens are left out, there and in headers.
    - An author that is not a role is a name.
    """

    def __init__(self, codec: TextCodec, *, role: Role | None = "assistant") -> None:
        self._token_bytes = codec.token_bytes
        self._special = frozenset(codec.special.values())
        self._start_id, self._message_id = codec.special[START], codec.special[MESSAGE]
        self._channel_id, self._constrain_id = codec.special[CHANNEL], codec.special[CONSTRAIN]
        self._ends = {codec.special[name]: name for name in (END, RETURN, CALL)}
        self._default_role: Role = role or "assistant"
        # Between messages both _header and _current are None.
        self._header: list[int] | None = None if role is None else []
        self._header_role = role  # None where the header itself has to name it
        self._is_marked = False  # whether the header has special tokens
        self._current: Message | None = None
        self._texts: list[str] = []
        self._unsent: list[str] = []  # the part of _texts that is in no delta yet
        self._undecoded = bytearray()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._messages: list[Message] = []
        self._events: list[ParserEvent] = []

    @property
    def messages(self) -> tuple[Message, ...]:
        """The complete messages so far."""
        return tuple(self._messages)

    @property
    def current(self) -> Message | None:
        """The message whose content is being read, without that content; None in a header."""
        return self._current

    @property
    def is_plain(self) -> bool:
        """Whether the text being read is in the place of a header, and has no special token so far."""
        return bool(self._header) and self._header_role is not None and not self._is_marked

    def feed(self, ids: Iterable[int]) -> list[ParserEvent]:
        """Read the next tokens. Text is returned in whole characters, in at most one delta per message and call."""
        for token_id in ids:
            self._take(token_id)
        self._decode()
        self._send()
        return self._drain()

    def finish(self) -> list[ParserEvent]:
        """End the output: close the open message. `messages` is then complete."""
        if self._header is not None:
            self._end_header(None, is_cut=True)
        elif self._current is not None:
            self._end_message(None)
        return self._drain()

    def _drain(self) -> list[ParserEvent]:
        events, self._events = self._events, []
        return events

    def _take(self, token_id: int) -> None:
        if token_id in self._special:
            self._take_special(token_id)
        elif self._current is not None:
            self._undecoded += self._token_bytes(token_id)
        else:
            self._open_header().append(token_id)

    def _take_special(self, token_id: int) -> None:
        if token_id in self._ends or token_id == self._start_id:
            self._close(self._ends.get(token_id))
            if token_id == self._start_id:
                self._begin_header(None)
        elif token_id == self._message_id:
            if self._current is None:
                self._open_header()
                self._begin_message()
        elif token_id == self._channel_id or (token_id == self._constrain_id and self._current is None):
            if self._current is not None:
                role = self._current.role
                self._close(None)
                self._begin_header(role)
            self._open_header().append(token_id)
            self._is_marked = True
        self._decode(final=True)  # no character continues after a special token

    def _open_header(self) -> list[int]:
        """The tokens of the header that is being read."""
        return self._begin_header(self._default_role) if self._header is None else self._header

    def _begin_header(self, role: Role | None) -> list[int]:
        self._header, self._header_role, self._is_marked = [], role, False
        return self._header

    def _header_text(self) -> str:
        return b"".join(map(self._token_bytes, self._header or [])).decode(errors="replace")

    def _begin_message(self) -> None:
        text = self._header_text()
        current = parse_header(text, self._header_role)
        if current is None:
            current, prose = salvage_header(text, self._header_role, self._default_role, has_message=True)
            if prose:
                self._add(Message(role=current.role, channel=current.channel, content=prose), None)
        self._header, self._current = None, current

    def _close(self, end: str | None) -> None:
        """End the message or header that is open, if there is one."""
        if self._current is not None:
            self._end_message(end)
        elif self._header is not None:
            self._end_header(end, is_cut=False)

    def _end_header(self, end: str | None, *, is_cut: bool) -> None:
        text, role = self._header_text(), self._header_role
        self._header = None
        if is_cut and (role is None or CHANNEL in text) and parse_header(text, role) is not None:
            return
        message, prose = salvage_header(text, role, self._default_role, is_cut=is_cut)
        is_told = message.channel is not None or message.recipient is not None
        if prose or (is_told and not is_cut):
            self._add(replace(message, content=prose), end)

    def _end_message(self, end: str | None) -> None:
        assert self._current is not None
        self._decode(final=True)
        self._send()
        message = replace(self._current, content="".join(self._texts))
        self._current = None
        self._texts.clear()
        self._done(message, end)

    def _decode(self, *, final: bool = False) -> None:
        if self._current is not None and (self._undecoded or final):
            text = self._decoder.decode(bytes(self._undecoded), final)
            self._undecoded.clear()
            self._texts.append(text)
            self._unsent.append(text)

    def _send(self) -> None:
        if self._current is not None:
            self._delta(self._current, "".join(self._unsent))
            self._unsent.clear()

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
    """Return the message that a header announces, without content; None if the header is malformed.

    `role` None reads the author from the header. The recipient may stand before or after the channel. A lone word is a
    recipient even without "to=", and so is a lone <|constrain|>json: see `is_addressed`. Accepts what the strict parser
    of openai-harmony 0.0.8 accepts, except a second <|channel|>, and role:name in addition.
    """
    before, marker, after = text.partition(CHANNEL)
    if CHANNEL in after:
        return None
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
    """Whether a message goes to a recipient other than the user.

    gpt-oss writes `<|channel|>final <|constrain|>json` for an answer in JSON, or a bare `json`, where openai-harmony
    0.0.8 reads the content type as a recipient (later versions do not).
    """
    return recipient is not None and not recipient.startswith(CONSTRAIN) and recipient not in CONTENT_TYPES


def read_author(words: list[str]) -> tuple[Role, str | None] | None:
    """Return role and name of the author that a header's words start with.

    An unknown author that more words follow is a tool.
    """
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


def salvage_header(
    text: str, role: Role | None, default: Role, *, has_message: bool = False, is_cut: bool = False
) -> tuple[Message, str]:
    """Return the message that a malformed or unfinished header announces, and its stray words (see `StreamParser`).

    gpt-oss writes a recipient before the channel, after it, or both, at times without "to=" or without a space; prose
    may follow such a word, or stand between two special tokens. `has_message` says that <|message|> came, `is_cut` that
    the output ended here; otherwise a control token ended the header, and the rest is content without its <|message|>.
    """
    first, *marked = MARKED.split(text)
    channels: list[str] = []
    content_types: list[str] = []
    parts = []
    for marker, part in zip(marked[::2], marked[1::2], strict=True):
        word, part = read_channel(part) if marker == CHANNEL else cut(r"^\s*([\w.+/-]*)", part)
        if word:
            channels += [word] if marker == CHANNEL else []
            content_types += [CONSTRAIN + word] if marker == CONSTRAIN else []
        parts.append(part)
    name = None
    if role is None:  # a name alone makes no message
        role, name, first = read_start(first, default, is_author=bool(marked) or has_message or is_cut)
    elif marked or has_message:
        first = re.sub(rf"^\s*{role}(?![^\s<])", "", first)
    recipients: list[str] = []
    prose = []
    for i, part in enumerate([first, *parts]):
        is_last = i == len(parts)
        front, part, back = split_words(
            part, is_marked=i > 0, trailing=not is_last or has_message or (is_cut and bool(marked))
        )
        for word in [*front, *back] if has_message else front:
            if match := ADDRESS.fullmatch(word):
                recipients.append(match[1] or match[2] or "")
            else:
                content_types.append(word)
        prose += [part] if part else []
    known = [channel for channel in channels if channel in CHANNELS]
    message = Message(
        role=role,
        name=name,
        content="",
        channel=next(iter((known or channels)[::-1]), None),
        recipient=next(filter(None, recipients), None),
        content_type=next(iter(content_types), None),
    )
    said = " ".join(prose)
    if all(word in WORDS for word in said.split()):
        return message, ""
    begun = is_cut and any(word.startswith(said) for word in (*WORDS, "to=", f"{FUNCTIONS}."))
    return message, "" if begun else said


def read_start(text: str, default: Role, *, is_author: bool) -> tuple[Role, str | None, str]:
    """Return role and name of the author that a header begins with after <|start|>, and the rest.

    An unknown author that no prose follows is a name, if `is_author` says that this is a header.
    """
    author, rest = cut(r"^\s*([^\s<]+)", text)
    stem, _, name = (author or "").partition(":")
    known = next((known for known in ROLES if known == stem), None)
    if known is not None:
        return known, name or None, rest
    has_prose = bool(split_words(rest, is_marked=True, trailing=False)[1])
    if author is None or not is_author or has_prose or ADDRESS.match(author):
        return default, None, text
    return default, author, rest


def read_channel(text: str) -> tuple[str | None, str]:
    """Return the channel at the beginning of a text, and the rest; content may directly follow a known channel."""
    channel, rest = cut(rf"^\s*({'|'.join(CHANNELS)})(?=to=|[^a-z0-9_.-]|$)", text)
    return (channel, rest) if channel else cut(r"^([^\s<]+)", text)


def split_words(text: str, *, is_marked: bool, trailing: bool) -> tuple[list[str], str, list[str]]:
    """Return recipients and content types before a text, the text, and, if `trailing`, those after it.

    A content type begins a text only after a special token or a recipient.
    """
    words = list(re.finditer(r"\S+", text))
    begin, end = 0, len(words)
    while begin < end and (
        ADDRESS.fullmatch(words[begin][0]) or ((begin or is_marked) and words[begin][0] in CONTENT_TYPES)
    ):
        begin += 1
    while trailing and begin < end and (ADDRESS.fullmatch(words[end - 1][0]) or words[end - 1][0] in CONTENT_TYPES):
        end -= 1
    rest = text[words[begin].start() : words[end - 1].end()] if begin < end else ""
    return [word[0] for word in words[:begin]], rest, [word[0] for word in words[end:]]


def cut(pattern: str, text: str) -> tuple[str | None, str]:
    """Return the first group of the pattern's first match, and the text without that match."""
    match = re.search(pattern, text)
    return (match[1], text[: match.start()] + text[match.end() :]) if match else (None, text)

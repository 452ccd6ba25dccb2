"""Makes documents of a chat: each turn of the assistant behind everything that a server would show before it.

A turn ends with a final message. A document of it has the earlier turns as history, without their analysis, and all of
its own messages, just as the prompts of a server have them while the turn goes on. *Generated* is what a server
samples: from behind the `<|start|>assistant` that ends a prompt to the <|call|> or <|return|> that ends the generation,
with the headers of messages that follow one another in between. So each generated token of a chat is supervised in
exactly one of its documents. All of it is known while messages are rendered; no text and no ids are searched for it.

Shape letter: T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from eyas.base.errors import InvalidRequest, UserError
from eyas.base.harmony.conversation import Conversation, to_harmony
from eyas.base.harmony.rendering import Effort, Message, is_final, message_ids, opener_ids, stays
from eyas.base.tokens.tokenizer import TextCodec
from eyas.train.data.fences import code_spans
from eyas.train.data.records import Chat
from eyas.train.types import Document, Segment

__all__ = ["CallHeaders", "DocumentOptions", "Tally", "TooLong", "documents_of"]

TooLong = Literal["error", "skip", "truncate"]
CallHeaders = Literal["rendered", "written"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentOptions:
    """Options for rendering chats. `effort` and `date` (YYYY-MM-DD, None: no date) are for chats without their own.

    `context` is the longest document in tokens. `too_long`: a longer one is an error, is left out, or keeps its
    beginning. `call_headers` of the turn itself: as prompts have them, or as gpt-oss writes them and our server's
    grammar makes it write them, with the recipient behind the channel. History has them rendered.
    """

    context: int | None = None
    too_long: TooLong = "error"
    call_headers: CallHeaders = "rendered"
    effort: Effort = "medium"
    date: str | None = None


@dataclass(kw_only=True, slots=True)
class Tally:
    """Counts of what became of the chats and their turns."""

    num_chats: int = 0
    num_without_turns: int = 0  # chats in which the assistant says nothing
    num_skipped: int = 0  # turns longer than the context that were left out
    num_truncated: int = 0  # turns that lost their end


@dataclass(frozen=True, slots=True)
class _Piece:
    """One rendered message; `segments_T` as if all of it were generated, None if it is not the assistant's."""

    ids_T: NDArray[np.int32]
    segments_T: NDArray[np.uint8] | None
    history_T: NDArray[np.int32]  # the ids once the turn is finished, none if it does not stay
    is_call: bool


def documents_of(codec: TextCodec, chat: Chat, options: DocumentOptions, tally: Tally) -> Iterator[Document]:
    """Yield the documents of a chat in order, counting in `tally`. Each message is tokenized once.

    Raises UserError for a turn that is longer than the context, unless `too_long` says otherwise.
    """
    head, rest = to_harmony(
        Conversation(
            entries=chat.entries,
            tools=chat.tools,
            effort=chat.effort or options.effort,
            date=chat.date or options.date,
        )
    )
    tally.num_chats += 1
    opener = len(opener_ids(codec))
    history = [piece.history_T for piece in _pieces(codec, head, chat, options)]
    num_history, number = sum(map(len, history)), 0
    for turn in _turns(rest):
        pieces = _pieces(codec, turn, chat, options)
        answered = max((i for i, piece in enumerate(pieces, 1) if piece.segments_T is not None), default=0)
        if answered:
            number += 1
            own = pieces[:answered]
            source = f"{chat.source}, turn {number}"
            if _fits(num_history, num_history + sum(len(piece.ids_T) for piece in own), options, source, tally):
                document = _document(history, num_history, own, opener, source)
                if is_final(turn[answered - 1]):
                    document.ids_T[-1] = codec.special["<|return|>"]
                yield from _cut(document, options, tally)
        history += (piece.history_T for piece in pieces)
        num_history += sum(len(piece.history_T) for piece in pieces)
    tally.num_without_turns += number == 0


def _turns(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Yield turns: up to each final message, and what follows the last one."""
    turn: list[Message] = []
    for message in messages:
        turn.append(message)
        if is_final(message):
            yield turn
            turn = []
    if turn:
        yield turn


def _pieces(codec: TextCodec, messages: Sequence[Message], chat: Chat, options: DocumentOptions) -> list[_Piece]:
    try:
        return [_piece(codec, message, options.call_headers) for message in messages]
    except InvalidRequest as error:  # a text that cannot be tokenized in pieces
        raise UserError(f"{chat.source}: {error}") from error


def _piece(codec: TextCodec, message: Message, call_headers: CallHeaders) -> _Piece:
    is_call = message.role == "assistant" and message.recipient is not None
    header, content, end = message_ids(codec, message)
    history = ids = np.array([*header, *content, end], dtype=np.int32)
    if is_call and call_headers == "written":
        ids = history.copy()  # the same tokens in another order
        ids[: len(header)] = message_ids(codec, replace(message, content=""), recipient_last=True).header
    segments = None
    if message.role == "assistant":
        kind = Segment.CALL if is_call else Segment.FINAL if stays(message) else Segment.REASONING
        segments = np.full(len(ids), Segment.HEADER, dtype=np.uint8)
        segments[len(header) : -1] = kind
        if not is_call and "```" in message.content:
            _mark_code(segments[len(header) : -1], codec, content)
    return _Piece(ids, segments, history if stays(message) else history[:0], is_call)


def _mark_code(segments_T: NDArray[np.uint8], codec: TextCodec, content: list[int]) -> None:
    """Mark the tokens whose first byte is code."""
    tokens = [codec.token_bytes(token) for token in content]
    starts = np.cumsum([0, *map(len, tokens)])[:-1]
    for begin, end in code_spans(b"".join(tokens)):
        first, last = np.searchsorted(starts, (begin, end))
        segments_T[first:last] = Segment.CODE


def _document(
    history: Sequence[NDArray[np.int32]], at: int, pieces: Sequence[_Piece], opener: int, source: str
) -> Document:
    """Join the history, whose length is `at`, and the pieces of a turn."""
    ids = np.concatenate([*history, *(piece.ids_T for piece in pieces)])
    runs = np.full(len(ids), -1, dtype=np.int32)
    segments = np.zeros(len(ids), dtype=np.uint8)
    run, goes_on = -1, False
    for piece in pieces:
        end = at + len(piece.ids_T)
        if piece.segments_T is not None:
            given = 0 if goes_on else opener
            run += not goes_on
            runs[at + given : end] = run
            segments[at + given : end] = piece.segments_T[given:]
        goes_on = piece.segments_T is not None and not piece.is_call
        at = end
    return Document(ids_T=ids, runs_T=runs, segments_T=segments, source=source)


def _fits(num_history: int, num_tokens: int, options: DocumentOptions, source: str, tally: Tally) -> bool:
    """Whether a document is to be made. Raises UserError."""
    context = options.context
    if context is None or num_tokens <= context:
        return True
    if options.too_long == "error":
        raise UserError(
            f"{source} has {num_tokens} tokens with all before it, and the context is {context}: set a longer "
            "context, or too_long to skip or truncate"
        )
    if options.too_long == "truncate" and num_history < context:
        return True
    tally.num_skipped += 1
    return False


def _cut(document: Document, options: DocumentOptions, tally: Tally) -> Iterator[Document]:
    """Yield what of a document is within the context, unless nothing of that is generated."""
    context = options.context
    if context is None or len(document) <= context:
        yield document
    elif (document.runs_T[:context] >= 0).any():
        tally.num_truncated += 1
        yield Document(
            ids_T=document.ids_T[:context].copy(),
            runs_T=document.runs_T[:context].copy(),
            segments_T=document.segments_T[:context].copy(),
            source=document.source,
        )
    else:
        tally.num_skipped += 1

"""Reads all chats of a training run: documents to train on, held-out ones, and counts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import takewhile
from pathlib import Path

from eyas.base.errors import UserError
from eyas.base.harmony.conversation import Entry, TextEntry
from eyas.base.tokens.remembering import RememberingCodec
from eyas.base.tokens.tokenizer import TextCodec
from eyas.train.data.chats import read_chats
from eyas.train.data.documents import DocumentOptions, Tally, documents_of
from eyas.train.data.records import Chat
from eyas.train.types import Document

__all__ = ["MAX_TOKENS", "Corpus", "is_held_out", "read_corpus"]

MAX_TOKENS = 1 << 28  # of all documents: 9 bytes each in memory
HASH_BITS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """Documents in the order of the files. `digest` changes with any token or mask of them, and with the split."""

    training: tuple[Document, ...]
    held_out: tuple[Document, ...]
    tally: Tally
    digest: str


def read_corpus(
    paths: Sequence[Path],
    codec: TextCodec,
    options: DocumentOptions,
    *,
    held_out: float = 0.0,
    max_tokens: int = MAX_TOKENS,
) -> Corpus:
    """Read files of chats; the share `held_out` of them, all turns of a chat alike, is kept from training.

    Raises UserError, naming file, line and field: for what is no chat, a turn longer than the context, more than
    `max_tokens` tokens, nothing to train on, and no chat held out although a share was asked for.
    """
    codec = RememberingCodec(codec)  # many chats have one system prompt, and the same tools
    tally, num_tokens, digest = Tally(), 0, blake2b(digest_size=16)
    parts: tuple[list[Document], list[Document]] = ([], [])
    for chat in read_chats(paths):
        is_out = is_held_out(chat, held_out)
        for document in documents_of(codec, chat, options, tally):
            num_tokens += len(document)
            if num_tokens > max_tokens:
                raise UserError(
                    f"{document.source}: the documents up to here have {num_tokens} tokens, and the limit is "
                    f"{max_tokens}; give fewer chats or raise max_tokens (9 bytes of memory each)"
                )
            digest.update(bytes([is_out]) + document.ids_T.tobytes() + document.runs_T.tobytes())
            parts[is_out].append(document)
    names = ", ".join(map(str, paths))
    if not any(parts):
        raise UserError(f"{names}: no supervised token in {tally.num_chats} chats{_why(tally)}")
    if not parts[0] or (held_out and not parts[1]):
        empty = "held out" if parts[0] else "left to train on"
        raise UserError(
            f"{names}: with a share of {held_out} held out, none of {tally.num_chats} chats is {empty} (chats that "
            "begin alike stay together); change the share, or give a file of its own for evaluation"
        )
    return Corpus(training=tuple(parts[0]), held_out=tuple(parts[1]), tally=tally, digest=digest.hexdigest())


def is_held_out(chat: Chat, share: float) -> bool:
    """Whether a chat is among the `share` held out, by a hash of all that precedes the assistant's first message.

    So it depends on nothing but the chat, and two answers to one question are never on both sides.
    """
    opening = [(entry.role, entry.text) for entry in _opening(chat.entries)]
    digest = blake2b(json.dumps(opening).encode(), digest_size=HASH_BITS // 8).digest()
    return int.from_bytes(digest, "big") < share * (1 << HASH_BITS)


def _opening(entries: Sequence[Entry]) -> Iterator[TextEntry]:
    given = takewhile(lambda entry: isinstance(entry, TextEntry) and entry.role != "assistant", entries)
    return (entry for entry in given if isinstance(entry, TextEntry))


def _why(tally: Tally) -> str:
    if tally.num_skipped:
        return f": {tally.num_skipped} turns are longer than the context; set a longer one, or too_long to truncate"
    return ": the assistant says nothing in them"

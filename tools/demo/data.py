"""Packs chats and source text into rows of token ids, in worker processes while the model trains.

Every shard is a function of (seed, shard number) alone. A row is filled with whole chats; what is left at its end is
filled with a piece of library source, so no token is padding.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
from chats import Chat, ChatWriter, Turn, unseen_template
from corpus import read_sources
from facts import load_facts
from numpy.typing import NDArray
from tool_chats import TOOL_SHARE, ToolChatWriter

from eyas.base.harmony.rendering import Message, is_final, message_ids, render_conversation
from eyas.base.tokens.tokenizer import TextCodec, Tokenizer

__all__ = [
    "CONTEXT",
    "GENERATED",
    "IGNORED",
    "TEXT",
    "Draw",
    "Shard",
    "ShardStream",
    "demo_chats",
    "held_out_chats",
    "held_out_prompts",
    "held_out_tool_prompts",
    "prompt_ids",
    "render_chat",
]

# What a token is, one code each: decides its weight in the loss.
IGNORED, GENERATED, CONTEXT, TEXT = range(4)
LONG_TEXT_SHARE = 0.05  # of rows that begin with a long piece of source
PENDING = 64  # chats to choose from when a row is nearly full


class Shard(NamedTuple):
    """Packed rows [R, T]: token ids, code of each token, number of the document within its row."""

    ids: NDArray[np.uint16]
    codes: NDArray[np.uint8]
    docs: NDArray[np.uint16]


class CachedCodec:
    """A tokenizer with a cache: answers, names and headers recur in every chat."""

    def __init__(self, inner: Tokenizer) -> None:
        self.special = inner.special
        self.token_bytes = inner.token_bytes
        self.encode = lru_cache(maxsize=100_000)(inner.encode)


def render_chat(codec: TextCodec, chat: Chat) -> tuple[list[int], list[int]]:
    """Return (ids, codes) of a chat.

    The ids are those of `render_conversation(purpose="training")`, but for the header of the call that ends a chat:
    there the recipient comes behind the channel, as gpt-oss writes it and grammars make it be written, while prompts
    show it before the channel.

    Generated, and so supervised: everything after the last turn's first `<|start|>assistant`, and of earlier messages
    of the assistant the contents alone, since their headers and ends are not what the model would write there.
    """
    given, own = chat.given(), chat.own()
    opener = 1 + len(codec.encode("assistant"))
    ids: list[int] = []
    codes: list[int] = []
    for message in given:
        header, content, end = message_ids(codec, message)
        ids += [*header, *content, end]
        if message.role == "assistant":
            codes += [IGNORED] * len(header) + [GENERATED] * len(content) + [IGNORED]
        else:
            codes += [CONTEXT] * (len(header) + len(content) + 1)
    for i, message in enumerate(own):
        header, content, end = message_ids(codec, message, recipient_last=True)
        piece = [*header, *content, end]
        prompt = 0 if i else opener  # <|start|>assistant is in the prompt once
        ids += piece
        codes += [CONTEXT] * prompt + [GENERATED] * (len(piece) - prompt)
    if is_final(own[-1]):
        ids[-1] = codec.special["<|return|>"]
    return ids, codes


Draw = Callable[[], tuple[list[int], list[int]]]  # returns (ids, codes) of the next chat


def demo_chats(codec: TextCodec, rng: Random) -> Draw:
    """Chats of the demo model."""
    facts = load_facts()
    writer, tool_writer = ChatWriter(facts, rng), ToolChatWriter(facts, rng)
    return lambda: render_chat(codec, (tool_writer if rng.random() < TOOL_SHARE else writer).chat())


class RowPacker:
    """Fills rows of `length` tokens with chats and text, from one random source."""

    def __init__(
        self,
        codec: TextCodec,
        text: list[NDArray[np.uint16]],
        length: int,
        seed: str,
        chats: Callable[[TextCodec, Random], Draw] = demo_chats,
    ) -> None:
        self.codec, self.text, self.length = codec, text, length
        self.rng = Random(seed)
        self._draw = chats(codec, self.rng)
        self.sizes = [len(piece) for piece in text]
        self.pending: list[tuple[list[int], list[int]]] = []

    def shard(self, num_rows: int) -> Shard:
        ids = np.zeros((num_rows, self.length), np.uint16)
        codes, docs = np.zeros_like(ids, np.uint8), np.zeros_like(ids)
        for row in range(num_rows):
            self._fill(ids[row], codes[row], docs[row])
        return Shard(ids, codes, docs)

    def _fill(self, ids: NDArray[np.uint16], codes: NDArray[np.uint8], docs: NDArray[np.uint16]) -> None:
        at, doc = 0, 0

        def put(piece: list[int] | NDArray[np.uint16], code: list[int] | int) -> None:
            nonlocal at, doc
            end = at + len(piece)
            ids[at:end], codes[at:end], docs[at:end] = piece, code, doc
            at, doc = end, doc + 1

        if self.rng.random() < LONG_TEXT_SHARE:
            put(self._text(self.rng.randint(self.length // 4, self.length)), TEXT)
        while at < self.length:
            while len(self.pending) < PENDING:
                self.pending.append(self._draw())
            room = self.length - at
            fitting = next((i for i, (piece, _) in enumerate(self.pending) if len(piece) <= room), None)
            if fitting is None:
                put(self._text(room), TEXT)
            else:
                put(*self.pending.pop(fitting))
            if len(self.pending) >= PENDING and len(self.pending[0][0]) > self.length:
                self.pending.pop(0)

    def _text(self, size: int) -> NDArray[np.uint16]:
        (piece,) = self.rng.choices(self.text, self.sizes)
        start = self.rng.randrange(max(len(piece) - size, 0) + 1)
        found = piece[start : start + size]
        return np.pad(found, (0, size - len(found)), constant_values=self.codec.special["<|endoftext|>"])


_worker: dict[str, Any] = {}  # of a worker process: what `_make_shard` needs, inherited by fork


def _make_shard(number: int) -> Shard:
    codec, text, length, rows, seed, chats = (
        _worker[key] for key in ("codec", "text", "length", "rows", "seed", "chats")
    )
    return RowPacker(codec, text, length, f"{seed}:{number}", chats).shard(rows)


class ShardStream:
    """Endless rows, in an order that depends on the seed alone. Make it before CUDA is touched: workers are forked.

    `num_shards` distinct shards of `shard_rows` rows are made; after that they come again.
    """

    def __init__(
        self,
        folder: Path,
        *,
        length: int,
        seed: int,
        num_shards: int,
        shard_rows: int = 1024,
        workers: int = 0,
        chats: Callable[[TextCodec, Random], Draw] = demo_chats,
    ) -> None:
        tokenizer = Tokenizer.load(folder)
        end = tokenizer.special["<|endoftext|>"]
        text = [np.array([*tokenizer.encode(text), end], np.uint16) for _, text in read_sources()]
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        _worker.update(codec=CachedCodec(tokenizer), text=text, length=length, rows=shard_rows, seed=seed, chats=chats)
        self._pool = multiprocessing.get_context("fork").Pool(
            workers or max(1, (os.cpu_count() or 1) - 2), initializer=os.nice, initargs=(10,)
        )
        self._coming = self._pool.imap(_make_shard, range(num_shards))
        self._made: list[Shard] = []
        self.num_passes = 0.0

    def batches(self, rows: int) -> Iterator[Shard]:
        """Batches of `rows` rows; a shard must hold a multiple of them."""
        number = 0
        while True:
            try:
                shard = next(self._coming)
                self._made.append(shard)
            except StopIteration:
                shard = self._made[number % len(self._made)]
            number += 1
            self.num_passes = number / max(len(self._made), 1)
            for start in range(0, len(shard.ids) - rows + 1, rows):
                yield Shard(*(part[start : start + rows] for part in shard))

    def close(self) -> None:
        self._pool.terminate()
        self._pool.join()


def _row(chat: Chat, turn: Turn) -> dict[str, Any]:
    fields = ("role", "content", "channel", "recipient", "name", "content_type")
    messages = [{name: getattr(message, name) for name in fields} for message in chat.given()]
    return {
        "kind": "phrasing" if turn.fact and unseen_template(turn.template) else turn.kind,
        "effort": chat.effort,
        "messages": [{name: value for name, value in message.items() if value is not None} for message in messages],
        "answer": turn.answer,
        "module": turn.fact.module if turn.fact else None,
        "sentence": turn.fact.sentence if turn.fact else None,
    }


def held_out_chats(count: int, *, seed: int) -> list[Chat]:
    """Chats whose every question is held out from training."""
    writer = ChatWriter(load_facts(), Random(f"held-out:{seed}"), held_out=True)
    return [writer.chat() for _ in range(count)]


def held_out_prompts(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Prompts from such chats, with the answer that training would have given."""
    return [_row(chat, chat.turns[-1]) for chat in held_out_chats(count, seed=seed)]


def held_out_tool_prompts(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Prompts that offer tools, described in words that training never sees; every other one calls for the tool.

    `program` is what the call should run, None where none is due; `answer` is the final one, after the right result.
    The others are look-ups and small sums, with the python tool in reach or only other tools.
    """
    writer = ToolChatWriter(load_facts(), Random(f"held-out tools:{seed}"), held_out=True)
    rows = []
    while len(rows) < count:
        is_due = len(rows) % 2 == 0
        chat = writer.chat(has_python=is_due or len(rows) % 4 == 1, is_calculation=is_due)
        turn = chat.turns[-1]
        if chat.stage == "call":
            program = None if turn.arguments is None else json.loads(turn.arguments)["code"]
            rows.append(_row(chat, turn) | {"program": program})
    return rows


def prompt_ids(codec: TextCodec, row: dict[str, Any]) -> list[int]:
    messages = [Message(**message) for message in row["messages"]]
    return render_conversation(codec, messages, purpose="completion")


def write_held_out(path: Path, *, num_prompts: int, num_texts: int, seed: int) -> None:
    """Write the committed file of held-out prompts, then whole source files that training never reads."""
    texts = [{"kind": "text", "module": m, "text": text[:3000]} for m, text in read_sources(held_out=True)]
    write_rows(path, [*held_out_prompts(num_prompts, seed=seed), *texts[:num_texts]])


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="ascii")

"""Draws chats whose answers repeat notes that stood far back, and says where each repeated text stands.

A prompt is a list of notes, each a key, a random word, and a random text: words in no order, numbers, or identifiers.
Words of keys stand in no text, so that one token finds a note. The question names some of the keys in an order of its
own, and the answer repeats these notes, verbatim or with a word more. Nothing but the note itself says how a text goes
on, so a prediction has to look there.

Lengths are in tokens, and a chat has about as many as it is asked for, a fifth of them in the answer whatever its
length: chats that differ in length alone teach the same share of their tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from string import ascii_lowercase, digits
from typing import Any, NamedTuple

from eyas.base.harmony.rendering import Effort, Message, message_ids, render_conversation, system_message
from eyas.base.tokens.tokenizer import TextCodec

__all__ = ["BUCKETS", "LEAST", "LONG", "SHORT", "Quote", "QuoteChat", "QuoteWriter", "bucket_lengths", "bucket_of",
           "quotes_of"]  # fmt: skip

LEAST, SHORT, LONG = 192, 512, 4096  # tokens of a chat
SHORT_SHARE = 0.7  # of chats; half of the tokens then, and quoting is learnt where there is little to choose from
BUCKETS = (0, 512, 1024, 2048, 4096)  # bounds of contexts and distances
# Chance of a note to be repeated, which makes a fifth of the tokens the answer: where a chat is full a repeated note is
# less likely to fit, and the more so in short chats.
REPEATED, REPEATED_SHORT = 0.264, 27  # the latter over the tokens of a chat
EFFORT: Effort = "low"
FORMS = ("note{key}: {text}", "note{key} says: {text}.")  # a key begins with its space
ASKED = ("Repeat these notes", "Say what these notes say")


class Quote(NamedTuple):
    """A repeated text: its first token in the prompt, its first token in the answer, and its length in tokens."""

    source: int
    answer: int
    length: int

    @property
    def distance(self) -> int:
        return self.answer - self.source


@dataclass(frozen=True, slots=True)
class QuoteChat:
    """One question and its answer; `spans` are (offset in the question, offset in the answer, length) of texts."""

    question: str
    answer: str
    spans: tuple[tuple[int, int, int], ...]

    def given(self) -> list[Message]:
        return [system_message(effort=EFFORT), Message(role="user", content=self.question)]

    def own(self) -> list[Message]:
        return [Message(role="assistant", channel="final", content=self.answer)]

    def row(self) -> dict[str, Any]:
        """Return the chat as a line of a file of chats."""
        messages = [{"role": "user", "content": self.question}, {"role": "assistant", "content": self.answer}]
        return {"messages": messages, "reasoning_effort": EFFORT}


class QuoteWriter:
    """Draws chats from one random source."""

    def __init__(self, codec: TextCodec, rng: Random) -> None:
        self.codec, self.rng = codec, rng
        words = _words(codec)
        self.keys, self.words = words[::3], [word for i, word in enumerate(words) if i % 3]
        self._overhead = len(render_conversation(codec, QuoteChat("", "", ()).given())) + 16

    def chat(self, least: int, most: int) -> QuoteChat:
        """Draw a chat of about as many tokens as a number between `least` and `most`, never more; shorter is likelier.

        The logarithm of the number is even. `least` has to be LEAST or more, where a repeated note surely fits.
        """
        assert LEAST <= least <= most
        while True:
            size = math.exp(self.rng.uniform(math.log(least), math.log(most)))
            if (chat := self._chat(int(size) - self._overhead)) is not None:
                return chat

    def mixed_chat(self, longest: int) -> QuoteChat:
        """Draw a chat of up to `longest` tokens, among many of up to SHORT."""
        return self.chat(LEAST, SHORT if self.rng.random() < SHORT_SHARE else longest)

    def _chat(self, budget: int) -> QuoteChat | None:
        """Return a chat of at most `budget` tokens beside headers, None if no note that is repeated fits."""
        notes: dict[str, str] = {}
        repeated: list[str] = []
        chance = REPEATED + REPEATED_SHORT / budget
        for key in self.rng.sample(self.keys, len(self.keys)):
            text = self._text()
            size = len(self.codec.encode(f"note{key}: {text}\n"))
            is_repeated = self.rng.random() < chance
            budget -= size + is_repeated * (size + len(self.codec.encode(f"{key},")) + 2)
            if budget < 0:
                break
            notes[key] = text
            repeated += [key] * is_repeated
        if not repeated:
            return None
        self.rng.shuffle(repeated)
        form = self.rng.randrange(len(FORMS))
        question, answer, sources, places = "Notes:", "", {}, {}
        for key, text in notes.items():
            question += f"\nnote{key}:"
            sources[key] = len(question)
            question += f" {text}"
        for key in repeated:
            head, tail = FORMS[form].format(key=key, text="\0").split(" \0")
            answer += ("\n" if answer else "") + head
            places[key] = len(answer)
            answer += f" {notes[key]}{tail}"
        question += f"\n\n{ASKED[form]}:{','.join(repeated)}."
        return QuoteChat(question, answer, tuple((sources[k], places[k], len(notes[k]) + 1) for k in repeated))

    def _text(self) -> str:
        rng = self.rng
        kind = rng.choices(("words", "numbers", "identifiers"), (60, 20, 20))[0]
        if kind == "words":
            return "".join(rng.choices(self.words, k=rng.randint(8, 24))).strip()
        if kind == "numbers":
            return " ".join(str(rng.randrange(10, 10 ** rng.randint(2, 4))) for _ in range(rng.randint(3, 6)))
        return " ".join(
            f"{''.join(rng.choices(ascii_lowercase, k=3))}_{''.join(rng.choices(ascii_lowercase + digits, k=4))}"
            for _ in range(rng.randint(2, 4))
        )


def _words(codec: TextCodec) -> list[str]:
    """Return the words that are tokens of their own, with the space before them."""
    found = []
    for token in range(min(codec.special.values())):
        text = codec.token_bytes(token)
        if re.fullmatch(rb" [a-z]{5,}", text):
            found.append(text.decode("ascii"))
    return found


def quotes_of(codec: TextCodec, chat: QuoteChat) -> list[Quote]:
    """Return where the texts of a chat stand among the tokens of prompt and answer."""
    system, user = chat.given()
    header, content, _ = message_ids(codec, user)
    in_question = _token_starts(codec, content)
    before = sum(map(len, message_ids(codec, system)[:2])) + 1 + len(header)
    prompt = len(render_conversation(codec, chat.given()))
    header, content, _ = message_ids(codec, chat.own()[0])
    opener = 1 + len(codec.encode("assistant"))  # in the prompt already
    in_answer = _token_starts(codec, content)
    after = prompt - opener + len(header)
    return [
        Quote(
            before + in_question.index(source),
            after + in_answer.index(answer),
            sum(answer <= start < answer + length for start in in_answer),
        )
        for source, answer, length in chat.spans
    ]


def _token_starts(codec: TextCodec, ids: list[int]) -> list[int]:
    starts, at = [], 0
    for token in ids:
        starts.append(at)
        at += len(codec.token_bytes(token))
    return starts


def bucket_of(tokens: int) -> int:
    """Return the number of the bucket of a context or distance; what is longer than the last belongs to it."""
    return max(i for i, low in enumerate(BUCKETS[:-1]) if low <= tokens)


def bucket_lengths(longest: int = LONG) -> Iterator[tuple[int, int]]:
    """Yield (least, most) tokens of chats whose whole answers have contexts within each bucket up to `longest`."""
    for low, high in pairwise(BUCKETS):
        if low < longest:
            yield max(LEAST, int(low * 1.3)), min(high, longest) - 32

"""Answers that begin well and end in a loop: units from one symbol to 400 characters, at random places; seeded."""

import inspect
import random
import re
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

from tests.base.support.benign_texts import BENIGN

__all__ = ["Looping", "chunks", "looping_answers"]

WORDS = re.findall(r"\b[a-z]{1,9}\b", inspect.getdoc(textwrap.TextWrapper) or "")
SYMBOLS = "!?@$%&GaZxe\u20ac\ufffd\u4e00\u0416\U0001f600"
MARKS = "!?;,.:-=_*()[]{}#+~^<>\u2500\u2588"
MAX_UNIT = 400


class Looping(NamedTuple):
    before: str  # a piece of a good answer
    unit: str
    is_in_fence: bool

    @property
    def text(self) -> str:
        return self.before + self.unit * (40_000 // len(self.unit) + 1)


def unit_of_words(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 6))) + " "


def unit_of_sentences(rng: random.Random) -> str:
    sentences = [" ".join(rng.choices(WORDS, k=rng.randint(4, 14))).capitalize() for _ in range(rng.randint(1, 5))]
    return (". ".join(sentences) + rng.choice([". ", ".\n", ".\n\n"]))[-MAX_UNIT:]


def unit_of_code(rng: random.Random) -> str:
    lines = inspect.getsource(textwrap).splitlines(keepends=True)
    start, number = rng.randrange(len(lines) - 12), rng.randint(2, 10)
    unit = "".join(lines[start : start + number])[-MAX_UNIT:]
    return unit if len(set(unit)) > 8 else unit_of_code(rng)


def unit_of_one_symbol(rng: random.Random) -> str:
    return rng.choice(SYMBOLS)


def unit_of_marks(rng: random.Random) -> str:
    return "".join(rng.choices(MARKS, k=rng.randint(2, 60)))


def unit_of_any_letters(rng: random.Random) -> str:
    return "".join(rng.choices("abcdefgh \n", k=rng.randint(2, MAX_UNIT)))


def unit_with_repetition_inside(rng: random.Random) -> str:
    return rng.choice(["=", "ab ", "no, "]) * rng.randint(20, 90) + rng.choice(WORDS) + "\n"


UNITS = (
    unit_of_words,
    unit_of_sentences,
    unit_of_code,
    unit_of_one_symbol,
    unit_of_marks,
    unit_of_any_letters,
    unit_with_repetition_inside,
)


def looping_answers(number: int, seed: int) -> Iterator[Looping]:
    """Yield `number` of them."""
    rng = random.Random(seed)
    texts = [answer.text for answer in BENIGN.values()]
    for i in range(number):
        good = rng.choice(texts)
        before = good[: rng.randrange(len(good))] + rng.choice(["", " ", "\n"])
        unit = UNITS[i % len(UNITS)](rng)
        if rng.random() < 0.3:  # it began before, and stopped
            before += unit * (rng.randrange(300) // len(unit)) + "\nNo, wait. "
        lines = before.split("\n")
        yield Looping(before, unit, sum(line.startswith("```") for line in lines) % 2 == 1)


def chunks(text: str, rng: random.Random, most: int) -> Iterator[str]:
    """Yield `text` in chunks of 1 to `most` code points."""
    at = 0
    while at < len(text):
        size = rng.randint(1, most)
        yield text[at : at + size]
        at += size

"""Long documents to ask about, put together from written sentences by a seed: 1,000 to 12,000 words."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

__all__ = ["NUM_DOCUMENTS", "documents"]

FILE = Path(__file__).parent / "data" / "documents.json"
NUM_DOCUMENTS = 40
MIN_WORDS, MAX_WORDS = 1_000, 12_000
MONTHS = ("January", "March", "April", "May", "June", "August", "September", "November")


class _Genre(Struct):
    kind: str
    sentences: list[str]
    questions: list[str]


class _Parts(Struct):
    people: list[str]
    places: list[str]
    things: list[str]
    genres: list[_Genre]


def documents(seed: int) -> list[str]:
    """Return the documents with their questions; lengths are spread evenly by their logarithm."""
    rng = random.Random(seed)
    lengths = [
        round(MIN_WORDS * (MAX_WORDS / MIN_WORDS) ** (number / (NUM_DOCUMENTS - 1))) for number in range(NUM_DOCUMENTS)
    ]
    rng.shuffle(lengths)
    genres = _parts().genres
    return [_document(genres[number % len(genres)], length, rng) for number, length in enumerate(lengths)]


@cache
def _parts() -> _Parts:
    return msgspec.json.decode(FILE.read_bytes(), type=_Parts)


def _document(genre: _Genre, num_words: int, rng: random.Random) -> str:
    paragraphs: list[str] = []
    count = 0
    while count < num_words:
        sentences = rng.sample(genre.sentences, rng.randint(2, 5))
        paragraphs.append(" ".join(_filled(sentence, rng) for sentence in sentences))
        count += len(paragraphs[-1].split())
    numbered = (f"{number}. {text}" for number, text in enumerate(paragraphs, 1))
    return "\n\n".join([genre.kind, *numbered, rng.choice(genre.questions)])


def _filled(sentence: str, rng: random.Random) -> str:
    parts = _parts()
    person, second = rng.sample(parts.people, 2)
    filled = sentence.format(
        person=person,
        person2=second,
        place=rng.choice(parts.places),
        thing=rng.choice(parts.things),
        n=rng.randint(11, 90),
        small=rng.randint(2, 9),
        money=f"{rng.randint(12, 990) * 100:,} euros",
        day=f"{rng.randint(1, 28)} {rng.choice(MONTHS)}",
        time=f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}",
        code=f"{rng.choice('ABCDEFHKLMPRT')}{rng.randint(100, 999)}-{rng.randint(1, 40)}",
    )
    return filled[0].upper() + filled[1:]

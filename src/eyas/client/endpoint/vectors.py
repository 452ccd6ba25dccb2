"""The canary's question to a server of embeddings, and what is wrong with the vectors that come back.

Wrong are vectors of another number or length, numbers that are not finite, nothing but zeros, and one vector for all
texts. Of the three texts two differ in one word, so the third must be further away. That holds for untrained networks,
too: 480 with random weights (two kinds of attention, three poolings, three tokenizers) all kept this order, while of
pairs that say the same in other words up to 33 of 40 broke it. Vectors of noise break it every second time.
"""

from __future__ import annotations

import json
from math import fsum, isfinite, sqrt
from typing import Any

__all__ = ["PATH", "TEXTS", "body", "fault"]

PATH = "/v1/embeddings"
TEXTS = (
    "The cat sleeps on the warm sofa.",
    "The cat sleeps on the soft sofa.",
    "Invoice 4711: 250 euros, due in March",
)
SAME = 1e-6  # of the cosine's distance from 1: fp32 has no more digits

Vector = list[float]


def body(model: str) -> dict[str, Any]:
    return {"model": model, "input": list(TEXTS)}


def fault(text: str) -> str | None:
    """Return what is wrong with the answer `text`, in words; None if nothing is."""
    try:
        entries = json.loads(text)["data"]
        vectors = [entry["embedding"] for entry in sorted(entries, key=lambda entry: entry["index"])]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return "no list of embeddings came back"
    if len(vectors) != len(TEXTS):
        return f"{len(vectors)} vectors came back for {len(TEXTS)} texts"
    if not all(isinstance(vector, list) and vector for vector in vectors):
        return "an embedding came back that is no list of numbers"
    if len({len(vector) for vector in vectors}) > 1:
        return f"vectors of different lengths came back: {', '.join(str(len(vector)) for vector in vectors)}"
    if not all(_is_finite(number) for vector in vectors for number in vector):
        return "a vector with numbers that are not finite came back"
    units = [_unit([float(number) for number in vector]) for vector in vectors]
    first, second, other = (unit or [] for unit in units)
    if not (first and second and other):
        return "a vector of zeros came back"
    related, unrelated = _dot(first, second), _dot(first, other)
    if unrelated >= 1 - SAME:
        return "the same vector came back for different texts"
    if related <= unrelated:
        return (
            f"vectors came back that do not tell texts apart: cosine {related:.3f} of two sentences with one word "
            f"changed, {unrelated:.3f} of two without a common one"
        )
    return None


def _is_finite(number: object) -> bool:
    try:
        return isinstance(number, int | float) and not isinstance(number, bool) and isfinite(number)
    except OverflowError:  # a whole number that no float holds
        return False


def _unit(vector: Vector) -> Vector | None:
    """Scale to length 1; None for nothing but zeros. By the largest number first: squares may be too large, or 0."""
    most = max(abs(number) for number in vector)
    if most == 0:
        return None
    scaled = [number / most for number in vector]
    length = sqrt(fsum(number * number for number in scaled))
    return [number / length for number in scaled]


def _dot(first: Vector, second: Vector) -> float:
    return fsum(a * b for a, b in zip(first, second, strict=True))

"""Features of a prompt for the classifier: words and signs, pairs of them, beginnings of words, how long it is.

The training script and the classifier share it. All of it is binary: a prompt has a feature or has not.
"""

from __future__ import annotations

import re

from eyas.router.routes.prompts import bounded

__all__ = ["MAX_READ", "features"]

MAX_READ = 800  # characters: bounds the time that a prompt takes
STEM = 4  # letters of a word's beginning
_FENCE = "```"
_NUMBER = "0"  # stands for every number
_digits = re.compile(r"\d+")
_token = re.compile(r"0|[^\W\d]+|[^\w\s]")
_unspaced = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff]+")  # Thai, Japanese, Chinese: one run is no word


def features(text: str) -> set[str]:
    """Return the features of a prompt. Words and pairs are themselves, others begin with a sign that words lack."""
    text = bounded(text, MAX_READ).lower()
    tokens = _token.findall(_digits.sub(_NUMBER, text))
    found = set(tokens)
    stems = [f"{token[:STEM]}*" for token in found if len(token) > STEM]
    found.update(map(" ".join, zip(["<", *tokens], [*tokens, ">"], strict=True)), stems)
    if not text.isascii():
        for run in _unspaced.findall(text):
            found.update([run[at : at + 2] for at in range(len(run) - 1)])
    found.add(f"#words {len(tokens).bit_length()}")
    found.add(f"#lines {text.count(chr(10)).bit_length()}")
    found.add(f"#numbers {tokens.count(_NUMBER).bit_length()}")
    if "_" in text:
        found.add("#underscore")
    if _FENCE in text:
        found.add("#code")
    return found

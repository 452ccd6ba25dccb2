"""Tells whether a request wants repetition: its prompt asks for it, or contains what the answer repeats."""

from __future__ import annotations

import re

__all__ = ["asks_for_repetition", "contains_repeated"]

# Words of prompts whose right answer repeats itself. A word too many only makes a loop be found later.
WORDS = re.compile(
    r"""(?ix)
    \b(?:
        repeat(?:s|ed|edly|ing)?(?!\ yourself) | repetitions? | over\ and\ over | again\ and\ again
        | without\ (?:end|stopping)
        | \d[\d,.]*\ *(?:x|times|copies|rows|lines|columns|zeros|zeroes|ones|characters|chars|bytes|words|emojis?)
        | (?:ten|twenty|fifty|hundred|thousand|million)\ (?:times|copies|rows|lines)
        | \d+\ *(?:x|by|\*|\u00d7)\ *\d+ | (?:hundred|thousand)s\ of\ times
        | zeros | zeroes | all\ ones | same\ (?:line|row|word|sentence|character|letter|text|value)s?
        | filled\ with | fill\ (?:it|them|all) | dummy\ (?:data|text|rows) | ruler | pattern | matrix | grid
        | ascii\ art | pixel\ art | (?:progress|loading)\ bars? | lyrics | song | chorus | refrain | chant | mantra
        | wiederhol\w* | \d+\ *mal | r\u00e9p\u00e8te\w* | r\u00e9p\u00e9t\w* | \d+\ *fois
        | repite\w* | repetir | \d+\ *veces | ripeti\w* | \d+\ *volte | \u043f\u043e\u0432\u0442\u043e\u0440\w*
    )\b
    | \u91cd\u590d | \u91cd\u8907 | \d+\ *[\u904d\u6b21\u56de] | \u7e70\u308a\u8fd4 | \ubc18\ubcf5
    """
)
MIN_SEEN = 24  # code points of a loop that must stand in a prompt for it to be a copy of the prompt


def asks_for_repetition(prompt: str) -> bool:
    """Return whether `prompt` asks for something that repeats itself."""
    return WORDS.search(prompt) is not None


def contains_repeated(prompt: str, unit: str) -> bool:
    """Return whether `unit` stands in `prompt` twice in a row, wherever the unit begins there."""
    copies = max(2, -(-MIN_SEEN // len(unit)))
    return unit * copies in prompt

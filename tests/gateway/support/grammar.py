"""Following a grammar token by token over the demo vocabulary, as the engine does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

import llguidance

from eyas.base.bundled import DEMO
from eyas.base.tokens.tokenizer import Tokenizer

CODEC = Tokenizer.load(DEMO)
ENDS = [CODEC.special[name] for name in ("<|return|>", "<|endoftext|>", "<|call|>")]
VOCABULARY = llguidance.LLTokenizer(str(DEMO / "tokenizer.json"), eos_token=ENDS)

FINAL = "<|channel|>final<|message|>"
THINK = "<|channel|>analysis<|message|>Hm, <b>.\n\U0001f600<|end|><|start|>assistant"
NOTE = "<|channel|>commentary<|message|>I look it up.<|end|><|start|>assistant"


def call(name: str, arguments: str) -> str:
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>"


def spelled(text: str) -> list[int]:
    """Ids of text in which special tokens are spelled out."""
    ids: list[int] = []
    for part in re.split(r"(<\|\w+\|>)", text):
        ids += [CODEC.special[part]] if part in CODEC.special else CODEC.encode(part)
    return ids


@lru_cache(maxsize=8)
def _compiled(grammar: str) -> llguidance.LLMatcher:
    matcher = llguidance.LLMatcher(VOCABULARY, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def start(grammar: str) -> llguidance.LLMatcher:
    return _compiled(grammar).deep_copy()


def allowed(matcher: llguidance.LLMatcher) -> list[int]:
    """Ids that the mask allows next."""
    bits = matcher.compute_bitmask()
    assert not matcher.is_error(), matcher.get_error()
    return list(_bits(bits))


def _bits(bits: bytes) -> Iterator[int]:
    for i, byte in enumerate(bits):
        while byte:
            low = byte & -byte
            yield i * 8 + low.bit_length() - 1
            byte ^= low


def is_accepted(grammar: str, text: str) -> bool:
    """Whether each token of `text` is in the mask before it, and the turn is over behind the last one only."""
    matcher, ids = start(grammar), spelled(text)
    for token in ids:
        if matcher.is_stopped() or token not in allowed(matcher):
            return False
        assert matcher.consume_token(token)
    return matcher.is_stopped()

"""A prompt of a run, its order among others, and what makes it miss a prefix cache."""

from __future__ import annotations

import random
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

__all__ = ["Message", "Prompt", "in_order", "salted", "shared_text"]

Message = dict[str, Any]
# Words of a text that all prompts begin with on purpose: no sentence, so that no model answers it.
WORDS = (
    "amber",
    "basin",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "harbor",
    "island",
    "juniper",
    "kernel",
    "lantern",
    "meadow",
    "nickel",
    "orchard",
    "pebble",
    "quartz",
    "ribbon",
    "saddle",
    "timber",
    "upland",
    "valley",
    "willow",
    "yarrow",
    "zephyr",
    "anchor",
)


class Prompt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Messages of a chat, or token ids for `/v1/completions`; `id` is set/number."""

    id: str
    category: str
    messages: tuple[Message, ...] = ()
    token_ids: tuple[int, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()


def in_order(prompts: Sequence[Prompt], seed: int) -> list[Prompt]:
    """Return the prompts in the order of a seed; categories alternate, so that each stretch has all of them."""
    groups: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.category, []).append(prompt)
    rng = random.Random(seed)
    placed: list[tuple[float, Prompt]] = []
    for group in groups.values():
        rng.shuffle(group)
        offset = rng.random()
        placed += [((place + offset) / len(group), prompt) for place, prompt in enumerate(group)]
    return [prompt for _, prompt in sorted(placed, key=lambda pair: pair[0])]


def salted(prompt: Prompt, *parts: object, shared: str = "") -> Prompt:
    """Return the prompt with a beginning of its own, made of `parts`: no cache has it unless all of them recur.

    `shared` comes ahead of that. Token ids get the salt in place of their first four.
    """
    digest = blake2b("\0".join(map(str, parts)).encode(), digest_size=8)
    if prompt.token_ids:
        rng = random.Random(digest.digest())
        head = rng.sample(prompt.token_ids, min(4, len(prompt.token_ids)))
        return replace(prompt, token_ids=(*head, *prompt.token_ids[len(head) :]))
    head_text = f"{shared}(request {digest.hexdigest()})\n"
    first, *rest = prompt.messages
    content = first.get("content") or ""
    is_parts = isinstance(content, list)
    content = [{"type": "text", "text": head_text}, *content] if is_parts else head_text + content
    return replace(prompt, messages=({**first, "content": content}, *rest))


def shared_text(num_words: int, seed: int) -> str:
    """Return the text that prompts share: `num_words` words and an end of line; nothing for 0."""
    rng = random.Random(seed)
    return " ".join(rng.choices(WORDS, k=num_words)) + "\n" if num_words else ""

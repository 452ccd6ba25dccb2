"""Finds the prompts that `--prompts` names: a set of our own, a file, a data set of the hub, random token ids."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from eyas.base.errors import UserError, nearest
from eyas.bench.endpoint.prompts.builtin import SETS, builtin
from eyas.bench.endpoint.prompts.files import read_file
from eyas.bench.endpoint.prompts.hub import read_hub
from eyas.bench.endpoint.prompts.prompt import Prompt

__all__ = ["find_prompts"]

NUM_RANDOM = 200
# gpt-oss: ids of plain text are below its special tokens
RANDOM_VOCABULARY = 199_998


def find_prompts(names: Sequence[str], *, seed: int = 0) -> list[Prompt]:
    """Return the prompts of all names. Raises UserError for a name that means none."""
    found = [prompt for name in names for prompt in _of(name, seed)]
    if len({bool(prompt.token_ids) for prompt in found}) > 1:
        raise UserError(
            "random token ids and chats are asked for in two different ways: measure them one after the other"
        )
    return found


def _of(name: str, seed: int) -> list[Prompt]:
    if name == "all":
        return [prompt for each in SETS for prompt in builtin(each, seed)]
    if name in SETS:
        return builtin(name, seed)
    kind, _, rest = name.partition(":")
    if kind == "random" and rest:
        return _random(name, rest, seed)
    if kind == "hub" and rest:
        return read_hub(rest)
    if Path(name).suffix in (".json", ".jsonl") or Path(name).is_file():
        return read_file(Path(name))
    known = ", ".join(SETS)
    raise UserError(
        f"no prompts are called '{name}'{nearest(name, SETS)}; name a set ({known}), a file of JSON lines or in "
        f"ShareGPT's format, hub:OWNER/NAME, or random:TOKENS"
    )


def _random(name: str, rest: str, seed: int) -> list[Prompt]:
    """Random ids say nothing of acceptance on text (vLLM issue 33497): they are for the speed of an engine alone."""
    length, _, vocabulary = rest.partition(":")
    try:
        num_tokens, size = int(length), int(vocabulary or RANDOM_VOCABULARY)
    except ValueError:
        num_tokens = size = 0
    if num_tokens < 1 or size < 2:
        raise UserError(f"'{name}' is not random:TOKENS or random:TOKENS:VOCABULARY, two numbers")
    rng = random.Random(seed)
    return [
        Prompt(id=f"random/{number}", category="random", token_ids=tuple(rng.choices(range(size), k=num_tokens)))
        for number in range(NUM_RANDOM)
    ]

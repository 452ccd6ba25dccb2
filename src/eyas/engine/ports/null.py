"""The engine of the model name 'null', which computes nothing and answers at once, to measure the HTTP side.

Every request gets a Harmony answer as long as `max_tokens` allows, with three drafts a round. The vocabulary is the
demo model's.
"""

from __future__ import annotations

import re
from itertools import cycle, islice

from eyas.base.bundled import DEMO, NULL_NAME
from eyas.base.errors import UserError
from eyas.base.harmony.rendering import stop_ids
from eyas.base.settings.config import EngineConfig
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.base.types import ModelInfo, Request
from eyas.engine.ports.stub import PAGE_SIZE, StubEngine

__all__ = ["load_null"]

DRAFTS_PER_ROUND = 3
CONTEXT = 32 * 1024
ANSWER_TOKENS = 64  # length of an answer without max_tokens
TEXT = " The quick brown fox jumps over the lazy dog, and nothing was computed for it."


def load_null(config: EngineConfig) -> StubEngine:
    """Return the engine for `null` or `null:MS`, with MS milliseconds a round. Raises UserError."""
    pause = config.model.partition(":")[2] or "0"
    if not re.fullmatch(r"\d{1,5}(\.\d+)?", pause):
        raise UserError(f"'{config.model}': '{pause}' is not a number of milliseconds; give e.g. null:20")
    tokenizer = Tokenizer.load(DEMO)
    special = tokenizer.special
    head = (special["<|channel|>"], *tokenizer.encode("final"), special["<|message|>"])
    words = tokenizer.encode(TEXT)

    def reply(request: Request, choice: int) -> list[int]:
        num_words = (request.params.max_tokens or ANSWER_TOKENS) - len(head) - 1
        return [*head, *islice(cycle(words), max(num_words, 0)), special["<|return|>"]]

    info = ModelInfo(
        name=NULL_NAME,
        context=CONTEXT if config.context == "auto" else config.context,
        vocab_size=tokenizer.vocab_size,
        eos_ids=stop_ids(tokenizer),
        drafter="eagle3",
        details={"device": f"none: nothing is computed, {pause} ms a round"},
        page_size=PAGE_SIZE,
        simulated=True,
    )
    return StubEngine(info, reply, drafts_per_round=DRAFTS_PER_ROUND, round_s=float(pause) / 1e3)

"""Limits on what a grammar may cost, shared by the HTTP side that checks it and the engine that follows it.

llguidance recurses along chains of rules and of `$ref`, and an overflown stack ends the process: 8 MB hold between
1000 and 2000 links. 512 MB, of which only what is touched is ever real, hold more links than a grammar of the largest
size can spell.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any, TypeVar

__all__ = ["MAX_ROW_ITEMS_SCHEMA", "parser_limits", "with_deep_stack"]

T = TypeVar("T")

STACK_BYTES = 512 << 20
# Of llguidance's lexer; at its own limits one regular expression of 30 characters held up a step for 2.7 s, with these
# for 50 ms. They bound no grammar's parser:
LEXER_LIMITS: Mapping[str, Any] = MappingProxyType(
    {"initial_lexer_fuel": 200_000, "step_lexer_fuel": 100_000, "max_lexer_states": 50_000}
)
# The time of an ambiguous grammar grows with the cube of the items in a row: a round of `s: s s | "a"` comes to 5 ms
# at 200 items, 55 ms at 400, 350 ms at 600. A schema takes 4 items for each optional property; the worst schema that
# was found takes 21 ms a round at 420.
MAX_ROW_ITEMS = 200
MAX_ROW_ITEMS_SCHEMA = 450

_starting = threading.Lock()


def parser_limits(grammar: str) -> dict[str, Any]:
    """Keywords of `llguidance.LLParserLimits`. A schema gets longer rows, but not within a user's own Lark grammar,
    which comes as one of several grammars."""
    is_schema = "%json" in grammar and not grammar.startswith('{"grammars"')
    return {**LEXER_LIMITS, "max_items_in_row": MAX_ROW_ITEMS_SCHEMA if is_schema else MAX_ROW_ITEMS}


def with_deep_stack(call: Callable[[], T]) -> T:
    """Run `call` to its end in a thread of its own with a stack of 512 MB; return or raise what it does."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    with _starting:  # the size is the process's
        before = threading.stack_size(STACK_BYTES)
        try:
            threading.Thread(target=run, name="eyas-deep-stack", daemon=True).start()
        finally:
            threading.stack_size(before)
    return future.result()

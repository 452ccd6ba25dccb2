"""Checks of a request that need the model's size alone, made before any engine sees it."""

from __future__ import annotations

from collections.abc import Iterable

from eyas.base.errors import Busy, InvalidRequest
from eyas.base.types import Request

__all__ = ["check_queue", "check_request"]


def check_request(request: Request, *, context: int, vocab_size: int) -> int:
    """The number of tokens that may be generated. Raises InvalidRequest for what no engine of that size can run."""
    params, length = request.params, len(request.prompt_ids)
    if length == 0:
        raise InvalidRequest("the prompt is empty", param="prompt")
    if length >= context:
        raise InvalidRequest(
            f"the prompt has {length} tokens, the context holds {context} and needs room for an answer",
            param="prompt",
        )
    if params.allowed_token_ids is not None and len(params.allowed_token_ids) > vocab_size:
        raise InvalidRequest(
            f"allowed_token_ids names {len(params.allowed_token_ids)} ids, the vocabulary has {vocab_size}",
            param="allowed_token_ids",
        )
    named: tuple[tuple[str, Iterable[int]], ...] = (
        ("prompt", request.prompt_ids),
        ("stop_token_ids", params.stop_token_ids),
        ("logit_bias", params.logit_bias),
        ("allowed_token_ids", params.allowed_token_ids or ()),
        ("bad_words", (token for word in params.bad_words for token in word)),
    )
    for name, ids in named:
        if not all(0 <= token < vocab_size for token in ids):
            raise InvalidRequest(f"{name} has a token id outside 0..{vocab_size - 1}", param=name)
    budget = context - length
    return budget if params.max_tokens is None else min(budget, params.max_tokens)


def check_queue(num_open: int, n: int, *, concurrency: int, max_queue: int) -> None:
    """Check that a request for `n` answers fits in the queue next to `num_open` unfinished ones; `concurrency` can run.

    Every answer counts: at most `max_queue` wait. Raises Busy; InvalidRequest if it would not fit even alone.
    """
    room = concurrency + max_queue
    if n > room:
        raise InvalidRequest(f"n must be at most {room}: this server takes no more answers at once, got {n}", param="n")
    if num_open + n > room:
        num_waiting = max(num_open - concurrency, 0)
        asked = f", and n asks for {n}" if n > 1 else ""
        raise Busy(f"the queue is full ({num_waiting} waiting, at most {max_queue}{asked}); try again later")

"""Renders a conversation to the token ids of an engine request."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise

from eyas.base.errors import TooManyTokens
from eyas.base.harmony.conversation import Conversation, to_harmony
from eyas.base.harmony.rendering import Message, render_conversation, visible_messages
from eyas.gateway.question.prompt_limit import CountingCodec, check_length, counting_codec, prompt_codec
from eyas.gateway.server.context import Context

__all__ = ["num_prompt_ids", "prompt_ids", "render_newest"]


def prompt_ids(
    context: Context, conversation: Conversation, *, param: str, newest: int | None = None
) -> tuple[int, ...]:
    """Return the prompt for the next answer; the oldest turns are left out where it has more than `newest` tokens.

    Raises InvalidRequest, naming `param`, if it leaves no room for an answer.
    """
    head, rest = to_harmony(conversation)
    if newest is None:
        codec = prompt_codec(context, param, conversation.tools)
        ids = render_conversation(codec, [*head, *rest], drop_analysis=not context.options.keep_reasoning)
    else:
        ids = render_newest(context, head, rest, limit=newest, param=param)
    check_length(context, len(ids), param)
    return tuple(ids)


def num_prompt_ids(context: Context, conversation: Conversation, *, param: str) -> int:
    """Return how many ids the prompt has, also where it is longer than the context. Raises InvalidRequest."""
    head, rest = to_harmony(conversation)
    codec = counting_codec(context, param)
    return len(render_conversation(codec, [*head, *rest], drop_analysis=not context.options.keep_reasoning))


def render_newest(
    context: Context, head: Sequence[Message], conversation: Sequence[Message], *, limit: int, param: str
) -> list[int]:
    """Return the prompt's ids without the oldest turns, so that at most `limit` ids remain.

    Only whole turns are dropped, each from a user's message to the next; `head` and the last turn always stay. Turns
    are rendered only until the limit is reached. Raises InvalidRequest naming `param`.
    """
    rest = list(conversation)
    if not context.options.keep_reasoning:
        rest = visible_messages([*head, *conversation], prompted=True)[len(head) :]
    starts = [0, *(at for at, message in enumerate(rest) if at and message.role == "user"), len(rest)]
    turns = [rest[at:end] for at, end in pairwise(starts)]
    codec = prompt_codec(context, param)
    ids = render_conversation(codec, head, purpose="history")
    kept = [render_conversation(codec, turns.pop(), drop_analysis=False)]
    num_ids = len(ids) + len(kept[0])
    while turns:
        older = CountingCodec(
            context.codec, limit - num_ids, error=lambda number: TooManyTokens(number, limit), param=param
        )
        try:
            kept.append(render_conversation(older, turns.pop(), purpose="history", drop_analysis=False))
        except TooManyTokens:
            break
        num_ids += len(kept[-1])
        if num_ids > limit:
            kept.pop()
            break
    return [*ids, *chain.from_iterable(reversed(kept))]

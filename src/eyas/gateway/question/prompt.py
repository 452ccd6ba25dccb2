"""Renders a conversation to the token ids of an engine request."""

from __future__ import annotations

from eyas.base.conversation import Conversation, to_harmony
from eyas.base.harmony.rendering import render_conversation
from eyas.gateway.question.prompt_limit import CountingCodec, check_length, counting_codec, prompt_codec
from eyas.gateway.server.context import Context

__all__ = ["num_prompt_ids", "prompt_ids"]


def prompt_ids(context: Context, conversation: Conversation, *, param: str) -> tuple[int, ...]:
    """Return the prompt for the next answer. Raises InvalidRequest, naming `param`, if it leaves no room for one."""
    ids = _rendered(prompt_codec(context, param, conversation.tools), conversation)
    check_length(context, len(ids), param)
    return tuple(ids)


def num_prompt_ids(context: Context, conversation: Conversation, *, param: str) -> int:
    """Return how many ids the prompt has, also where it is longer than the context. Raises InvalidRequest."""
    return len(_rendered(counting_codec(context, param), conversation))


def _rendered(codec: CountingCodec, conversation: Conversation) -> list[int]:
    head, rest = to_harmony(conversation)
    return render_conversation(codec, [*head, *rest])

"""Renders a conversation to the token ids of an engine request."""

from __future__ import annotations

from eyas.base.conversation import Conversation, to_harmony
from eyas.base.harmony.rendering import render_conversation
from eyas.gateway.question.prompt_limit import check_length, prompt_codec
from eyas.gateway.server.context import Context

__all__ = ["prompt_ids"]


def prompt_ids(context: Context, conversation: Conversation, *, param: str) -> tuple[int, ...]:
    """Return the prompt for the next answer. Raises InvalidRequest, naming `param`, if it leaves no room for one."""
    head, rest = to_harmony(conversation)
    ids = render_conversation(prompt_codec(context, param, conversation.tools), [*head, *rest])
    check_length(context, len(ids), param)
    return tuple(ids)

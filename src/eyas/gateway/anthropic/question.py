"""A body as a Question."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence

from eyas.base.harmony.conversation import Conversation, ToolsEntry
from eyas.base.harmony.rendering import Effort as HarmonyEffort
from eyas.base.harmony.tools import ResponseFormat, check_schema
from eyas.base.types import SamplingParams
from eyas.gateway.anthropic.body import CountBody, Effort, MessagesBody
from eyas.gateway.anthropic.history import History
from eyas.gateway.anthropic.system import system_text
from eyas.gateway.anthropic.tools import SCHEMAS, choice_of, declared_tools, offer_of
from eyas.gateway.grammar.checker import JsonSchema
from eyas.gateway.question.question import FieldNames, Question
from eyas.gateway.question.sampling import checked_stops, sampling_params

__all__ = ["question_of"]

SCHEMA = "output_config.format.schema"
FIELDS = FieldNames(prompt="messages", schemas=SCHEMAS, answer_format=SCHEMA)
SAMPLED = ("temperature", "top_p", "top_k", "min_p", "seed")
FORMAT_NAME = "answer"  # the API has no name for it, and Harmony wants one
EFFORTS: dict[Effort, HarmonyEffort] = {
    "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"
}  # fmt: skip


def question_of(
    body: CountBody, request_id: str, *, today: datetime.date, defaults: Mapping[str, float] | None = None
) -> Question:
    """Return what a body asks; one without sampling fields is only counted. Raises InvalidRequest naming the field.

    `defaults` are sampling fields of the model, for those that the body leaves out.
    """
    tools = declared_tools(body.tools or ())
    choice = choice_of(body.tool_choice)
    history = History(tools)
    history.read(body.messages)
    offer = offer_of(tools, history.loaded.values(), choice)
    wanted = None if body.output_config is None else body.output_config.format
    if wanted is not None:
        check_schema(wanted.schema, param=SCHEMA)
    is_shown = choice != "none"
    conversation = Conversation(
        entries=[entry for entry in history.entries if is_shown or not isinstance(entry, ToolsEntry)],
        instructions=None if body.system is None else system_text(body.system),
        tools=tools.first if is_shown else (),
        answer_format=None if wanted is None else ResponseFormat(name=FORMAT_NAME, schema=wanted.schema),
        effort=_effort(body),
        date=today.isoformat(),
    )
    stops: Sequence[str] = (body.stop_sequences or ()) if isinstance(body, MessagesBody) else ()
    return Question(
        request_id=request_id,
        conversation=conversation,
        offer=offer,
        params=_params(body, defaults or {}) if isinstance(body, MessagesBody) else SamplingParams(),
        fields=FIELDS,
        answer_format=None if wanted is None else JsonSchema(wanted.schema),
        stops=checked_stops(stops, param="stop_sequences"),
    )


def _effort(body: CountBody) -> HarmonyEffort:
    """Return the effort; gpt-oss always reasons, so that `disabled` is the least of it."""
    if body.thinking is not None and body.thinking.type == "disabled":
        return "low"
    asked = None if body.output_config is None else body.output_config.effort
    return "medium" if asked is None else EFFORTS[asked]


def _params(body: MessagesBody, defaults: Mapping[str, float]) -> SamplingParams:
    given = {name: getattr(body, name) for name in SAMPLED}
    return sampling_params(given, defaults, max_tokens=body.max_tokens)

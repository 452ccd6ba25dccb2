"""vLLM's `structured_outputs`: an answer bound to a schema, a regular expression, choices or a grammar."""

from __future__ import annotations

from typing import Any

from eyas.base.errors import InvalidRequest
from eyas.base.harmony.tools import check_schema
from eyas.gateway.grammar.checker import AnswerFormat, Choice, JsonObject, JsonSchema, Lark, Regex
from eyas.gateway.http.body import Fields

__all__ = ["StructuredOutputs", "structured_format"]


MAX_CHARS = 100_000  # of a grammar, of a pattern, of all choices together


class StructuredOutputs(Fields, kw_only=True):
    """vLLM's constraints on an answer; exactly one of them is given."""

    json: dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


def structured_format(fields: StructuredOutputs) -> tuple[AnswerFormat, str]:
    """Return the format, and the name of the field that has it. Raises InvalidRequest."""
    given = [name for name in fields.__struct_fields__ if getattr(fields, name) not in (None, False)]
    if len(given) != 1:
        raise InvalidRequest(
            f"structured_outputs takes exactly one of {', '.join(fields.__struct_fields__)}", param="structured_outputs"
        )
    where = f"structured_outputs.{given[0]}"
    if fields.json is not None:
        check_schema(fields.json, param=where)
        return JsonSchema(fields.json), where
    texts = fields.choice or [fields.regex or fields.grammar or ""]
    if sum(map(len, texts)) > MAX_CHARS:  # before a grammar is made of them
        raise InvalidRequest(f"{where} has more than {MAX_CHARS} characters", param=where)
    if fields.regex is not None:
        return Regex(fields.regex), where
    if fields.choice is not None:
        return Choice(tuple(fields.choice)), where
    return (JsonObject() if fields.grammar is None else Lark(fields.grammar)), where

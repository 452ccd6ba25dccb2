"""Decides which recorded tool results a new answer may use: those of calls with its name and its arguments."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Call", "RecordedCall", "Recording", "read_call", "same_json"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A function call. `arguments` is a JSON text, whatever its validity, or already a JSON value."""

    id: str | None
    name: str
    arguments: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedCall:
    """A call and the content of the tool message that answered it; None if the chat has none."""

    call: Call
    result: Any


class Recording:
    """The calls that one turn of a recorded chat still offers.

    Results of a group of parallel calls may be used in any order and by several answers (gpt-oss makes one call an
    answer); those of the next group once all of it are used, since they were recorded with its results known.
    """

    def __init__(self, groups: Sequence[Sequence[RecordedCall]]) -> None:
        self._groups = [list(group) for group in groups]

    def results(self, calls: Sequence[Call]) -> list[Any] | None:
        """Return the recorded result of each call of an answer and mark it used, or None unless every call has one."""
        left = list(self._groups[0]) if self._groups else []
        found = []
        for call in calls:
            match = next((number for number, recorded in enumerate(left) if _is_same(call, recorded)), None)
            if match is None:
                return None
            found.append(left.pop(match).result)
        self._groups[:1] = [left] if left else []
        return found


def read_call(value: Any) -> Call | None:
    """Return an entry of `tool_calls` of an OpenAI message, or None if it is none."""
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return None
    arguments = function.get("arguments")
    if not isinstance(arguments, str | dict):
        return None
    call_id = value.get("id")
    return Call(id=call_id if isinstance(call_id, str) else None, name=function["name"], arguments=arguments)


def same_json(one: Any, other: Any) -> bool:
    """Compare JSON values: the order of keys does not count, 1 equals 1.0, and true is no number."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)


def _is_same(call: Call, recorded: RecordedCall) -> bool:
    if recorded.result is None or call.name != recorded.call.name:
        return False
    if call.arguments == recorded.call.arguments and isinstance(call.arguments, str):
        return True
    try:
        return same_json(_value(call.arguments), _value(recorded.call.arguments))
    except (ValueError, RecursionError):  # no JSON: equal as texts alone
        return False


def _value(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    return json.loads(arguments) if arguments.strip() else {}  # some servers write no arguments as no text

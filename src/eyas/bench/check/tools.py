"""Checks of tools: a call, its result and the answer; and the four values of `tool_choice`."""

from __future__ import annotations

import json
import secrets
from typing import Any

from eyas.bench.check.asking import Answer, Endpoint
from eyas.bench.check.finding import Refused, Request, Result, broken, ok, unclear
from eyas.client.call import Call

__all__ = ["tool_choice", "tools"]

QUESTION = "Which number does the amber box have? Look it up with the tool."
PAINT = "Please paint the wall green with the tool."
MORE = 200  # words of a longer result; each is a token at least
TEXT_MARKS = ("<|channel|>", "<tool_call>", "to=functions.", "[TOOL_CALLS]", "<function=")


def _tool(name: str, does: str, argument: str, values: list[str]) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string", "enum": values}},
        "required": [argument],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": does, "parameters": parameters}}


LOOK_UP = _tool("look_up_box", "Looks up the number of a box.", "box", ["amber", "teal"])
PAINT_WALL = _tool("paint_wall", "Paints the wall in a colour.", "colour", ["red", "green"])
RING_BELL = _tool("ring_bell", "Rings the bell of a tower.", "tower", ["north", "south"])


async def tools(endpoint: Endpoint) -> Result:
    """Offer a tool, send the result of its call, and look for the result in the answer.

    A model that does not call by itself is made to, by `tool_choice`. Whether the result reaches a model that does not
    repeat it is seen from the prompt's tokens.
    """
    answer = await endpoint.written(QUESTION, tools=[LOOK_UP], temperature=0)
    if not answer.calls and not _has_call_in_text(answer.content):
        answer = await endpoint.written(QUESTION, tools=[LOOK_UP], tool_choice="required", temperature=0)
    if not answer.calls:
        if _has_call_in_text(answer.content):
            return broken(f"the call comes as text: {_shown(answer.content)}", answer.request)
        cut = ", not within its tokens either where it must" if answer.finish_reason == "length" else ""
        return unclear(f"this model calls no tool{cut}")
    if (wrong := _wrong_call(answer, LOOK_UP)) is not None:
        return broken(wrong, answer.request)
    number = str(10_000 + secrets.randbelow(90_000))
    final = await endpoint.written(_with_result(answer, number), tools=[LOOK_UP], temperature=0)
    if number in final.text.replace(",", ""):
        return ok("call, result, and an answer that uses it")
    return await _is_result_read(endpoint, answer, number)


async def _is_result_read(endpoint: Endpoint, answer: Answer, number: str) -> Result:
    counts = []
    for result in (number, " ".join([number] * MORE)):
        asked = await endpoint.chat(_with_result(answer, result), tools=[LOOK_UP], max_tokens=16)
        counts.append(asked.usage.prompt_tokens if asked.usage else None)
    short, long = counts
    if short is None or long is None:
        return unclear("a call as it was asked for; this model does not repeat the result, and there is no usage")
    if long - short < MORE // 2:
        return broken(f"the tool's result does not reach the model: {MORE} words more are {long - short} tokens more")
    return ok("call and result (which this model reads, and does not repeat)")


def _with_result(answer: Answer, result: str) -> list[dict[str, Any]]:
    call = answer.calls[0]
    function = {"name": call.name, "arguments": call.arguments}
    called = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call.id, "type": "function", "function": function}],
    }
    return [{"role": "user", "content": QUESTION}, called, {"role": "tool", "tool_call_id": call.id, "content": result}]


def _wrong_call(answer: Answer, tool: dict[str, Any]) -> str | None:
    """Return what is wrong with an answer that calls `tool`."""
    call, function = answer.calls[0], tool["function"]
    if not call.id:
        return "the call has no id"
    if call.name != function["name"]:
        return f"a tool is called that was not offered: {call.name[:60]!r}"
    if (given := _arguments(call)) is None:
        return f"the call's arguments are not a JSON object: {_shown(call.arguments)}"
    ((name, schema),) = function["parameters"]["properties"].items()
    if set(given) != {name} or given[name] not in schema["enum"]:
        return f"the call's arguments do not fit the tool: {_shown(call.arguments)}"
    if any(mark in answer.content for mark in TEXT_MARKS):
        return f"the call's syntax is in the text as well: {_shown(answer.content)}"
    if answer.finish_reason not in ("tool_calls", "stop"):  # llama-server and SGLang say `tool_calls`, forced or not
        return f"an answer with a call ends with {answer.finish_reason!r}, not 'tool_calls'"
    return None


def _arguments(call: Call) -> dict[str, Any] | None:
    try:
        given = json.loads(call.arguments)
    except ValueError:
        return None
    return given if isinstance(given, dict) else None


def _has_call_in_text(content: str) -> bool:
    """Return whether a call of LOOK_UP stands in the text: in some model's syntax, or as JSON."""
    return any(mark in content for mark in TEXT_MARKS) or ("look_up_box" in content and '"box"' in content)


async def tool_choice(endpoint: Endpoint) -> Result:
    """Ask for `required`, for the tool that the question does not ask for, and for none."""
    offered = [PAINT_WALL, RING_BELL]
    named = {"type": "function", "function": {"name": "ring_bell"}}
    ignored: dict[str, Request] = {}
    unknown, cut = [], []
    for name, choice in (("required", "required"), ("a tool by name", named), ("none", "none")):
        try:
            answer = await endpoint.written(PAINT, tools=offered, tool_choice=choice, temperature=0)
        except Refused:
            unknown.append(name)
            continue
        called = [call.name for call in answer.calls]
        if not called and answer.finish_reason == "length" and name != "none":
            cut.append(name)
        elif {"required": not called, "none": bool(called)}.get(name, called != ["ring_bell"]):
            ignored[name] = answer.request
    if ignored:
        return broken(f"ignored: {', '.join(ignored)}", next(iter(ignored.values())))
    if cut:
        return unclear(f"no call within its tokens: {', '.join(cut)}")
    refused = f"; refused: {', '.join(unknown)}" if unknown else ""
    return ok(f"required, a tool by name and none are kept to{refused}" if not refused else f"kept to{refused}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:80]}...")

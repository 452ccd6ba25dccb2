"""Checks of the form of answers: reasoning apart from content, JSON by a schema, log-probabilities."""

from __future__ import annotations

import json
import math
from typing import Any

from eyas.bench.check.asking import Answer, Endpoint
from eyas.bench.check.finding import Result, broken, missing, ok, unclear

__all__ = ["json_schema", "logprobs", "reasoning"]

# Syntax of templates: where it stands in the content, no parser has taken the answer apart.
MARKS = ("<|channel|>", "<|start|>", "<|message|>", "<|end|>", "<|return|>", "<think>", "</think>", "assistantfinal")
QUESTION = "Which is larger, 9.11 or 9.9? Think about it first."
COLOURS = ["ochre-9", "indigo-4"]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"shade": {"type": "string", "enum": COLOURS}, "is_dark": {"type": "boolean"}},
    "required": ["shade", "is_dark"],
    "additionalProperties": False,
}
TOP = 3
ROUNDING = 1e-3


async def reasoning(endpoint: Endpoint) -> Result:
    """Ask what wants thought, whole and streamed, and look for reasoning and for its syntax in the content."""
    whole = await endpoint.written(QUESTION)
    streamed = (await endpoint.stream(QUESTION, max_tokens=1024)).answer
    for answer, form in ((whole, "an answer"), (streamed, "a stream")):
        found = next((mark for mark in MARKS if mark in answer.content), None)
        if found is not None:
            return broken(f"the content of {form} has {found!r} in it: reasoning is not taken apart", answer.request)
    if bool(whole.reasoning) != bool(streamed.reasoning) and whole.content and streamed.content:
        form = "whole answers alone" if whole.reasoning else "streams alone"
        return broken(f"reasoning comes apart in {form}", streamed.request)
    if whole.reasoning:
        names = [name for name in ("reasoning_content", "reasoning", "thinking") if whole.message.get(name)]
        return ok(f"comes as {' and '.join(names)}")
    if whole.usage is not None and whole.usage.reasoning_tokens:
        return ok(f"is kept back: {whole.usage.reasoning_tokens} tokens of it are counted")
    if not whole.content.strip():
        return unclear("neither reasoning nor content came within its tokens")
    return missing("no reasoning comes: the model has none, or the server drops it")


async def json_schema(endpoint: Endpoint) -> Result:
    """Ask for a schema that no answer to the question would meet by chance."""
    form = {"type": "json_schema", "json_schema": {"name": "paint", "strict": True, "schema": SCHEMA}}
    answer = await endpoint.written("What is the weather like today?", response_format=form)
    if not _fits(answer.content):
        if answer.finish_reason == "length":
            return unclear("the answer is not complete within its tokens")
        return broken(f"the schema is ignored: {answer.content[:80]!r} came", answer.request)
    return ok("an answer follows a schema")


def _fits(text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    is_object = isinstance(value, dict) and set(value) == set(SCHEMA["properties"])
    return is_object and value["shade"] in COLOURS and isinstance(value["is_dark"], bool)


async def logprobs(endpoint: Endpoint) -> Result:
    answer = await endpoint.written("Say hello.", temperature=0, logprobs=True, top_logprobs=TOP)
    if not answer.logprobs:
        return missing("no log-probabilities come, though they are asked for")
    wrong = _wrong_logprobs(answer)
    return broken(wrong, answer.request) if wrong else ok(f"of {len(answer.logprobs)} tokens, and of rivals")


def _wrong_logprobs(answer: Answer) -> str | None:
    for entry in answer.logprobs or ():
        top = entry.get("top_logprobs")
        own = entry.get("logprob")
        if not isinstance(own, int | float) or not isinstance(entry.get("token"), str) or not isinstance(top, list):
            return "an entry lacks token, logprob or top_logprobs"
        said = [item.get("logprob") if isinstance(item, dict) else None for item in top]
        values = [value for value in said if isinstance(value, int | float)]
        if len(values) < len(said):
            return "an entry of top_logprobs has no logprob"
        if own > ROUNDING or any(value > ROUNDING for value in values) or sum(map(math.exp, values)) > 1 + ROUNDING:
            return f"a token's log-probabilities are none: {own:.3f}, and {values} of the listed ones"
        if values and own < max(values) - ROUNDING:
            return "a greedy answer has a token that is not the most likely one"
    joined = "".join(entry["token"] for entry in answer.logprobs or ())
    if answer.content and answer.content.strip() not in joined:
        return "the tokens of the log-probabilities do not add up to the content"
    return None

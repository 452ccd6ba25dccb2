"""Checks of the plain chat: models, an answer, a stream, token counts, where an answer ends, errors."""

from __future__ import annotations

import json
import re

from eyas.base.serving.failures import error_message
from eyas.bench.check.asking import CHAT, MODELS, Answer, Endpoint, Reply
from eyas.bench.check.finding import Refused, Result, broken, missing, ok, unclear
from eyas.client.pieces import Usage

__all__ = ["chat", "errors", "max_tokens", "models", "stop", "stream", "stream_usage", "usage"]

QUESTION = "Name the four seasons of the year."
EXPLAIN = "Explain in three sentences what a lighthouse is."
LONG = "Count from 1 to 300, one number a line."
REASONS = ("stop", "length", "tool_calls", "content_filter", "function_call")
SHORT = 5  # tokens
WORD = re.compile(r"[A-Za-z]{3,}")
NOT_JSON = '{"messages": ['


async def models(endpoint: Endpoint) -> Result:
    reply = await endpoint.get(MODELS)
    entries = reply.value.get("data") if isinstance(reply.value, dict) else None
    if reply.status != 200 or not isinstance(entries, list):
        return broken(f"no list of models came back (HTTP status {reply.status})")
    names = [entry.get("id") for entry in entries if isinstance(entry, dict)]
    if endpoint.model not in names:
        return broken(f"'{endpoint.model}' answers, but is not among its {len(names)} models")
    context = f", context {endpoint.context:,} tokens" if endpoint.context else ", context not said"
    return ok(f"{len(names)} listed{context}")


async def chat(endpoint: Endpoint) -> Result:
    answer = await endpoint.written(QUESTION)
    if answer.message.get("role") != "assistant":
        return broken(f"the role of the answer is {answer.message.get('role')!r}, not 'assistant'", answer.request)
    if answer.finish_reason not in REASONS:
        return broken(f"finish_reason is {answer.finish_reason!r}, none of {', '.join(REASONS)}", answer.request)
    if not answer.text.strip():
        return broken("an empty answer came back", answer.request)
    return ok(f"answers, and ends with '{answer.finish_reason}'")


async def stream(endpoint: Endpoint) -> Result:
    found = await endpoint.stream(QUESTION, max_tokens=256)
    answer = found.answer
    if not answer.text.strip():
        return broken("a stream without a word of text came back")
    if answer.finish_reason is None:
        return broken("no chunk of the stream has a finish_reason")
    if answer.finish_reason not in REASONS:
        return broken(f"finish_reason is {answer.finish_reason!r}, none of {', '.join(REASONS)}")
    if found.ended != "[DONE]":
        return broken(f"the stream ends by {found.ended}, without [DONE]")
    if len(found.times_s) == 1 and len(answer.text) > 100:
        return broken("the whole answer came as one chunk: nothing is streamed")
    return ok(f"{len(found.times_s)} chunks of text, then [DONE]")


async def usage(endpoint: Endpoint) -> Result:
    answer = await endpoint.chat(QUESTION, max_tokens=64)
    if answer.usage is None:
        return missing("the answer does not count its tokens (no usage)")
    return _counted(answer.usage) or ok(_counts(answer.usage))


async def stream_usage(endpoint: Endpoint) -> Result:
    """Ask for usage in a stream, and compare what it counts of the prompt with the whole answer's count."""
    options = {"include_usage": True}
    found = (await endpoint.stream(QUESTION, max_tokens=64, stream_options=options)).answer
    if found.usage is None:
        return missing("the stream does not count its tokens, though stream_options.include_usage asks for it")
    if (wrong := _counted(found.usage)) is not None:
        return wrong
    whole = (await endpoint.chat(QUESTION, max_tokens=64)).usage
    if whole is not None and whole.prompt_tokens != found.usage.prompt_tokens:
        text = f"{found.usage.prompt_tokens} prompt tokens in the stream, {whole.prompt_tokens} in a whole answer"
        return broken(text, found.request)
    return ok(_counts(found.usage))


def _counted(said: Usage) -> Result | None:
    """Return what is wrong with the counts of an answer to a prompt of some words."""
    if said.prompt_tokens < 1 or said.completion_tokens < 1:
        return broken(f"usage counts {_counts(said)}, though there was a prompt and an answer")
    if said.total_tokens != said.prompt_tokens + said.completion_tokens:
        return broken(f"usage counts {_counts(said)}, and {said.total_tokens} in total")
    return None


def _counts(said: Usage) -> str:
    return f"{said.prompt_tokens} tokens of prompt, {said.completion_tokens} of answer"


async def max_tokens(endpoint: Endpoint) -> Result:
    """Ask for SHORT tokens of a long answer, by both names of the limit."""
    names = []
    for name in ("max_tokens", "max_completion_tokens"):
        try:
            answer = await endpoint.chat(LONG, **{name: SHORT})
        except Refused:
            if name == "max_tokens":
                raise
            continue  # an older API
        count = answer.usage.completion_tokens if answer.usage else None
        if (count or 0) > SHORT or len(answer.text) > 100 * SHORT:
            return broken(f"{name} is ignored: {_size(answer)} came, {SHORT} tokens were asked for", answer.request)
        if answer.finish_reason not in ("length", "stop"):
            return broken(f"the answer is cut at {SHORT} tokens, and ends with {answer.finish_reason!r}")
        names.append(name)
    return ok(f"{' and '.join(names)} cut an answer")


def _size(answer: Answer) -> str:
    return f"{answer.usage.completion_tokens} tokens" if answer.usage else f"{len(answer.text)} characters"


async def stop(endpoint: Endpoint) -> Result:
    """Ask twice the same, greedily; the second time with a word of the first answer as the stop string.

    So it needs no model that obeys. The word is one that its reasoning lacks: some engines look there as well.
    """
    first = await endpoint.written(EXPLAIN, temperature=0)
    word = _inner_word(first)
    if word is None:
        return unclear("the answer has no word to stop at")
    second = await endpoint.written(EXPLAIN, temperature=0, stop=[word])
    if word in second.content:
        return broken(f"stop is ignored: the answer goes on past {word!r}", second.request)
    if second.finish_reason != "stop":
        return broken(f"the answer ends before {word!r} with {second.finish_reason!r}, not 'stop'", second.request)
    if not first.content.startswith(second.content.rstrip()):
        return unclear("two greedy answers differ before the stop string")
    return ok(f"an answer ends before {word!r}")


def _inner_word(answer: Answer) -> str | None:
    """Return a word of the content's middle that occurs neither earlier nor in the reasoning."""
    words = list(WORD.finditer(answer.content))
    for match in words[max(1, len(words) // 3) : -1]:
        if match[0] not in answer.content[: match.start()] and match[0] not in answer.reasoning:
            return match[0]
    return None


async def errors(endpoint: Endpoint) -> Result:
    """Send what is no request: each must be answered with a 4xx and an error as OpenAI writes it."""
    bad = {
        "a body that is not JSON": NOT_JSON,
        "a request without messages": json.dumps({"model": endpoint.model}),
        "messages that are a number": json.dumps({"model": endpoint.model, "messages": 7}),
    }
    for what, body in bad.items():
        reply = await endpoint.send("POST", CHAT, body)
        if (wrong := _wrong_error(reply)) is not None:
            return broken(f"{what} is answered with {wrong}")
    reply = await endpoint.send("POST", CHAT, endpoint.body("Hello", max_tokens=1) | {"model": "no-such-model"})
    is_taken = ", but any name of a model is taken" if reply.status == 200 else ""
    if not is_taken and (wrong := _wrong_error(reply)) is not None:
        return broken(f"a model that is not there is answered with {wrong}")
    return ok(f"4xx, with a message in `error`{is_taken}")


def _wrong_error(reply: Reply) -> str | None:
    if not 400 <= reply.status < 500:
        return f"HTTP status {reply.status}, not 4xx"
    if reply.value is None:
        return f"{reply.content_type or 'text'}, not JSON"
    error = reply.value.get("error") if isinstance(reply.value, dict) else None
    if error_message(reply.value) is None or not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return "JSON without a message in `error`"
    return None

"""What the tests of `/v1/messages` share: a strict reader of streams, random histories, random answers."""

import json
import random
from functools import cache

import httpx
from pydantic import TypeAdapter
from tests.gateway.support.responses import analysis, call, final, preamble

from eyas.base.harmony.rendering import Message

PATH = "/v1/messages"
USER = {"role": "user", "content": "Hi"}
WEATHER = {
    "name": "get_weather",
    "description": "Weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CLOCK = {"name": "clock", "description": "The time.", "input_schema": {"type": "object", "properties": {}}}
BORDERS = ["", " ", "\n", "<|end|><|start|>system", "\u00fc \U0001f985", "Error: no", '{"a": [1, 2.5, null]}']
EMPTY = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}
DELTAS = {
    "text": {"text_delta": "text"},
    "thinking": {"thinking_delta": "thinking", "signature_delta": "signature"},
    "tool_use": {"input_json_delta": "partial_json"},
}


def post(server, path: str = PATH, *, headers=None, **fields) -> httpx.Response:
    body = {"model": "claude-any", "messages": [USER]} | ({"max_tokens": 500} if path == PATH else {}) | fields
    return httpx.post(f"{server.url}{path}", json=body, headers=headers, timeout=20)


@cache
def types_of_sdk() -> tuple[TypeAdapter, TypeAdapter]:
    """A message and an event of a stream. Imported late: that takes a second in each worker that collects the tests."""
    from anthropic import types

    return TypeAdapter(types.Message), TypeAdapter(types.RawMessageStreamEvent)


def whole(server, **fields) -> dict:
    answer = post(server, **fields)
    assert answer.status_code == 200, answer.text
    types_of_sdk()[0].validate_python(answer.json())
    return answer.json()


def records(text: str) -> list[dict]:
    """Return the data of each event of a stream; pings included."""
    assert text.endswith("\n\n") and "[DONE]" not in text
    events = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def streamed(server, **fields) -> dict:
    """Return the message of a stream, every event of which is checked."""
    answer = post(server, stream=True, **fields)
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    return folded(records(answer.text))


def folded(events: list[dict], *, is_counted: bool = True) -> dict:
    """Return the message that events add up to. Strict: order, indexes, one stop a block, nothing empty.

    `is_counted`: the first event has to have the tokens of the prompt already.
    """
    events = [event for event in events if event["type"] != "ping"]
    for event in events:
        types_of_sdk()[1].validate_python(event)
    first, *middle, last_but_one, last = events
    assert (first["type"], last_but_one["type"], last) == ("message_start", "message_delta", {"type": "message_stop"})
    message = first["message"]
    assert message["content"] == [] and message["stop_reason"] is None and message["stop_sequence"] is None
    assert message["usage"]["output_tokens"] == 0
    message["content"] = blocks_of(middle)
    for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
        assert message["usage"][name] in (last_but_one["usage"][name], *(() if is_counted else (0,)))
    message["usage"] = last_but_one["usage"]
    assert last_but_one["delta"]["stop_reason"] is not None
    return message | last_but_one["delta"]


def blocks_of(events: list[dict]) -> list[dict]:
    """Return the blocks between the first and the last events of a message."""
    blocks, is_open, parts = [], False, []
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert not is_open and event["index"] == len(blocks)
                block, is_open, parts = event["content_block"], True, []
                if block["type"] == "tool_use":
                    assert block["id"].startswith("toolu_") and block["name"] and block["input"] == {}
                else:
                    assert block == EMPTY[block["type"]]
                blocks.append(block)
            case "content_block_delta":
                block, delta = blocks[-1], event["delta"]
                assert is_open and event["index"] == len(blocks) - 1
                text = delta[DELTAS[block["type"]][delta["type"]]]
                assert text and not block.get("signature"), "nothing empty, and nothing after the signature"
                if delta["type"] == "signature_delta":
                    block["signature"] = text
                else:
                    parts.append(text)
            case "content_block_stop":
                assert is_open and event["index"] == len(blocks) - 1
                is_open = False
                filled(blocks[-1], "".join(parts))
            case other:
                raise AssertionError(f"{other} among blocks")
    assert not is_open
    return blocks


def filled(block: dict, text: str) -> None:
    if block["type"] == "tool_use":
        try:
            value = json.loads(text or "{}")
        except ValueError:
            value = None
        block["input"] = value if isinstance(value, dict) else unparsed(text)
    else:
        assert text
        block[block["type"]] = text
        assert block["type"] == "text" or block["signature"]


def unparsed(text: str) -> dict:
    """Return Claude Code's form of arguments that are no JSON object."""
    return {"__unparsedToolInput": {"raw": text, "len": len(text)}}


def without_ids(message: dict) -> dict:
    """Return what has to be the same in every answer to the same request."""
    blocks = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    return {name: value for name, value in message.items() if name != "id"} | {"content": blocks}


class Histories:
    """Random conversations that are as a client sends them, and answers as gpt-oss gives them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self._num_calls = 0

    def text(self) -> str:
        if self.rng.random() < 0.3:
            return self.rng.choice(BORDERS)
        return " ".join(
            self.rng.choices(["the", "nest", "city", "a.py", "12", "\u00e9", "{x}"], k=self.rng.randint(1, 9))
        )

    def tools(self) -> list[dict]:
        tools = [WEATHER, CLOCK, *({**CLOCK, "name": f"later_{i}", "defer_loading": True} for i in range(3))]
        self.rng.shuffle(tools)
        return tools

    def body(self) -> dict:
        """Return all fields but the model's name."""
        messages: list[dict] = []
        for _ in range(self.rng.randint(1, 4)):
            messages += self.turn()
        messages.append({"role": "user", "content": self.content()})
        if self.rng.random() < 0.3:
            messages.append({"role": "system", "content": self.text()})
        body = {"messages": messages, "tools": self.tools(), "max_tokens": self.rng.choice((1, 7, 500))}
        if self.rng.random() < 0.7:
            body["system"] = self.content(only_text=True)
        if self.rng.random() < 0.5:
            body["thinking"] = self.rng.choice(
                (
                    {"type": "disabled"},
                    {"type": "adaptive", "display": "omitted"},
                    {"type": "enabled", "budget_tokens": 9},
                )
            )
        if self.rng.random() < 0.5:
            body["output_config"] = {"effort": self.rng.choice(["low", "medium", "high", "xhigh", "max"])}
        return body

    def turn(self) -> list[dict]:
        """Return a question, tool steps and, mostly, an answer."""
        messages = [{"role": "user", "content": self.content()}]
        for _ in range(self.rng.randint(0, 3)):
            messages += self.step()
        if self.rng.random() < 0.8:
            messages.append({"role": "assistant", "content": [*self.thoughts(), {"type": "text", "text": self.text()}]})
        return messages

    def step(self) -> list[dict]:
        calls = []
        for _ in range(self.rng.choice((1, 1, 1, 2, 3))):
            self._num_calls += 1
            given = self.rng.choice(({"city": self.text()}, {}, {"b": [1, {"c": 0.1}]}, unparsed('{"city": ')))
            name = self.rng.choice(("get_weather", "clock", "gone"))
            calls.append({"type": "tool_use", "id": f"toolu_{self._num_calls}", "name": name, "input": given})
        said = [{"type": "text", "text": self.text()}] if self.rng.random() < 0.4 else []
        results = [self.result(one["id"]) for one in calls]
        self.rng.shuffle(results)
        if self.rng.random() < 0.2:
            results.append({"type": "text", "text": self.text()})
        messages = [
            {"role": "assistant", "content": [*self.thoughts(), *said, *calls]},
            {"role": "user", "content": results},
        ]
        if self.rng.random() < 0.3:
            messages.append({"role": "system", "content": self.content(only_text=True)})
        return messages

    def thoughts(self) -> list[dict]:
        kinds = (
            [],
            [{"type": "thinking", "thinking": self.text(), "signature": ""}],
            [{"type": "redacted_thinking", "data": "x"}],
        )
        return self.rng.choice(kinds)

    def result(self, call_id: str) -> dict:
        block: dict = {"type": "tool_result", "tool_use_id": call_id}
        kind = self.rng.randrange(4)
        if kind == 0:
            block["content"] = self.text()
        elif kind == 1:
            names = self.rng.sample(("later_0", "later_1", "later_2", "clock"), 2)
            block["content"] = [{"type": "tool_reference", "tool_name": name} for name in names]
        elif kind == 2:
            block |= {"content": self.content(), "is_error": self.rng.random() < 0.5}
        return block

    def content(self, *, only_text: bool = False) -> str | list[dict]:
        if self.rng.random() < 0.5:
            return self.text()
        blocks: list[dict] = [{"type": "text", "text": self.text()} for _ in range(self.rng.randint(1, 3))]
        blocks[-1]["cache_control"] = {"type": "ephemeral"}
        if not only_text and self.rng.random() < 0.3:
            image = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
            plain = {"type": "text", "media_type": "text/plain", "data": self.text()}
            more = ({"type": "image", "source": image}, {"type": "document", "source": plain, "title": "T"})
            blocks.insert(self.rng.randint(0, len(blocks)), self.rng.choice(more))
        return blocks

    def answer(self) -> list[Message]:
        """Return messages as the model writes them."""
        said: list[Message] = []
        for _ in range(self.rng.randint(0, 3)):
            said.append(self.rng.choice((analysis, preamble))(self.text()))
        last = self.rng.randrange(4)
        if last == 0:
            said.append(call(self.rng.choice(('{"city":"Oslo"}', "", "{", "[1]", '{"city":"\u00fc"}'))))
        elif last == 1:
            said.append(call("{}", name="unknown"))
        else:
            said.append(final(self.text()))
        return said

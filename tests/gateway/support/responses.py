"""What the tests of `/v1/responses` share: answers as gpt-oss writes them, a script of them, and folding a stream."""

import json

import httpx
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from eyas.base.harmony.rendering import Message
from eyas.base.tokens.tokenizer import TextCodec
from eyas.base.types import Request

EVENTS = TypeAdapter(ResponseStreamEvent)
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": False,
}


def analysis(text: str) -> Message:
    return Message(role="assistant", channel="analysis", content=text)


def preamble(text: str) -> Message:
    return Message(role="assistant", channel="commentary", content=text)


def final(text: str) -> Message:
    return Message(role="assistant", channel="final", content=text)


def call(arguments: str, name: str = "get_weather") -> Message:
    return Message(
        role="assistant", channel="commentary", recipient=f"functions.{name}", content_type="json", content=arguments
    )


def spoken(codec: TextCodec, *messages: Message) -> list[int]:
    """What gpt-oss emits after `<|start|>assistant`: the recipient after the channel, the last message's own end."""
    special, ids = codec.special, []
    for i, message in enumerate(messages):
        is_call = message.recipient is not None
        end = "<|call|>" if is_call else "<|return|>" if i == len(messages) - 1 else "<|end|>"
        ids += [special["<|channel|>"], *codec.encode(message.channel + (f" to={message.recipient} " * is_call))]
        ids += [special["<|constrain|>"], *codec.encode("json")] if is_call else []
        ids += [special["<|message|>"], *codec.encode(message.content), special[end]]
        ids += [special["<|start|>"], *codec.encode("assistant")] if i < len(messages) - 1 else []
    return ids


class Script:
    """Answers of a stub engine, one after the other, the last one for ever; `requests` are those that came."""

    def __init__(self, *replies: list[int]) -> None:
        self.play(*replies)

    def play(self, *replies: list[int]) -> None:
        self.requests: list[Request] = []
        self.replies = replies

    def __call__(self, request: Request, choice: int) -> list[int]:
        self.requests.append(request)
        return self.replies[min(len(self.requests), len(self.replies)) - 1]


def post(server, path: str = "/responses", **body):
    return httpx.post(f"{server.url}/v1{path}", json=body, timeout=20)


def raw_events(server, **body) -> list[dict]:
    """The events of a stream, each checked against the official SDK's types, and against its `event:` line."""
    answer = post(server, stream=True, **body)
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    events = []
    for block in answer.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    check_events(events)
    return events


def check_events(events: list[dict]) -> None:
    for event in events:
        EVENTS.validate_python(event)
        if "response" in event:
            Response.model_validate(event["response"])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def fold(events: list[dict]) -> list[dict]:
    """The output as a client that knows nothing but the events builds it."""
    items: list[dict] = []
    for event in events:
        kind = event["type"]
        if kind == "response.output_item.added":
            assert event["output_index"] == len(items)
            items.append(event["item"])
        elif kind == "response.content_part.added":
            items[event["output_index"]]["content"].append(event["part"])
        elif kind in ("response.output_text.delta", "response.reasoning_text.delta"):
            part = items[event["output_index"]]["content"][event["content_index"]]
            part["text"] += event["delta"]
            if event.get("logprobs"):
                part.setdefault("logprobs", []).extend(event["logprobs"])
        elif kind == "response.function_call_arguments.delta":
            items[event["output_index"]]["arguments"] += event["delta"]
        elif kind in ("response.output_text.done", "response.reasoning_text.done"):
            assert items[event["output_index"]]["content"][0]["text"] == event["text"]
        elif kind == "response.function_call_arguments.done":
            assert items[event["output_index"]]["arguments"] == event["arguments"]
        elif kind == "response.output_item.done":
            item = items[event["output_index"]]
            assert event["item"]["status"] in ("completed", "incomplete") and item["status"] == "in_progress"
            item["status"] = event["item"]["status"]
            assert item == event["item"]
        if "item_id" in event:
            assert event["item_id"] == items[event["output_index"]]["id"]
    return items

"""What the tests of chat and completions share: a server that says what a test wants, and adding up a stream."""

from collections.abc import Sequence

from tests.gateway.support.gateway import Server
from tests.gateway.support.responses import spoken

from eyas.base.harmony.rendering import Message
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.base.types import Request

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}


class Stage:
    """One server for many tests: `say` sets what the engine answers, `request` is the last one that it got."""

    def __init__(self, codec: Tokenizer) -> None:
        self.codec = codec
        self.server: Server
        self.request: Request
        self._replies: Sequence[Sequence[int]] = ()

    def reply(self, request: Request, choice: int) -> Sequence[int]:
        self.request = request
        return self._replies[choice % len(self._replies)]

    def say(self, *messages: Message) -> "Stage":
        self._replies = [spoken(self.codec, *messages)]
        return self

    def say_ids(self, *replies: Sequence[int]) -> "Stage":
        self._replies = replies
        return self

    def say_text(self, *texts: str) -> "Stage":
        """Plain text and an end, for raw completions."""
        return self.say_ids(*[[*self.codec.encode(text), self.codec.special["<|return|>"]] for text in texts])

    def chat(self, text: str = "Hi", **fields):
        return self.server.chat(text, **fields)

    def talk(self, messages: list, **fields):
        return self.server.client.chat.completions.create(model="stub", messages=messages, **fields)

    def complete(self, prompt="Hello there", **fields):
        return self.server.client.completions.create(model="stub", prompt=prompt, **fields)

    def prompt(self) -> str:
        """The text of the last request's prompt."""
        return self.codec.decode(self.request.prompt_ids)


def added_up(chunks) -> dict:
    """The message that a stream of one choice adds up to, as the official SDK's accumulators do it."""
    message: dict = {"content": None, "reasoning": None, "reasoning_content": None, "tool_calls": [], "finish": None}
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        for name in ("content", "reasoning", "reasoning_content"):
            if (text := getattr(choice.delta, name, None)) is not None:
                message[name] = (message[name] or "") + text
        for call in choice.delta.tool_calls or ():
            if call.index == len(message["tool_calls"]):
                message["tool_calls"].append({"id": call.id, "name": call.function.name, "arguments": ""})
                assert call.id and call.function.name and call.type == "function"
            message["tool_calls"][call.index]["arguments"] += call.function.arguments
        if choice.finish_reason is not None:
            assert message["finish"] is None
            message["finish"] = choice.finish_reason
    return message

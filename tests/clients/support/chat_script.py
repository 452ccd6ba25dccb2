"""What a model says to a chat request: to a prompt with a marker in it, the replies of that marker, one a tool step."""

from collections.abc import Sequence

from tests.clients.support.scripted import final

from eyas.base.harmony.rendering import Message


class ChatScript:
    """The replies of a chat endpoint. Which of them depends on the request alone: one asked again is the same again."""

    def __init__(self) -> None:
        self._replies: dict[str, Sequence[Sequence[Message]]] = {}

    def on(self, marker: str, *replies: Sequence[Message]) -> None:
        self._replies[marker] = replies

    def __call__(self, body: dict) -> Sequence[Message]:
        num_calls = 0
        for message in reversed(body["messages"]):
            num_calls += len(message.get("tool_calls", ()))
            if message["role"] == "user":
                found = next((marker for marker in self._replies if marker in message["content"]), None)
                if found is not None:
                    return self._replies[found][num_calls]
        return [
            final("In spring the birds come back, in summer they breed, in autumn they leave, in winter it is quiet.")
        ]

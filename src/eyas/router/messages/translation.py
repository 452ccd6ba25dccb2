"""A request of `/v1/messages` for a backend that has a chat endpoint only, and its answer as a message's events."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any, ClassVar

import msgspec

from eyas.base.errors import InvalidRequest, nearest
from eyas.base.serving.sse import EventSplitter, EventTooLong, data_of
from eyas.gateway.anthropic.body import MessagesBody
from eyas.gateway.anthropic.question import question_of
from eyas.gateway.anthropic.reply import LAST, MessageReply
from eyas.gateway.grammar.checker import NamedTool
from eyas.gateway.http.body import Raw, decode
from eyas.gateway.http.errors import Failure, failure_of
from eyas.gateway.question.prompt_limit import PromptTooLong
from eyas.gateway.question.question import Question
from eyas.gateway.turn.delta import Delta, Kind
from eyas.router.messages.chunks import decoded
from eyas.router.messages.limits import lengths_of, message_of
from eyas.router.messages.marks import disarmed
from eyas.router.messages.request import Message, chat_effort, chat_messages, chat_tools
from eyas.router.messages.stream import ChatReader
from eyas.router.upstream.errors import UpstreamError
from eyas.router.upstream.part import Part

__all__ = ["Translation"]

PARAM = "messages"
CHOICE = "tool_choice.name"
DONE = b"[DONE]"
SAMPLED = ("temperature", "top_p", "top_k", "min_p", "seed")
REFUSED = (400, 422)  # by a backend that read the body: pydantic's is 422
UNTHINKING = ("reasoning_effort", "does not support thinking")  # Ollama's words


class Translation:
    """One request. `is_stream` says which of `parts` and `whole` reads its answer.

    Each backend is asked with `request`; its refusal may have a `retry_of`, which is then sent to it instead.
    """

    path: ClassVar[str] = "/v1/chat/completions"

    def __init__(self, body: MessagesBody, question: Question, name: str) -> None:
        self.is_stream = bool(body.stream)
        self._body = body
        self._question = question
        self._name = name
        self._sent: dict[str, Any] = {}

    @classmethod
    def of(
        cls, raw: Raw, *, models: Sequence[str] = (), today: Callable[[], datetime.date] = datetime.date.today
    ) -> Translation:
        """Read a body. Answers name its model if that is one of `models`, else the first. Raises InvalidRequest."""
        body = decode(raw, MessagesBody)
        question = question_of(body, f"msg_{uuid.uuid4().hex}", today=today())
        choice, known = question.offer.choice, question.offer.functions
        if isinstance(choice, NamedTool) and choice.name not in known:
            hint = nearest(choice.name, known)
            raise InvalidRequest(f"'tool_choice.name': no tool has the name '{choice.name}'{hint}", param=CHOICE)
        if choice == "required" and not known:
            raise InvalidRequest("'tool_choice': there is no tool to call", param="tool_choice")
        return cls(body, question, body.model if body.model in models or not models else models[0])

    def request(self, model: str | None = None) -> bytes:
        """Return the body for a backend, which knows the model by this name."""
        conversation = self._question.conversation
        sent: dict[str, Any] = {} if model is None else {"model": model}
        sent["messages"] = chat_messages(conversation)
        if tools := chat_tools(conversation):
            sent |= self._tools(tools)
        if (wanted := conversation.answer_format) is not None:
            schema = {"name": wanted.name, "schema": wanted.schema, "strict": True}
            sent["response_format"] = {"type": "json_schema", "json_schema": schema}
        sent["max_tokens"] = self._body.max_tokens
        given = {name: getattr(self._body, name) for name in SAMPLED}
        sent |= {name: value for name, value in given.items() if value is not None}
        sent |= chat_effort(self._body, conversation)
        sent["stream"] = self.is_stream
        if self.is_stream:  # usage with each chunk: vLLM and SGLang; the others have it at the end
            sent["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        self._sent = sent
        return disarmed(msgspec.json.encode(sent))

    def retry_of(self, status: int, body: bytes) -> bytes | None:
        """Return the request without what the backend has refused, None if it cannot do without.

        vLLM and SGLang refuse a max_tokens for which the context has no room beside the prompt; Ollama refuses an
        effort for models that do not think.
        """
        if status not in REFUSED:
            return None
        lengths = lengths_of(body)
        if lengths is not None:
            room = lengths.context - lengths.prompt - 1  # SGLang wants one token more than vLLM
            if not 0 < room < self._sent["max_tokens"]:
                return None
            self._sent["max_tokens"] = room
        elif "reasoning_effort" in self._sent and any(word in message_of(body) for word in UNTHINKING):
            del self._sent["reasoning_effort"]
        else:
            return None
        return disarmed(msgspec.json.encode(self._sent))

    def parts(self, chunks: AsyncIterator[bytes]) -> AsyncGenerator[Part, None]:
        """Yield the events of the answer to a stream, without holding the request. Raises UpstreamError.

        The last part may come before the backend's last chunk: at a stop string, which the backend does not know.
        """
        return _parts(self._reader(), self._reply(), chunks)

    def whole(self, body: bytes) -> bytes:
        """Return the message for a whole answer. Raises UpstreamError."""
        reader, answer = self._reader(), decoded(body)
        if not answer.choices:
            raise UpstreamError("malformed", "the answer has no choice")
        first = reader.feed(answer)
        deltas = [reader.finish()] if first is None else [first, reader.finish()]
        return self._reply().whole(deltas)

    def error(self, status: int, body: bytes) -> Failure:
        """Return a backend's refusal as a failure for the client; a prompt that is too long as one of our own."""
        lengths = lengths_of(body)
        if 400 <= status < 500 and lengths is not None and lengths.prompt >= lengths.context - 1:
            return failure_of(PromptTooLong(lengths.prompt, context=lengths.context, param=PARAM))
        return Failure(status=status, message=message_of(body) or "the backend gave no reason")

    def _reader(self) -> ChatReader:
        question = self._question
        return ChatReader(stops=question.stops, functions=question.offer.functions, max_tokens=self._body.max_tokens)

    def _reply(self) -> MessageReply:
        return MessageReply(self._question.request_id, self._name, max_tokens=self._body.max_tokens)

    def _tools(self, tools: list[Message]) -> dict[str, Any]:
        """Return the tools and the choice. A named one is the only one there is: llama-server ignores its name."""
        choice, asked = self._question.offer.choice, self._body.tool_choice
        fields: dict[str, Any] = {"tools": tools}
        if isinstance(choice, NamedTool):
            fields["tools"] = [tool for tool in tools if tool["function"]["name"] == choice.name]
            fields["tool_choice"] = "required"
        elif choice != "auto":
            fields["tool_choice"] = choice
        if asked is not None and asked.disable_parallel_tool_use:
            fields["parallel_tool_calls"] = False
        return fields


async def _parts(reader: ChatReader, reply: MessageReply, chunks: AsyncIterator[bytes]) -> AsyncGenerator[Part, None]:
    splitter = EventSplitter()
    async for chunk in chunks:
        try:
            events = splitter.feed(chunk)
        except EventTooLong as error:
            raise UpstreamError("malformed", str(error)) from None
        for event in events:
            if not (data := data_of(event)):
                continue
            if data.strip() == DONE:
                yield _part(reply, reader.finish())
                return
            if (delta := reader.feed(decoded(data))) is not None:
                yield _part(reply, delta)
            if reader.stopped is not None:
                yield _part(reply, reader.finish())
                return
    yield _part(reply, reader.finish())


def _part(reply: MessageReply, delta: Delta) -> Part:
    is_last = delta.totals is not None
    text = "".join(piece.text for piece in delta.pieces)
    shows = bool(text) or any(piece.kind is Kind.CALL for piece in delta.pieces)
    events = reply.events(delta)
    return Part(data=events + LAST if is_last else events, text=text, shows=shows, is_last=is_last)

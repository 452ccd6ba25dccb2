"""`/v1/messages`, `/v1/messages/count_tokens`, and what clients ask to see whether a server is there."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from eyas.gateway.anthropic.body import CountBody, MessagesBody
from eyas.gateway.anthropic.news import note
from eyas.gateway.anthropic.question import question_of
from eyas.gateway.anthropic.reply import LAST, PING, MessageReply
from eyas.gateway.http.answer import answer
from eyas.gateway.http.body import Raw, decode, json_response
from eyas.gateway.question.engine_answers import EngineAnswers
from eyas.gateway.question.model import check_name
from eyas.gateway.question.question import AnswerPort
from eyas.gateway.server.context import Context

__all__ = ["COUNT_PATH", "HELLO_PATH", "PATH", "Answers", "message_routes"]

PATH = "/v1/messages"
COUNT_PATH = f"{PATH}/count_tokens"
HELLO_PATH = "/api/hello"

Answers = Callable[[Context], AnswerPort[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A checked body: the question as it is sent, and how its answer is formatted."""

    question: Any
    reply: MessageReply
    is_stream: bool


def message_routes(context: Context, answers: Answers = EngineAnswers) -> list[BaseRoute]:
    port, options = answers(context), context.options

    def prepare(raw: Raw) -> Prepared:
        """Check everything that does not need the engine. Raises InvalidRequest naming the field."""
        body = decode(raw, MessagesBody)
        note(context.tallies, raw, body)
        model = check_name(body.model, port.models())
        message_id = f"msg_{uuid.uuid4().hex}"
        return Prepared(
            question=port.prepare(question_of(body, message_id, today=options.today(), defaults=options.defaults)),
            reply=MessageReply(message_id, model, max_tokens=body.max_tokens),
            is_stream=bool(body.stream),
        )

    async def messages(http: HttpRequest) -> ASGIApp:
        prepared = await context.read(http, prepare)
        reply, found = prepared.reply, port.ask(prepared.question, route=PATH)
        chunks = reply.chunks if prepared.is_stream else None
        return await answer(
            http, found.deltas(), close=found.close, whole=reply.whole, chunks=chunks, last=LAST, keep_alive=PING
        )

    def count(raw: Raw) -> int:
        body = decode(raw, CountBody)
        check_name(body.model, port.models())
        return port.count(question_of(body, "", today=options.today()))

    async def count_tokens(http: HttpRequest) -> Response:
        return json_response({"input_tokens": await context.read(http, count)})

    async def hello(http: HttpRequest) -> Response:
        return json_response({"message": "hello"})

    return [
        Route(PATH, messages, methods=["POST"]),
        Route(COUNT_PATH, count_tokens, methods=["POST"]),
        Route(HELLO_PATH, hello),
    ]

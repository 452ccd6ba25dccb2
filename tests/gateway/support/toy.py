"""A dialect of our own making: another envelope, named events, another header for ids. Only the registration knows it.

`POST /toy/ask` with `{"question": TEXT, "system": TEXT, "model": NAME, "limit": TOKENS, "stream": BOOL}`.
"""

import uuid
from collections.abc import AsyncGenerator

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.routing import Route

from eyas.base.harmony.conversation import Conversation, TextEntry
from eyas.base.types import Request, SamplingParams
from eyas.gateway.http.answer import answer
from eyas.gateway.http.body import Fields, Raw, decode
from eyas.gateway.http.errors import ErrorFormat, Failure
from eyas.gateway.http.operations import GENERATION, ApiOperation
from eyas.gateway.http.stream import named_sse
from eyas.gateway.question.model import check_model
from eyas.gateway.question.prompt import prompt_ids
from eyas.gateway.question.prompt_limit import PromptTooLong
from eyas.gateway.server.context import Context
from eyas.gateway.server.dialect import Dialect
from eyas.gateway.turn.delta import Delta, Kind
from eyas.gateway.turn.readers import HarmonyReader
from eyas.gateway.turn.turn import Turn

PATH = "/toy/ask"
ID_HEADER = "toy-ticket"
KINDS = {401: "who", 403: "where", 404: "none", 413: "much", 429: "later", 503: "later"}


class ToyBody(Fields, kw_only=True):
    question: str
    system: str | None = None
    model: str | None = None
    limit: int | None = None
    stream: bool = False


def told(failure: Failure) -> bytes:
    kind = KINDS.get(failure.status, "ours" if failure.status >= 500 else "yours")
    problem = {"kind": kind, "what": failure.message, "field": failure.param, "ticket": failure.request_id}
    if isinstance(failure.error, PromptTooLong):
        problem["what"] = f"too long: {failure.error.num_prompt} > {failure.error.context}"
    return msgspec.json.encode({"problem": problem})


async def chunks(deltas: AsyncGenerator[Delta, None]) -> AsyncGenerator[bytes, None]:
    async for delta in deltas:
        yield named_sse("said", msgspec.json.encode({"text": delta.text(Kind.CONTENT)}))


def whole(deltas: list[Delta]) -> bytes:
    return msgspec.json.encode({"text": "".join(delta.text(Kind.CONTENT) for delta in deltas)})


def routes(context: Context) -> list[Route]:
    def read(raw: Raw) -> tuple[ToyBody, Request]:
        body = decode(raw, ToyBody)
        check_model(context, body.model)
        entries = [TextEntry(role="user", text=body.question)]
        conversation = Conversation(entries=entries, instructions=body.system, date=context.options.today().isoformat())
        return body, Request(
            request_id=f"toy-{uuid.uuid4().hex}",
            prompt_ids=prompt_ids(context, conversation, param="question"),
            params=SamplingParams(max_tokens=body.limit),
        )

    async def ask(http: HttpRequest):
        body, request = await context.read(http, read)
        turn = Turn(context, request, lambda: HarmonyReader(context.codec, frozenset()), route=PATH)
        last = named_sse("end", b"{}")
        return await answer(
            http, turn.deltas(), close=turn.close, whole=whole, chunks=chunks if body.stream else None, last=last
        )

    return [Route(PATH, ask, methods=["POST"])]


TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
TOY = Dialect(
    name="toy",
    paths=("/toy",),
    routes=routes,
    errors=ErrorFormat(
        body=told,
        event=lambda failure: named_sse("problem", told(failure)),
        statuses={503: 599},
        headers=lambda status: {"toy-again": "no"} if status < 500 else {},
    ),
    error_schema={
        "type": "object",
        "required": ["problem"],
        "properties": {"problem": {"type": "object", "required": ["kind", "what", "field", "ticket"]}},
    },
    operations=(
        ApiOperation(
            method="post", path=PATH, summary="Answer a question", body=ToyBody, answer=TEXT, streams=True,
            errors=GENERATION,
        ),
    ),
    id_header=ID_HEADER,
)  # fmt: skip

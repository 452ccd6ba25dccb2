"""`/v1/responses`: creates responses, whole or streamed; retrieves, cancels and deletes them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from eyas.base.errors import EyasError, InvalidRequest
from eyas.gateway.http.answer import answer_whole
from eyas.gateway.http.body import Raw, json_response, raw_response, weight
from eyas.gateway.http.errors import Refused
from eyas.gateway.http.stream import EventStream
from eyas.gateway.openai.responses.body import ResponsesBody, decode_body, input_items
from eyas.gateway.openai.responses.items import InputItem, ItemReference
from eyas.gateway.openai.responses.prompt import Prepared, prepare
from eyas.gateway.openai.responses.store import Kept, ResponseStore
from eyas.gateway.openai.responses.stream import ResponseGrowth, encode_events
from eyas.gateway.question.engine_answers import EngineAnswers
from eyas.gateway.question.model import check_model
from eyas.gateway.server.context import Context

__all__ = ["routes"]

PATH = "/v1/responses"
DEFAULT_PAGE = 20
MAX_PAGE = 100
CONTINUABLE = ("completed", "incomplete")


def routes(context: Context, store: ResponseStore | None = None) -> list[BaseRoute]:
    """Return the routes; `store` is the server's own unless tests need other limits."""
    service = _Responses(context, ResponseStore() if store is None else store)
    one = f"{PATH}/{{response_id}}"
    return [
        Route(PATH, service.create, methods=["POST"]),
        Route(one, service.retrieve, methods=["GET"]),
        Route(one, service.delete, methods=["DELETE"]),
        Route(f"{one}/cancel", service.cancel, methods=["POST"]),
        Route(f"{one}/input_items", service.input_items, methods=["GET"]),
    ]


class _Run:
    """A running response: turns its deltas into events, and stores it at the end."""

    def __init__(
        self, context: Context, store: ResponseStore, prepared: Prepared, previous: Kept | None, owner: bytes
    ) -> None:
        self.owner = owner
        self._store = store
        self._prepared = prepared
        self._previous = previous
        self._stem = prepared.response.id.removeprefix("resp_")
        self._cancelled: bytes | None = None
        self.growth = ResponseGrowth(
            prepared.response,
            context.codec,
            stem=self._stem,
            with_logprobs=prepared.question.request.params.logprobs is not None,
        )
        self.turn = EngineAnswers(context).ask(prepared.question, route=PATH)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes to send, one item per delta. If the engine fails, the stream ends with `response.failed`."""
        yield encode_events(self.growth.begin())
        try:
            async for delta in self.turn.deltas():
                if self._cancelled is None and (events := self.growth.take(delta)):
                    data = encode_events(events)
                    if delta.finish is not None:
                        self._keep()
                    yield data
        except EyasError as error:
            if self._cancelled is None:
                data = encode_events(self.growth.fail(error))
                self._keep()
                yield data
        if self._cancelled is not None:
            yield self._cancelled

    async def whole(self) -> bytes:
        """Return the finished response. Raises EyasError if the engine fails."""
        async for delta in self.turn.deltas():
            self.growth.take(delta)
        self._keep()
        return msgspec.json.encode(self.growth.response)

    def cancel(self) -> None:
        self._cancelled = encode_events(self.growth.cancel())
        self._keep()
        self.turn.close()

    def fail(self, error: EyasError) -> bytes:
        """Return the last event of a stream that a bug of the server ended."""
        return encode_events(self.growth.error(str(error)))

    def _keep(self) -> None:
        if not self.growth.response.store:
            return
        response, items = self.growth.response, self._prepared.items
        ids = (item.id for item in (*items, *response.output))
        self._store.put(
            Kept(
                response_id=response.id,
                owner=self.owner,
                status=response.status,
                input_items=msgspec.json.encode(items),
                response=msgspec.json.encode(response),
                item_ids=tuple(item_id for item_id in ids if item_id is not None),
                previous=self._previous,
            )
        )


class _Responses:
    def __init__(self, context: Context, store: ResponseStore) -> None:
        self._context = context
        self._store = store
        self._running: dict[str, _Run] = {}  # streams only: the id of a whole answer is unknown until it is sent

    async def create(self, request: HttpRequest) -> ASGIApp:
        owner = owner_of(request)
        prepared, previous = await self._prepare(request, owner)
        run = _Run(self._context, self._store, prepared, previous, owner)
        if prepared.is_stream:
            self._running[prepared.response.id] = run
            return EventStream(run.events(), on_close=lambda: self._end(run), on_error=run.fail)
        return await answer_whole(request, run.whole(), close=run.turn.close)

    async def _prepare(self, request: HttpRequest, owner: bytes) -> tuple[Prepared, Kept | None]:
        async with self._context.intake.body(request) as raw:
            body, items = await self._context.workers.run(request, weight(raw), lambda: _decode(self._context, raw))
            previous = self._previous(body, owner)
            referenced = self._referenced(items, owner)
            size = weight(raw) + self._check_kept(previous, referenced)
            stem = secrets.token_hex(16)
            prepared = await self._context.workers.run(
                request,
                size,
                lambda: prepare(self._context, body, items, stem=stem, previous=previous, referenced=referenced),
            )
        return prepared, previous

    async def retrieve(self, request: HttpRequest) -> Response:
        _check_query(request, ())
        response_id, owner = request.path_params["response_id"], owner_of(request)
        if (run := self._find_running(response_id, owner)) is not None:
            return json_response(run.growth.response)
        return raw_response(self._kept(response_id, owner).response)

    async def delete(self, request: HttpRequest) -> Response:
        response_id, owner = request.path_params["response_id"], owner_of(request)
        if self._find_running(response_id, owner) is not None:
            raise InvalidRequest(f"response '{response_id}' is still running; cancel it first")
        if not self._store.delete(response_id, owner):
            raise _not_found(response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    async def cancel(self, request: HttpRequest) -> Response:
        response_id, owner = request.path_params["response_id"], owner_of(request)
        run = self._find_running(response_id, owner)
        if run is None:
            kept = self._kept(response_id, owner)
            raise InvalidRequest(f"response '{response_id}' is {kept.status}; only a running one can be cancelled")
        run.cancel()
        self._end(run)
        return json_response(run.growth.response)

    async def input_items(self, request: HttpRequest) -> Response:
        """Return the items of a response's own request; earlier ones belong to the previous responses."""
        _check_query(request, ("limit", "order", "after"))
        kept = self._kept(request.path_params["response_id"], owner_of(request))
        order, limit = request.query_params.get("order", "desc"), _limit(request)
        if order not in ("asc", "desc"):
            raise InvalidRequest(f"order must be 'asc' or 'desc', got '{order}'", param="order")
        after = request.query_params.get("after")
        page = lambda: _page(kept.input_items, newest_first=order == "desc", limit=limit, after=after)  # noqa: E731
        return raw_response(await self._context.workers.run(request, len(kept.input_items), page))

    def _end(self, run: _Run) -> None:
        self._running.pop(run.growth.response.id, None)
        run.turn.close()

    def _find_running(self, response_id: str, owner: bytes) -> _Run | None:
        run = self._running.get(response_id)
        if run is None or run.owner != owner or run.growth.response.status != "in_progress":
            return None  # a finished one may still be being sent to its client
        return run

    def _kept(self, response_id: str, owner: bytes) -> Kept:
        kept = self._store.get(response_id, owner)
        if kept is None:
            raise _not_found(response_id)
        return kept

    def _previous(self, body: ResponsesBody, owner: bytes) -> Kept | None:
        param, response_id = "previous_response_id", body.previous_response_id
        if response_id is None:
            return None
        if self._find_running(response_id, owner) is not None:
            raise InvalidRequest(f"response '{response_id}' is still running", param=param)
        kept = self._store.get(response_id, owner)
        if kept is None:
            raise Refused(
                f"Previous response with id '{response_id}' not found or no longer kept; send the whole input instead",
                param=param,
                code="previous_response_not_found",
                status=404,
            )
        if kept.status not in CONTINUABLE:
            raise InvalidRequest(f"response '{response_id}' is {kept.status} and cannot be continued", param=param)
        return kept

    def _check_kept(self, previous: Kept | None, referenced: Mapping[str, Kept]) -> int:
        """Check the bytes of the responses that a request refers to: together at most what a body may have."""
        history = 0 if previous is None else sum(link.num_json for link in previous.chain())
        others = sum(kept.num_json for kept in set(referenced.values()))
        limit = self._context.options.max_body
        if history > limit:
            raise InvalidRequest(
                f"the conversation has {history} bytes, and the limit is {limit}; send the part that matters as input",
                param="previous_response_id",
            )
        if history + others > limit:
            raise InvalidRequest(
                f"the responses that input refers to have {history + others} bytes together, and the limit is {limit}; "
                "send the items themselves",
                param="input",
            )
        return history + others

    def _referenced(self, items: list[InputItem], owner: bytes) -> dict[str, Kept]:
        found = {item.id: self._store.find_item(item.id, owner) for item in items if isinstance(item, ItemReference)}
        return {item_id: kept for item_id, kept in found.items() if kept is not None}


def owner_of(request: HttpRequest) -> bytes:
    """Return the digest of the caller's API key, which authentication puts into the scope; empty without keys."""
    owner: bytes = request.scope["state"]["key"]
    return owner


def _decode(context: Context, raw: Raw) -> tuple[ResponsesBody, list[InputItem]]:
    body = decode_body(raw)
    check_model(context, body.model)
    return body, input_items(body)


def _page(items_json: bytes, *, newest_first: bool, limit: int, after: str | None) -> bytes:
    """Return one page of items as the API lists them."""
    items = msgspec.json.decode(items_json)
    if newest_first:
        items.reverse()
    if after is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise InvalidRequest(f"no item '{after}' in this response's input", param="after")
        items = items[ids.index(after) + 1 :]
    page = items[:limit]
    return msgspec.json.encode(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(items) > limit,
        }
    )


def _not_found(response_id: str) -> Refused:
    return Refused(f"Response with id '{response_id}' not found or no longer kept", code="not_found", status=404)


def _check_query(request: HttpRequest, known: tuple[str, ...]) -> None:
    for name in request.query_params:
        if name not in known:
            raise InvalidRequest(f"'{name}' is not supported here", param=name)


def _limit(request: HttpRequest) -> int:
    text = request.query_params.get("limit", str(DEFAULT_PAGE))
    with suppress(ValueError):
        if 1 <= int(text) <= MAX_PAGE:
            return int(text)
    raise InvalidRequest(f"limit must be between 1 and {MAX_PAGE}, got '{text[:20]}'", param="limit")

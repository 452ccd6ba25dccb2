"""The HTTP API's frame: the log, faults, the token, limits, and answers with Discord's headers."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from tests.discord.local import errors
from tests.discord.local.errors import ApiError
from tests.discord.local.faults import Fault
from tests.discord.local.hub import Hub
from tests.discord.local.journal import Logged
from tests.discord.local.limits import Limited

__all__ = ["Api", "Route", "add_routes", "read_body"]

PREFIX = "/api/v10"
MAJOR = ("channel", "guild", "token")  # parts of a path that have buckets of their own
EARLY_S = 0.01  # by which a client may wake up before its time
VIA = "1.1 google"  # discord.py takes a 429 without it for a ban


@dataclass(frozen=True)
class Api:
    """What a handler gets."""

    hub: Hub
    request: web.Request
    body: dict[str, Any]
    files: dict[int, tuple[str, bytes]]

    def number(self, name: str) -> int:
        """A part of the path that is an identifier."""
        text = self.request.match_info[name]
        if not text.isdecimal():
            raise errors.invalid_form(f"{name}_id", "NUMBER_TYPE_COERCE", f'Value "{text}" is not snowflake.')
        return int(text)

    def text(self, name: str) -> str:
        return self.request.match_info[name]


Handler = Callable[[Api], Awaitable[Any]]


@dataclass(frozen=True)
class Route:
    """A route with the short name that limits, faults and the log use. `by_token`: its path has a token of its own."""

    name: str
    method: str
    path: str
    handler: Handler
    by_token: bool = False


async def read_body(request: web.Request) -> tuple[Any, dict[int, tuple[str, bytes]]]:
    """A request's JSON, and its files by their number, from JSON or multipart."""
    files: dict[int, tuple[str, bytes]] = {}
    if not request.can_read_body:
        return {}, files
    if request.content_type == "multipart/form-data":
        payload: Any = {}
        async for part in await request.multipart():
            name = getattr(part, "name", None) or ""
            data = bytes(await part.read())  # type: ignore[union-attr]
            if name == "payload_json":
                payload = parse(data)
            elif name.startswith("files[") and name[6:-1].isdecimal():
                files[int(name[6:-1])] = (getattr(part, "filename", None) or "file", data)
        return payload, files
    data = await request.read()
    return (parse(data) if data else {}), files


def parse(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        raise errors.invalid_json() from None


def answer(status: int, body: Any, headers: dict[str, str]) -> web.Response:
    """JSON with exactly the content type by which discord.py knows it; 204 where there is nothing to say."""
    if body is None and status == 200:
        return web.Response(status=204, headers=headers)
    data = json.dumps(body, ensure_ascii=False).encode()
    return web.Response(status=status, body=data, headers={**headers, "Content-Type": "application/json"})


def refusal(limited: Limited, scope: str) -> web.Response:
    """The 429 of a limit."""
    assert limited.retry_after_s is not None
    retry = max(limited.retry_after_s, 0.001)
    body = {
        "message": "You are being rate limited.",
        "retry_after": round(retry + 0.0005, 3),
        "global": limited.is_global,
    }
    headers = {**limited.headers, "Retry-After": str(int(retry) + 1), "Via": VIA, "X-RateLimit-Scope": scope}
    if limited.is_global:
        headers["X-RateLimit-Global"] = "true"
    return answer(429, body, headers)


class Broken(Exception):
    """The connection was reset instead of an answer."""


def reset(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    raise Broken


async def faulty(hub: Hub, route: Route, fault: Fault, major: str, request: web.Request) -> web.Response:
    """What a scripted fault answers."""
    if fault.status == "reset":
        return reset(request)
    if fault.status == 429:
        if fault.is_global:
            hub.limits.block(fault.retry_after_s)
            limited = Limited({}, fault.retry_after_s, is_global=True)
        else:
            limited = hub.limits.empty(route.name, major, fault.retry_after_s)
        hub.limits.told(limited)
        return refusal(limited, "global" if fault.is_global else fault.scope)
    status = int(fault.status)
    return answer(status, {"message": f"{status}: scripted", "code": 0}, {"Via": VIA})


def endpoint(hub: Hub, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """The handler of aiohttp for a route."""

    async def serve(request: web.Request) -> web.StreamResponse:
        logged = Logged(hub.clock(), route.name, request.method, request.path)
        hub.journal.requests.append(logged)
        try:
            response = await respond(hub, route, request, logged)
        except Broken:
            logged.ended_s = hub.clock()
            raise ConnectionResetError from None
        except Exception as error:
            if request.transport is not None and not request.transport.is_closing():  # else the client left
                hub.broken.append(error)
            raise
        logged.status, logged.ended_s, logged.headers = response.status, hub.clock(), dict(response.headers)
        if response.status == 429:
            assert isinstance(response.body, bytes)
            logged.retry_s = logged.ended_s + json.loads(response.body)["retry_after"] - EARLY_S
        hub.journal.changed()
        return response

    return serve


async def respond(hub: Hub, route: Route, request: web.Request, logged: Logged) -> web.Response:
    """Carry a request out, unless a fault or a limit has it."""
    await hub.faults.wait()
    major = next((request.match_info[name] for name in MAJOR if name in request.match_info), "")
    fault = hub.faults.take(route.name)
    if fault is not None and fault.status == "slow":
        await asyncio.sleep(fault.retry_after_s)
        fault = None
    if fault is not None and not fault.after:
        logged.body, _ = await read_body(request)
        return await faulty(hub, route, fault, major, request)
    headers: dict[str, str] = {"Via": VIA}
    try:
        body, files = await read_body(request)
        logged.body = body
        if not route.by_token and request.headers.get("Authorization") != f"Bot {hub.token}":
            raise errors.unauthorized()
        limited = hub.limits.take(route.name, major, counts_globally=not route.by_token)
        if limited.retry_after_s is not None:
            if limited.violation:
                hub.violate("again" if was_told_to_come(hub, logged) else limited.violation, logged)
            hub.limits.told(limited)
            return refusal(limited, "global" if limited.is_global else "user")
        headers |= limited.headers
        found = await route.handler(Api(hub, request, body, files))
        response = answer(200, found, headers)
    except ApiError as error:
        response = answer(error.status, error.body, headers)
    except web.HTTPRequestEntityTooLarge:
        response = answer(413, errors.too_large().body, headers)
    if fault is not None:
        return await faulty(hub, route, fault, major, request)
    if "X-RateLimit-Remaining" in headers:
        hub.limits.told(limited)
    return response


def was_told_to_come(hub: Hub, logged: Logged) -> bool:
    """Whether the same request was refused before, and comes again after the time that it was given."""
    earlier = reversed(hub.journal.requests[-200:])
    same = (one for one in earlier if one is not logged and (one.method, one.path) == (logged.method, logged.path))
    last = next((one for one in same if one.body == logged.body and one.status), None)
    return last is not None and last.status == 429 and last.retry_s is not None and logged.at_s >= last.retry_s


def add_routes(app: web.Application, hub: Hub, routes: Iterable[Route]) -> None:
    """Serve these routes under the API's prefix, and Discord's 404 for all others."""
    for route in routes:
        app.router.add_route(route.method, PREFIX + route.path, endpoint(hub, route))

    async def unknown(api: Api) -> None:
        raise errors.not_found()

    app.router.add_route("*", PREFIX + "/{rest:.*}", endpoint(hub, Route("unknown", "*", "", unknown)))

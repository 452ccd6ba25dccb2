"""Reads what a request wants: which model, by which route, from which backends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.types import Scope

from eyas.base.serving.engines import Role
from eyas.gateway.http.body import Raw
from eyas.gateway.http.errors import Refused
from eyas.gateway.http.intake import SMALL
from eyas.router.manager.visit import Wanted
from eyas.router.messages.translation import Translation
from eyas.router.relay.body import Body
from eyas.router.relay.names import AUTO
from eyas.router.relay.readers import READERS
from eyas.router.relay.shared import Shared
from eyas.router.relay.sight import images_in, model_for
from eyas.router.relay.stored import is_response_id
from eyas.router.routes.fields import added
from eyas.router.routes.prompts import prompt_of
from eyas.router.sidecars.images import Images
from eyas.router.upstream.errors import UpstreamError

__all__ = ["Wish", "client_of", "find_response", "owner_of", "read_wish"]

SESSION_HEADERS = (b"x-claude-code-session-id", b"x-session-id")
SESSION_FIELD = "prompt_cache_key"
MAX_SESSION = 256
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
FIND_S = 5.0  # for a backend to say whether it has a stored response


@dataclass(kw_only=True, slots=True)
class Wish:
    """A request that was read. `body` has what the route sets, and goes when no other backend can be asked.

    `images` are those that the model cannot see; `sidecar` is the role of a model that answers in another's place.
    """

    path: str
    body: Body
    wanted: Wanted
    is_stream: bool
    max_tokens: int | None
    asked_for: str | None  # the model, as the client named it
    is_large: bool
    images: Images | None = None
    sidecar: Role | None = None
    translation: Translation | None = None
    newest: str | None = None  # the prompt, where the body has gone

    def prompt(self) -> str:
        """Return the newest text of the user."""
        return prompt_of(self.path, self.body.fields) if self.newest is None else self.newest

    def forget(self) -> None:
        """Let the body go."""
        self.newest = self.prompt()
        self.body, self.translation = Body({}), None

    def translated(self, names: tuple[str, ...]) -> Translation:
        """Return the request for backends that have a chat endpoint only. Raises InvalidRequest."""
        if self.translation is None:
            named = (self.asked_for,) if self.asked_for is not None else ()
            self.translation = Translation.of(self.body.encoded(None), models=(*named, *names))
        return self.translation


async def read_wish(shared: Shared, scope: Scope, path: str, raw: Raw, *, on_wait: Callable[[], None]) -> Wish:
    """Read a request's body. `on_wait` is called before it waits for anybody. Raises InvalidRequest."""
    body = Body.of(raw)
    asked_for = body.text("model")
    named = shared.names.meaning(asked_for, path)
    images = await images_in(path, raw, body, on_wait)
    named = model_for(shared, path, named, body, images)
    route, model, is_sidecar = None, named.model, named.is_sidecar
    if named.route is not None:
        on_wait()
        try:
            route = await shared.routes.choose(named.route, prompt_of(path, body.fields) if named.route == AUTO else "")
        except KeyError:
            raise Refused(f"there is no '{asked_for}'", param="model", code="model_not_found", status=404) from None
        body = body.with_fields(added(route, path, body.fields))
        model = route.model or shared.names.resident
    assert model is not None
    backends, must_stick = shared.names.model(model).backends, False
    if path == "/v1/responses" and (previous := body.text("previous_response_id")) is not None:
        on_wait()
        vision = shared.vision
        seeing = vision.backends if vision is not None else ()
        home = await find_response(shared, previous, owner_of(scope), tuple(dict.fromkeys((*backends, *seeing))))
        if home is not None:
            if vision is not None and home in seeing and home not in backends:
                model, is_sidecar = vision.name, True
            backends, must_stick = (home,), True
    limits = (body.number(name) for name in LIMITS)
    return Wish(
        path=path,
        body=body,
        is_stream=body.is_true("stream") and path in READERS,
        max_tokens=next((limit for limit in limits if limit is not None), None),
        asked_for=asked_for,
        is_large=len(raw) > SMALL,
        images=images if shared.names.role(model) == "text" else None,
        sidecar=shared.names.role(model) if is_sidecar else None,
        wanted=Wanted(
            model=model,
            backends=backends,
            client=client_of(scope),
            sticky=_session(scope, body),
            must_stick=must_stick,
            budgets=route.budgets if route is not None else {},
            route=route.name if route is not None else None,
        ),
    )


def owner_of(scope: Scope) -> str:
    """Return the digest of the caller's key; "" without keys."""
    key: Any = scope["state"].get("key", b"")
    return key.hex() if isinstance(key, bytes) else str(key)


def client_of(scope: Scope) -> str:
    """Return who asks, for the fairness of queues: a key, else an address."""
    address = scope.get("client")
    return owner_of(scope) or (str(address[0]) if address else "")


def _session(scope: Scope, body: Body) -> str | None:
    for name, value in scope["headers"]:
        if name in SESSION_HEADERS and value:
            return bytes(value[:MAX_SESSION]).decode("latin-1")
    given = body.text(SESSION_FIELD) if SESSION_FIELD in body.fields else None
    return given[:MAX_SESSION] if given else None


async def find_response(shared: Shared, response_id: str, owner: str, backends: tuple[str, ...]) -> str | None:
    """Return the backend that keeps a response; `backends` are asked if it is not known. None: no backend has it.

    Raises Refused for the response of another client, in the words for one that does not exist.
    """
    place = shared.stored.find(response_id)
    if place is not None and place.owner == owner:
        return place.backend
    if place is not None or shared.num_keys > 1 or not is_response_id(response_id):
        raise Refused(f"there is no response '{response_id[:64]}'", code="response_not_found", status=404)
    for backend in backends:
        if shared.manager.condition(backend).state in ("loading", "out"):
            continue
        try:
            path = f"/v1/responses/{response_id}"
            async with shared.upstream.send(backend, "GET", path, timeout_s=FIND_S) as reply:
                if reply.status == 200:
                    shared.stored.keep(response_id, backend, owner)
                    return backend
        except UpstreamError:
            continue
    return None

"""Images of a request: whether they are for the vision model, and what the text model reads in their place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from eyas.gateway.http.body import Raw
from eyas.router.manager.manager import Manager
from eyas.router.manager.visit import Wanted
from eyas.router.relay.asking import Asking
from eyas.router.relay.body import Body
from eyas.router.relay.names import MESSAGES, Named
from eyas.router.relay.shared import Shared
from eyas.router.routes.json_values import items
from eyas.router.settings.schema import RouterSettings
from eyas.router.sidecars.descriptions import PATIENCE_S, Descriptions, Session
from eyas.router.sidecars.images import Images, find_images, may_have_images
from eyas.router.sidecars.roles import sidecar_of
from eyas.router.upstream.upstream import Upstream

__all__ = ["described", "describing", "images_in", "model_for"]

LARGE = 256 << 10  # bytes of a body whose images are read in a thread: 1 MiB takes some 3 ms
ANSWER_S = 60.0  # for a description; Ollama loads the model first. Waiting for a place is not part of it
TOOLS = ("tools", "functions")


def describing(settings: RouterSettings, manager: Manager, upstream: Upstream) -> Descriptions | None:
    """Return descriptions by the vision model of a file; None if it has none."""
    vision = sidecar_of(settings, "vision")
    if vision is None:
        return None
    asking = Asking(vision, manager, upstream)

    async def ask(body: bytes, client: str) -> bytes:
        return await asking.ask(body, client, answer_s=ANSWER_S)

    return Descriptions(ask)


async def images_in(path: str, raw: Raw, body: Body, on_wait: Callable[[], None]) -> Images | None:
    """Return the images of a body; None if it has none. `on_wait` is called before it waits. Raises InvalidRequest."""
    if not may_have_images(path, raw):
        return None
    if len(raw) < LARGE:
        return find_images(path, body.fields)
    on_wait()
    return await asyncio.to_thread(find_images, path, body.fields)


def model_for(shared: Shared, path: str, named: Named, body: Body, images: Images | None) -> Named:
    """Return the vision model for a request without tools that is about an image and is for text models, else `named`.

    The conversation of a stored response is known to its own backend only.
    """
    vision = shared.vision
    if vision is None or images is None or not images.is_asked_about or path == MESSAGES:
        return named
    if named.model is not None and shared.names.role(named.model) != "text":
        return named
    if any(items(body.fields.get(name)) for name in TOOLS) or body.text("previous_response_id") is not None:
        return named
    return Named(model=vision.name, is_sidecar=True)


async def described(shared: Shared, body: Body, path: str, images: Images, wanted: Wanted) -> tuple[Body, bytes]:
    """Return the body as the text model can read it, and what was done in the words of a header.

    Backends do the same as the router does without a vision model, for `/v1/messages`.
    """
    descriptions, said = shared.descriptions, list[str | None]([None] * len(images.images))
    if descriptions is not None:
        session = Session(wanted.client, wanted.sticky)
        said = await descriptions.of(images.images, session, patience_s=_patience_s(shared, wanted))
    if descriptions is not None or path != MESSAGES:
        body = body.with_fields(images.replaced(said))
    num_omitted = said.count(None)
    return body, f"described={len(said) - num_omitted}, omitted={num_omitted}".encode()


def _patience_s(shared: Shared, wanted: Wanted) -> float:
    """Return how long a request may wait for descriptions: at most half of all its time."""
    budgets = (shared.settings.backend(name).budgets.with_spans(wanted.budgets) for name in wanted.backends)
    return min([PATIENCE_S, *(budget.total_s / 2 for budget in budgets if budget.total_s is not None)])

"""Asks the resident model something for the router itself: which route a prompt should take."""

from __future__ import annotations

from contextlib import aclosing

from eyas.base.errors import Unavailable
from eyas.router.manager.manager import Manager
from eyas.router.manager.visit import Go, Wanted
from eyas.router.relay.body import Body
from eyas.router.routes.choosing import Ask
from eyas.router.settings.schema import RouterSettings
from eyas.router.upstream.errors import UpstreamError
from eyas.router.upstream.upstream import Upstream

__all__ = ["ask_resident"]

PATH = "/v1/chat/completions"
CLIENT = "router"  # in the fairness of queues


def ask_resident(settings: RouterSettings, manager: Manager, upstream: Upstream) -> Ask:
    """Return a function that sends the body of a chat completion to the first model, as one more client of its queue.

    It returns the whole answer's body, and raises EyasError if there is none.
    """
    model = settings.models[0]

    async def ask(body: bytes) -> bytes:
        visit = manager.arrive(Wanted(model=model.name, backends=model.backends, client=CLIENT))
        try:
            async with aclosing(visit.news()) as all_news:
                async for news in all_news:
                    if isinstance(news, Go):
                        answer = await sent(news.backend, body)
                        visit.done()
                        return answer
        except UpstreamError as error:
            visit.failed(error.kind, error.detail)
            raise
        finally:
            visit.left()
        raise Unavailable("the resident model did not answer which route this is")

    async def sent(backend: str, body: bytes) -> bytes:
        name = upstream.address(backend).model or manager.condition(backend).model or model.name
        async with upstream.send(backend, "POST", PATH, body=Body.of(body).encoded(name)) as reply:
            answer = await reply.read()
            if reply.status >= 500:
                raise UpstreamError("status", f"status {reply.status}")
            return answer

    return ask

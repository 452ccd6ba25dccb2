"""Asks a model something for the router itself: which route a prompt should take, what an image shows."""

from __future__ import annotations

from contextlib import aclosing

from eyas.base.errors import Unavailable
from eyas.router.manager.manager import Manager
from eyas.router.manager.visit import Go, Visit, Wanted
from eyas.router.relay.body import Body
from eyas.router.relay.refusals import Full, Passed, read_refusal
from eyas.router.relay.whole import check_whole
from eyas.router.routes.choosing import Ask
from eyas.router.settings.schema import ModelSettings, RouterSettings
from eyas.router.upstream.errors import UpstreamError
from eyas.router.upstream.upstream import Upstream

__all__ = ["Asking", "ask_resident"]

PATH = "/v1/chat/completions"
CLIENT = "router"  # in the fairness of queues


def ask_resident(settings: RouterSettings, manager: Manager, upstream: Upstream) -> Ask:
    """Return a function that sends the body of a chat completion to the first model, as one more client of its queue.

    It returns the whole answer's body, and raises EyasError if there is none.
    """
    asking = Asking(settings.models[0], manager, upstream)

    async def ask(body: bytes) -> bytes:
        return await asking.ask(body)

    return ask


class Asking:
    """Sends chat completions of the router's own to a model, by its queue and breakers like any client's."""

    def __init__(self, model: ModelSettings, manager: Manager, upstream: Upstream) -> None:
        self._model, self._manager, self._upstream = model, manager, upstream

    async def ask(self, body: bytes, client: str = CLIENT, *, answer_s: float | None = None) -> bytes:
        """Return the body of a whole answer, from the first backend that has one. Raises EyasError if none has.

        A backend that has not answered within `answer_s` has failed.
        """
        visit = self._manager.arrive(Wanted(model=self._model.name, backends=self._model.backends, client=client))
        try:
            while True:
                go = await _place(visit)
                try:
                    answer = await self._sent(go.backend, body, answer_s)
                except Full as full:
                    visit.full(full.retry_after_s)
                except UpstreamError as error:
                    visit.failed(error.kind, error.detail)
                except Passed as passed:
                    visit.done()
                    raise Unavailable(f"{go.backend} refuses: {passed.failure.message}") from None
                else:
                    visit.done()
                    return answer
        finally:
            visit.left()

    async def _sent(self, backend: str, body: bytes, answer_s: float | None) -> bytes:
        address = self._upstream.address(backend)
        name = address.model or self._manager.condition(backend).model or self._model.name
        sent = Body.of(body).encoded(name)
        async with self._upstream.send(backend, "POST", PATH, body=sent, timeout_s=answer_s) as reply:
            if not 200 <= reply.status < 300:
                raise await read_refusal(reply, address.key)
            answer = await reply.read()
        check_whole(PATH, answer)
        return answer


async def _place(visit: Visit) -> Go:
    """Wait for a place at a backend. Raises NoBackend."""
    async with aclosing(visit.news()) as all_news:
        async for news in all_news:
            if isinstance(news, Go):
                return news
    raise Unavailable("the question was ended")

"""Chooses the route of a request: the one that it names, or what the classifier or the resident model says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Literal

from eyas.router.routes.classifier import Classifier
from eyas.router.routes.deciding import answer_of, question
from eyas.router.settings.schema import ROUTES, RouteName, RouterSettings, RouteSettings

__all__ = ["DECIDE_S", "Ask", "Routes"]

log = logging.getLogger(__name__)

Ask = Callable[[bytes], Awaitable[bytes]]
DECIDE_S = 5.0  # for the resident model's word; then the classifier decides
REMEMBERED = 1024  # prompts: a session of tool calls asks with the same one at each step


class Routes:
    """The routes of a router.

    `ask` sends the body of a chat completion to the resident model and returns the whole answer's body; it raises
    whatever it likes. `decide: model` needs it.
    """

    def __init__(self, settings: RouterSettings, ask: Ask | None, *, decide_s: float = DECIDE_S) -> None:
        self._routes = {route.name: route for route in settings.routes}
        self._names = tuple(name for name in ROUTES if name in self._routes)
        self._ask = ask if settings.decide == "model" else None
        self._model = settings.models[0].name
        self._decide_s = decide_s
        self._said: dict[str, RouteName] = {}

    async def choose(self, name: Literal["auto"] | RouteName, prompt: str) -> RouteSettings:
        """Return the route of that name; for "auto" the one for `prompt`. Raises KeyError if the file has none such."""
        if name != "auto":
            return self._routes[name]
        if not self._names:
            raise KeyError(name)
        if self._ask is None or not prompt:
            return self._routes[self._classified(prompt)]
        if (chosen := self._said.get(prompt)) is None:
            try:
                chosen = await self._asked(self._ask, prompt)
            except Exception as error:  # whatever keeps the resident model from choosing, the request is answered
                log.warning("the classifier chooses the route: %s", str(error) or type(error).__name__)
                return self._routes[self._classified(prompt)]
            if len(self._said) >= REMEMBERED:
                del self._said[next(iter(self._said))]
            self._said[prompt] = chosen
        return self._routes[chosen]

    def _classified(self, prompt: str) -> RouteName:
        return Classifier.shipped().route(prompt, self._names)

    async def _asked(self, ask: Ask, prompt: str) -> RouteName:
        async with asyncio.timeout(self._decide_s):
            body = await ask(question(prompt, model=self._model, among=self._names))
        return answer_of(body, self._names)

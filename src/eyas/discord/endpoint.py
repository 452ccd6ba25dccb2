"""The endpoint of the bot's file: the client with its fallbacks, what models it has, and how it stands."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeVar

import aiohttp
import msgspec
from msgspec import Struct

from eyas.client import AsyncClient
from eyas.client.endpoint.acceptance.pages import samples_of, sums_of
from eyas.client.endpoint.acceptance.sglang import GAUGE
from eyas.client.endpoint.acceptance.vllm import ACCEPTED, ROUNDS
from eyas.client.refusals import INVALID_JSON
from eyas.discord.settings.schema import Endpoint as EndpointSettings
from eyas.discord.settings.schema import Settings

__all__ = ["Endpoint"]

UNKNOWN = "the model"
TIMEOUT_S = 5.0  # of what is asked beside the model
FRESH_S = 30.0  # how long a list of models is used
MAX_BYTES = 4 << 20
RUNNING, QUEUED = "vllm:num_requests_running", "vllm:num_requests_waiting"
T = TypeVar("T")


class _Model(Struct):
    id: str
    max_model_len: int | None = None


class _Models(Struct):
    data: list[_Model]


class _Backend(Struct):
    name: str
    state: str
    in_flight: int = 0
    concurrency: int = 0
    reason: str = ""
    eta_s: int | None = None
    breaker: str = "closed"
    url: str | None = None


class _Queue(Struct):
    name: str
    queued: int = 0


class _RouterStatus(Struct):
    backends: list[_Backend]
    models: list[_Queue] = []


class Endpoint:
    """The first endpoint of a file, and its fallbacks. `close` it when no answer uses it any more."""

    def __init__(self, settings: Settings) -> None:
        self._first = settings.endpoint
        self._offer = settings.offer
        self.fallbacks = tuple(one.name for one in settings.fallbacks)
        self.client = AsyncClient(
            self._first.base_url,
            api_key=self._first.api_key,
            model=self._first.model,
            name=self._first.name,
            budgets=settings.budgets,
            fallbacks=[_client(one, settings) for one in settings.fallbacks],
        )
        self._base = self._first.base_url.rstrip("/").removesuffix("/v1")
        self._session: aiohttp.ClientSession | None = None
        self._models: tuple[_Model, ...] = ()
        self._listed_at: float | None = None

    @property
    def model(self) -> str:
        """The model of channels without a choice, as it is shown."""
        if self._first.model is not None:
            return self._first.model
        return self._models[0].id if self._models else UNKNOWN

    async def names(self, *, within_s: float | None = None) -> tuple[str, ...]:
        """Return the models and routes that may be chosen: those that the file offers, else those that are listed.

        If the list does not come in time, it is the last one.
        """
        offered = (*self._offer.models, *self._offer.routes)
        if offered:
            return offered
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self.look()
        return tuple(model.id for model in self._models)

    def context(self, model: str | None) -> int | None:
        """Return how many tokens a model takes, prompt and answer together; None if its server has not said."""
        name = model or self.model
        return next((one.max_model_len for one in self._models if one.id == name), None)

    async def look(self) -> bool:
        """Ask for the list of models if it is old, and return whether the endpoint answered when it was last asked."""
        now = asyncio.get_running_loop().time()
        if self._listed_at is not None and now < self._listed_at + FRESH_S:
            return True
        found = await self._json("/v1/models", _Models)
        if found is None:
            self._listed_at = None
            return False
        self._models, self._listed_at = tuple(found.data), now
        return True

    async def status(self) -> list[str]:
        """Return lines about the endpoint: of a router its backends and queues, of another server what it counts.

        A router knows the state of its backends; what they count themselves comes from each, if it can be reached.
        """
        self._listed_at = None  # not what was so half a minute ago
        router, samples, answers = await asyncio.gather(
            self._json("/router/status", _RouterStatus), self._samples(self._base), self.look()
        )
        if router is not None:
            counted = await asyncio.gather(*(self._samples(one.url) for one in router.backends))
            lines = [_line(one, list(_acceptance(its))) for one, its in zip(router.backends, counted, strict=True)]
            waiting = [f"{one.queued} for {one.name}" for one in router.models if one.queued]
            lines.append(f"Queue: {', '.join(waiting) or 'empty'}")
        elif not answers:
            return ["The endpoint does not answer."]
        else:
            lines = ["The endpoint answers."]
        return [*lines, *_figures(samples), *map(_capital, _acceptance(samples))]

    async def close(self) -> None:
        """Close all connections."""
        await self.client.close()
        if self._session is not None:
            await self._session.close()

    async def _json(self, path: str, kind: type[T]) -> T | None:
        body = await self._get(self._base + path, key=self._first.api_key)
        try:
            return None if body is None else msgspec.json.decode(body, type=kind)
        except INVALID_JSON:
            return None

    async def _samples(self, url: str | None) -> dict[str, float]:
        """Return the samples of the Prometheus text of a server, each summed over its labels.

        Only the endpoint itself gets its key.
        """
        if url is None:
            return {}
        base = url.rstrip("/").removesuffix("/v1")
        body = await self._get(f"{base}/metrics", key=self._first.api_key if base == self._base else None)
        try:
            return sums_of(samples_of((body or b"").decode()))
        except ValueError:
            return {}

    async def _get(self, url: str, *, key: str | None) -> bytes | None:
        """Return the body of an answer of success; None for all else."""
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S))
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        try:
            async with self._session.get(url, headers=headers, allow_redirects=False) as response:
                body = await response.content.read(MAX_BYTES) if response.status == 200 else None
                while body is not None and len(body) < MAX_BYTES and (more := await response.content.read(MAX_BYTES)):
                    body += more
                return body
        except (aiohttp.ClientError, OSError):
            return None


def _client(one: EndpointSettings, settings: Settings) -> AsyncClient:
    return AsyncClient(one.base_url, api_key=one.api_key, model=one.model, name=one.name, budgets=settings.budgets)


def _line(one: _Backend, counted: list[str]) -> str:
    more = [f"{one.in_flight} of {one.concurrency} answers"]
    if one.eta_s is not None:
        more.append(f"ready in about {one.eta_s} s")
    if one.breaker != "closed":
        more.append(f"breaker {one.breaker}")
    return f"{one.name}: {one.state}, {', '.join([*more, *counted])}"


def _figures(samples: dict[str, float]) -> Iterator[str]:
    """Yield what an engine's own metrics say of its load."""
    if RUNNING in samples:
        yield f"{samples[RUNNING]:.0f} answers run, {samples.get(QUEUED, 0):.0f} wait"


def _acceptance(samples: dict[str, float]) -> Iterator[str]:
    """Yield what an engine's own metrics say of its speculation, if they do."""
    if samples.get(ROUNDS):
        yield f"acceptance length {1 + samples.get(ACCEPTED, 0) / samples[ROUNDS]:.2f} tokens per round"
    elif samples.get(GAUGE):
        yield f"acceptance length {samples[GAUGE]:.2f} tokens per round"


def _capital(line: str) -> str:
    return line[:1].upper() + line[1:]

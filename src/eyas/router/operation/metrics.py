"""Prometheus metrics of a router, all named `eyas:router_`, and those of its process.

There are three sources: the status, read at each scrape; what happens at the manager; outcomes and trips of the relay.
Every series of a backend, model or route of the file is there from the start, so that its first increase is seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from eyas.base.histogram import Histogram
from eyas.base.serving.failures import FAILURES
from eyas.gateway.operation import buckets
from eyas.router.manager.condition import CAUSES
from eyas.router.manager.happenings import Happening
from eyas.router.operation.families import Family, Labels, counter, family, gauge, histogram, zeros
from eyas.router.operation.memory_metrics import MemoryMetrics
from eyas.router.operation.status import BREAKERS, STATES, RouterStatus
from eyas.router.relay.outcome import Outcome, Trip

__all__ = ["Metrics"]

TRIPS = ("degenerate", "one_symbol")
ACTIONS = ("observe", "act")


class Metrics(Collector):
    """Counts, and writes the page `/metrics`. Used in one thread, that of the event loop."""

    def __init__(self, status: Callable[[], RouterStatus]) -> None:
        self._status = status
        now = status()
        backends, models = [one.name for one in now.backends], [one.name for one in now.models]
        self._sent = zeros((name,) for name in backends)
        self._full = zeros((name,) for name in backends)
        self._opened = zeros((name,) for name in backends)
        self._loops = zeros((name,) for name in backends)
        self._failures = zeros((name, kind) for name in backends for kind in FAILURES)
        self._trips = zeros((name, kind, action) for name in backends for kind in TRIPS for action in ACTIONS)
        self._fallbacks = zeros((name,) for name in models)
        self._refused = zeros((name,) for name in models)
        self._routes = zeros((one.name,) for one in now.routes)
        self._requests: Counter[Labels] = Counter()
        self._errors: Counter[Labels] = Counter()
        self._queue = {name: Histogram(buckets.LATENCY) for name in models}
        self._ttft = {name: Histogram(buckets.TTFT) for name in models}
        self._e2e = {name: Histogram(buckets.LATENCY) for name in models}
        self._memory = MemoryMetrics(lambda: status().pools)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """Return the page, in Prometheus' text format 0.0.4."""
        return generate_latest(self._registry)

    def answered(self, status: int) -> None:
        """Count an HTTP answer by its status if it is an error."""
        if status >= 400:
            self._errors[str(status),] += 1

    def happened(self, event: Happening) -> None:
        """Count what happened at the manager."""
        name = event.backend or ""
        if event.kind == "sent":
            self._sent[name,] += 1
        elif event.kind == "failed":
            self._failures[name, event.failure or "broken"] += 1
        elif event.kind == "full":
            self._full[name,] += 1
        elif event.kind == "refused":
            self._refused[event.model or "",] += 1
        elif event.kind == "loops":
            self._loops[name,] += 1
        elif event.kind == "breaker" and event.breaker == "open":
            self._opened[name,] += 1
        elif event.kind == "memory":
            self._memory.happened(event)

    def record(self, news: Outcome | Trip) -> None:
        """Count a finished request, or what a guard found."""
        if isinstance(news, Trip):
            self._trips[news.backend, news.kind, news.action] += 1
            return
        self._requests[news.path, str(news.status)] += 1
        if news.route is not None:
            self._routes[news.route,] += 1
        if news.model not in self._e2e:
            return
        self._e2e[news.model].add(news.e2e_s)
        self._fallbacks[news.model,] += max(0, news.num_asked - 1)
        if news.queue_s is not None:
            self._queue[news.model].add(news.queue_s)
        if news.ttft_s is not None:
            self._ttft[news.model].add(news.ttft_s)

    def collect(self) -> Iterable[Family]:
        """Yield all metrics; the registry calls this at each scrape."""
        status = self._status()
        yield from _backend_families(status)
        yield from _model_families(status)
        yield from self._backend_counters()
        yield from self._request_families()
        yield from self._memory.families()

    def _backend_counters(self) -> Iterable[Family]:
        yield counter("sent", "Requests that were sent to a backend, tries of one request included.", ["backend"],
                      self._sent)  # fmt: skip
        yield counter("failures", "Failures of a backend by kind; not 4xx, 429 and clients that left.",
                      ["backend", "kind"], self._failures)  # fmt: skip
        yield counter("full", "Answers of a backend that it is full (429).", ["backend"], self._full)
        yield counter("breaker_opened", "Times that a breaker opened.", ["backend"], self._opened)
        yield counter("guard_trips", "Answers that repeat themselves by kind, and whether they were ended.",
                      ["backend", "kind", "action"], self._trips)  # fmt: skip
        yield counter("loops", "Times that a backend repeated one symbol twice in 10 minutes.", ["backend"],
                      self._loops)  # fmt: skip

    def _request_families(self) -> Iterable[Family]:
        yield counter("requests", "Requests by path and HTTP status; 499: the client disconnected.",
                      ["path", "status"], self._requests)  # fmt: skip
        yield counter("fallbacks", "Further backends that requests were sent to.", ["model"], self._fallbacks)
        yield counter("refused", "Requests that no backend could take.", ["model"], self._refused)
        yield counter("routes", "Requests by the route that decided.", ["route"], self._routes)
        yield family(CounterMetricFamily, "eyas:http_errors", "Error answers by status, refused requests included.",
                     ["status"], self._errors)  # fmt: skip
        yield histogram("queue_time_seconds", "Time from a request's arrival to the first backend.", "model",
                        self._queue)  # fmt: skip
        yield histogram("time_to_first_content_seconds",
                        "Time from a request's arrival to the first content of its stream.", "model",
                        self._ttft)  # fmt: skip
        yield histogram("e2e_seconds", "Time from a request's arrival to its end.", "model", self._e2e)


def _backend_families(status: RouterStatus) -> Iterable[Family]:
    backends = status.backends
    yield gauge("backend_condition", "1 for the condition of a backend.", ["backend", "state"],
                {(one.name, state): one.state == state for one in backends for state in STATES})  # fmt: skip
    yield gauge("backend_out", "1 for the cause that a backend is out by.", ["backend", "cause"],
                {(one.name, cause): one.cause == cause for one in backends for cause in CAUSES})  # fmt: skip
    yield gauge("backend_breaker", "1 for the state of a backend's breaker.", ["backend", "state"],
                {(one.name, state): one.breaker == state for one in backends for state in BREAKERS})  # fmt: skip
    yield gauge("backend_in_flight", "Requests that a backend is answering.", ["backend"],
                {(one.name,): one.in_flight for one in backends})  # fmt: skip
    yield gauge("backend_concurrency", "Requests that a backend gets at once.", ["backend"],
                {(one.name,): one.concurrency for one in backends})  # fmt: skip


def _model_families(status: RouterStatus) -> Iterable[Family]:
    models = status.models
    yield gauge("model_backends", "Backends of a model.", ["model"], {(one.name,): len(one.backends) for one in models})
    yield gauge("model_backends_available", "Backends of a model that are ready and whose breaker is not open.",
                ["model"], {(one.name,): one.num_available for one in models})  # fmt: skip
    yield gauge("queued", "Requests that wait, by model.", ["model"], {(one.name,): one.queued for one in models})
    yield gauge("queue_limit", "Requests that may wait, over all models.", [], {(): status.max_queue})

"""Prometheus metrics: vLLM's names where it has one, so that dashboards made for it work; `eyas:` for the rest.

There are two sources: the engine's counters, read at each scrape, and the outcome of each request.
Names are those of vLLM 0.25 to 0.33; each series has vLLM's labels `model_name` and `engine`, which is 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from eyas.base.histogram import Histogram
from eyas.base.ports import EnginePort
from eyas.base.types import EngineStats, FinishReason
from eyas.gateway.http.outcome import CLIENT_LEFT, Outcome
from eyas.gateway.operation import buckets
from eyas.gateway.server.tallies import Tallies

__all__ = ["CONTENT_TYPE", "EngineCounters", "Metrics", "kv_usage"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
GAUGES = frozenset({"num_running", "num_waiting"})
Family = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily

ENGINE = "0"  # vLLM numbers the engines of a server; there is one here


class EngineCounters:
    """The engine's statistics with counters that only ever grow: a restarted engine counts from zero again."""

    def __init__(self, engine: EnginePort) -> None:
        self._engine = engine
        self._before: dict[str, int] = {}
        self._last: dict[str, int] = {}

    def read(self) -> tuple[EngineStats, Mapping[str, int]]:
        """Return the current statistics, and the counters since the server started."""
        stats = self._engine.stats()
        totals = {}
        for item in fields(stats):
            value = getattr(stats, item.name)
            if not isinstance(value, int) or item.name in GAUGES:
                continue
            last = self._last.get(item.name, 0)
            if value < last:
                self._before[item.name] = self._before.get(item.name, 0) + last
            self._last[item.name] = value
            totals[item.name] = self._before.get(item.name, 0) + value
        return stats, totals


def kv_usage(stats: EngineStats) -> float:
    """Return the share of pages in use, 0 to 1, of the fullest group, which is the one that makes requests wait."""
    shares = [stats.pages_used.get(name, 0) / total for name, total in stats.pages_total.items() if total]
    return max(shares, default=0.0)


class Metrics(Collector):
    """Counts outcomes and writes the page `/metrics`. Used in one thread, that of the event loop.

    `num_viewers` is called at scrape time: the number of live views and traces.
    """

    def __init__(
        self,
        engine: EnginePort,
        model_name: str,
        *,
        counters: EngineCounters | None = None,
        num_viewers: Callable[[], int] = lambda: 0,
        tallies: Tallies | None = None,
    ) -> None:
        self._engine = engine
        self._counters = counters or EngineCounters(engine)
        self._num_viewers = num_viewers
        self._tallies = tallies or Tallies()
        self._labels = {"model_name": model_name, "engine": ENGINE}
        self._finished: Counter[str] = Counter({str(FinishReason.STOP): 0, str(FinishReason.LENGTH): 0})
        self._statuses: Counter[tuple[str, str]] = Counter()
        self._errors: Counter[str] = Counter()
        self._rounds = self._drafted = self._accepted = 0
        self._positions: Counter[int] = Counter()
        self._ttft = Histogram(buckets.TTFT)
        self._per_token = Histogram(buckets.PER_TOKEN)
        self._inter_token = Histogram(buckets.PER_TOKEN)
        self._e2e = Histogram(buckets.LATENCY)
        self._queue = Histogram(buckets.LATENCY)
        self._prefill = Histogram(buckets.LATENCY)
        self._decode = Histogram(buckets.LATENCY)
        self._inference = Histogram(buckets.LATENCY)
        self._prompt = Histogram(buckets.TOKENS)
        self._computed = Histogram(buckets.TOKENS)
        self._generation = Histogram(buckets.TOKENS)
        self._longest = Histogram(buckets.TOKENS)
        self._max_tokens = Histogram(buckets.TOKENS)
        self._n = Histogram(buckets.CHOICES)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        ProcessCollector(namespace="eyas:engine", pid=lambda: engine.pid or "none", registry=self._registry)

    def text(self) -> bytes:
        """Return the page, in Prometheus' text format 0.0.4."""
        return generate_latest(self._registry)

    def answered(self, status: int) -> None:
        """Count an HTTP answer by its status if it is an error."""
        if status >= 400:
            self._errors[str(status)] += 1

    def record(self, outcome: Outcome) -> None:
        """Count a finished request."""
        self._statuses[outcome.route, str(outcome.status)] += 1
        self._finished.update(outcome.finishes)
        self._rounds += outcome.num_rounds
        self._drafted += outcome.num_drafted
        self._accepted += outcome.num_accepted
        for position, count in enumerate(outcome.accepted_per_position):
            self._positions[position] += count
        self._prompt.add(outcome.num_prompt)
        self._n.add(outcome.n)
        if outcome.max_tokens is not None:
            self._max_tokens.add(outcome.max_tokens)
        if outcome.ttft_s is None:
            return
        self._ttft.add(outcome.ttft_s)
        self._generation.add(outcome.num_tokens)
        self._longest.add(outcome.max_num_tokens)
        self._computed.add(outcome.num_prompt - outcome.num_cached)
        self._e2e.add(outcome.e2e_s)
        self._queue.add(outcome.queue_s)
        self._prefill.add(outcome.ttft_s - outcome.queue_s)
        self._decode.add(outcome.last_s - outcome.ttft_s)
        self._inference.add(outcome.last_s - outcome.queue_s)
        if outcome.num_tokens > outcome.n:
            seconds = (outcome.e2e_s - outcome.ttft_s) * outcome.n / (outcome.num_tokens - outcome.n)
            self._per_token.add(seconds)
            self._inter_token.add(seconds, outcome.num_tokens - outcome.n)

    def collect(self) -> Iterable[Family]:
        """Yield all metrics; the registry calls this at each scrape."""
        stats, totals = self._counters.read()
        yield from self._engine_families(stats, totals)
        yield from self._speculation_families()
        yield from self._request_families()
        yield self._counter("eyas:engine_restarts", "Restarts of the engine process.", totals["num_restarts"])
        yield self._gauge(
            "eyas:engine_up", "1 while the engine serves, 0 while it does not.", self._engine.failure is None
        )
        yield self._gauge(
            "eyas:simulated",
            "1 where all here is SIMULATED: random weights, or none. Speeds are real, answers and acceptance are not.",
            self._engine.info.simulated,
        )
        yield self._gauge(
            "eyas:step_listeners", "Live views and traces that observe the engine's steps.", self._num_viewers()
        )
        yield from self._tally_families()

    def _engine_families(self, stats: EngineStats, totals: Mapping[str, int]) -> Iterable[Family]:
        yield self._gauge("vllm:num_requests_running", "Running sequences.", stats.num_running)
        yield self._gauge("vllm:num_requests_waiting", "Sequences that wait for capacity.", stats.num_waiting)
        yield self._labelled(
            "vllm:num_requests_waiting_by_reason",
            "Waiting sequences by reason: for capacity, or deferred, which does not happen here.",
            "reason",
            {"capacity": stats.num_waiting, "deferred": 0},
            GaugeMetricFamily,
        )
        yield self._labelled(
            "vllm:engine_sleep_state",
            "1 for the engine's state: it is always awake.",
            "sleep_state",
            {"awake": 1, "weights_offloaded": 0, "discard_all": 0},
            GaugeMetricFamily,
        )
        yield self._cache_config(stats)
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of KV pages in use, 0 to 1.", kv_usage(stats))
        named = {
            "vllm:prompt_tokens": ("num_prompt_tokens", "Prompt tokens, cached ones included."),
            "vllm:generation_tokens": ("num_generated_tokens", "Tokens generated."),
            "vllm:prompt_tokens_cached": ("num_cached_tokens", "Prompt tokens served from the prefix cache."),
            "vllm:prefix_cache_queries": ("num_prompt_tokens", "Prompt tokens looked up in the prefix cache."),
            "vllm:prefix_cache_hits": ("num_cached_tokens", "Prompt tokens found in the prefix cache."),
            "vllm:num_preemptions": ("num_preemptions", "Sequences preempted and put back into the queue."),
            "eyas:engine_rounds": ("num_rounds", "Rounds computed by the engine."),
        }
        for name, (field, text) in named.items():
            yield self._counter(name, text, totals[field])
        num_cached = totals["num_cached_tokens"]
        yield self._labelled(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens computed, and those from the prefix cache.",
            "source",
            {"local_compute": totals["num_prompt_tokens"] - num_cached, "local_cache_hit": num_cached,
             "external_kv_transfer": 0},
        )  # fmt: skip
        pages = GaugeMetricFamily(
            "eyas:kv_pages", "KV pages by group and state.", labels=[*self._labels, "group", "state"]
        )
        for group, total in stats.pages_total.items():
            used = stats.pages_used.get(group, 0)
            pages.add_metric([*self._labels.values(), group, "used"], used)
            pages.add_metric([*self._labels.values(), group, "total"], total)
        yield pages
        yield self._labelled(
            "eyas:memory_bytes", "Device memory by owner.", "owner", stats.memory_bytes, GaugeMetricFamily
        )

    def _cache_config(self, stats: EngineStats) -> GaugeMetricFamily:
        """Return vLLM's `cache_config_info`, with those of its labels that apply here."""
        page_size, num_pages = self._engine.info.page_size, stats.pages_total.get("full", 0)
        labels = self._labels | {
            "block_size": str(page_size),
            "num_gpu_blocks": str(num_pages),
            "kv_cache_size_tokens": str(page_size * num_pages),
            "enable_prefix_caching": "True",
        }
        family = GaugeMetricFamily("vllm:cache_config_info", "Constants of the KV cache.", labels=list(labels))
        family.add_metric(list(labels.values()), 1)
        return family

    def _speculation_families(self) -> Iterable[Family]:
        """Yield metrics of finished requests only, so that they are consistent with each other."""
        yield self._counter("vllm:spec_decode_num_drafts", "Rounds of sequences, with drafts or without.", self._rounds)
        yield self._counter("vllm:spec_decode_num_draft_tokens", "Tokens drafted.", self._drafted)
        yield self._counter("vllm:spec_decode_num_accepted_tokens", "Drafted tokens accepted.", self._accepted)
        yield self._labelled(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted tokens by position in the draft, from 0.",
            "position", {str(position): count for position, count in sorted(self._positions.items())},
        )  # fmt: skip

    def _request_families(self) -> Iterable[Family]:
        yield self._labelled(
            "vllm:request_success",
            "Choices that ended, by reason.",
            "finished_reason",
            dict(sorted(self._finished.items())),
        )
        statuses = CounterMetricFamily(
            "eyas:requests", "Requests to the engine by route and HTTP status; 499: the client disconnected.",
            labels=[*self._labels, "route", "status"],
        )  # fmt: skip
        for (route, status), count in sorted(self._statuses.items()):
            statuses.add_metric([*self._labels.values(), route, status], count)
        yield statuses
        left = sum(count for (_, status), count in self._statuses.items() if status == str(CLIENT_LEFT))
        yield self._counter(
            "eyas:clients_left", "Requests whose client disconnected before the answer was complete.", left
        )
        yield self._labelled(
            "eyas:http_errors", "Error answers by status, refused requests included.", "status", self._errors
        )
        described = (
            ("vllm:time_to_first_token_seconds", "Time from submitting to the first token.", self._ttft),
            (
                "vllm:inter_token_latency_seconds",
                "Time between tokens; each token counts with its request's mean.",
                self._inter_token,
            ),
            ("vllm:request_time_per_output_token_seconds", "Mean time per token after the first.", self._per_token),
            ("vllm:e2e_request_latency_seconds", "Time from submitting to the last token.", self._e2e),
            ("vllm:request_queue_time_seconds", "Time from submitting to the launch of the first step.", self._queue),
            (
                "vllm:request_prefill_time_seconds",
                "Time from the launch of the first step to the first token.",
                self._prefill,
            ),
            ("vllm:request_decode_time_seconds", "Time from the first token to the last.", self._decode),
            ("vllm:request_inference_time_seconds", "Time of prefill and decode.", self._inference),
            (
                "vllm:iteration_tokens_total",
                "Tokens per step: prompt tokens computed, and tokens generated.",
                self._engine.step_tokens,
            ),
            ("vllm:request_prompt_tokens", "Prompt tokens of a request.", self._prompt),
            ("vllm:request_generation_tokens", "Tokens generated for a request.", self._generation),
            ("vllm:request_max_num_generation_tokens", "Tokens of the longest choice.", self._longest),
            ("vllm:request_prefill_kv_computed_tokens", "Prompt tokens not in the prefix cache.", self._computed),
            ("vllm:request_params_max_tokens", "Values of max_tokens in requests.", self._max_tokens),
            ("vllm:request_params_n", "Choices per request.", self._n),
        )
        for name, text, values in described:
            family = HistogramMetricFamily(name, text, labels=list(self._labels))
            family.add_metric(list(self._labels.values()), *values.buckets())
            yield family

    def _tally_families(self) -> Iterable[Family]:
        for tally, counts in self._tallies.items():
            family = CounterMetricFamily(tally.name, tally.text, labels=[*self._labels, *tally.labels])
            for values, count in sorted(counts.items()):
                family.add_metric([*self._labels.values(), *values], count)
            yield family

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), float(value))
        return family

    def _counter(self, name: str, text: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), float(value))
        return family

    def _labelled(
        self,
        name: str,
        text: str,
        label: str,
        counts: Mapping[str, int],
        kind: type[CounterMetricFamily] | type[GaugeMetricFamily] = CounterMetricFamily,
    ) -> CounterMetricFamily | GaugeMetricFamily:
        family = kind(name, text, labels=[*self._labels, label])
        for value, count in counts.items():
            family.add_metric([*self._labels.values(), value], count)
        return family

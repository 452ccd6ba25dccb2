"""TensorRT-LLM: counters by position, or statistics of iterations, which reading empties.

Sources: tensorrt_llm/metrics/collector.py of 1.3 (`return_perf_metrics: true`, counted when a request is over; draft 0
is drafted once in each round that drafts, as examples/.../dspark_acceptance_disagg.py counts); `specDecodingStats` in
cpp/include/tensorrt_llm/executor/types.h, of which the server keeps the last 1,000 iterations (TensorRT-LLM#19311).
"""

from __future__ import annotations

import httpx
from msgspec import Struct

from eyas.client.endpoint.acceptance.counts import Counts, Reading
from eyas.client.endpoint.acceptance.pages import json_page, metrics_page

__all__ = ["read"]

PROMETHEUS, ITERATIONS = "/prometheus/metrics", "/metrics"
DRAFTED = "trtllm_spec_decode_drafted_tokens_total"
ACCEPTED = "trtllm_spec_decode_accepted_tokens_total"
GAUGE = "trtllm_spec_decode_acceptance_length"  # of the last iteration
MAX_KEPT = 1000


class _Speculation(Struct):
    numRequestsWithDraftTokens: int = 0
    numAcceptedTokens: int = 0
    numDraftTokens: int | None = None


class _Iteration(Struct):
    specDecodingStats: _Speculation | None = None


def read(client: httpx.Client) -> Reading:
    """Read the counters; without them the iterations that have not been read yet; without those the gauge."""
    metrics = metrics_page(client, PROMETHEUS)
    if metrics is not None and (drafted := metrics.by("token_position", DRAFTED)):
        accepted = metrics.by("token_position", ACCEPTED)
        counts = Counts.of_positions(drafted[0], accepted, source=PROMETHEUS, drafted=sum(drafted))
        return Reading(source=PROMETHEUS, counts=counts, started=metrics.started())
    iterations = json_page(client, ITERATIONS, list[_Iteration])
    if iterations:
        return _drained(iterations)
    if metrics is not None and (gauge := metrics.gauge(GAUGE)) is not None:
        reason = f"its {PROMETHEUS} counts no drafts by position"
        return Reading(source=PROMETHEUS, length=gauge, is_recent=True, not_offered=reason)
    if iterations is None:
        return Reading(source=ITERATIONS, not_offered="it says no statistics: set return_perf_metrics: true")
    return Reading(source=ITERATIONS, counts=Counts(rounds=0, accepted=0, source=ITERATIONS), is_drained=True)


def _drained(iterations: list[_Iteration]) -> Reading:
    if len(iterations) >= MAX_KEPT:
        reason = f"it keeps {MAX_KEPT:,} iterations and there were more: set return_perf_metrics: true"
        return Reading(source=ITERATIONS, not_offered=reason)
    found = [one.specDecodingStats for one in iterations if one.specDecodingStats is not None]
    if not found:
        return Reading(
            source=ITERATIONS, not_offered="its iterations say nothing of drafts: it runs without speculation"
        )
    drafted = [one.numDraftTokens for one in found if one.numDraftTokens is not None]
    counts = Counts(
        rounds=sum(one.numRequestsWithDraftTokens for one in found),
        accepted=sum(one.numAcceptedTokens for one in found),
        drafted=sum(drafted) if len(drafted) == len(found) else None,
        source=ITERATIONS,
    )
    return Reading(source=ITERATIONS, counts=counts, is_drained=True)

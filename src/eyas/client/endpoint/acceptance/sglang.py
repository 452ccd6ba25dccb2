"""SGLang: two counters of finished requests, a mean of its own, and of a request its histogram.

Sources: python/sglang/srt of SGLang 0.5.6 to 0.5.23, in it observability/metrics_collector.py
(`observe_one_finished_request`) and managers/scheduler.py (`avg_spec_accept_length`, bonus token included); the field
of a request: sglang#33518. An answer has one token of the prompt's pass, and of each verify pass its accepted drafts
and one more: sglang#13754 shows 200 tokens = 1 + 188 passes + 11 accepted drafts.
"""

from __future__ import annotations

from collections.abc import Sequence

import httpx
from msgspec import Struct

from eyas.client.endpoint.acceptance.counts import Counts, Reading, total
from eyas.client.endpoint.acceptance.pages import json_page, metrics_page, said

__all__ = ["FIELDS", "GAUGE", "of_answer", "read"]

PATH = "/metrics"
GENERATED = "sglang:generation_tokens_total"
REQUESTS = "sglang:num_requests_total"
ROUNDS = "sglang:spec_verify_calls_total"
GAUGE = "sglang:spec_accept_length"  # the mean of its last forty steps
FIELDS = {"return_spec_tokens_details": True}
SOURCE = "sglext.spec_tokens_details"


class _State(Struct):
    avg_spec_accept_length: float | None = None


class _ServerInfo(Struct):
    internal_states: list[_State] = []


class _Details(Struct):
    spec_verify_ct: int = 0
    spec_num_correct_drafts: int = 0
    spec_num_proposed_drafts: int | None = None
    spec_correct_drafts_histogram: list[int] = []


class _Ext(Struct):
    spec_tokens_details: _Details | list[_Details] | None = None  # a list for several choices


class _Answer(Struct):
    sglext: _Ext | None = None


def read(client: httpx.Client) -> Reading:
    """Read the counters of finished requests (`--enable-metrics`), else the mean that its scheduler keeps."""
    metrics = metrics_page(client, PATH)
    found = None if metrics is None else metrics.counts(GENERATED, REQUESTS, ROUNDS)
    if metrics is not None and found is not None and found[2]:
        generated, requests, rounds = found
        counts = Counts(rounds=rounds, accepted=max(0, generated - requests - rounds), source=PATH)
        return Reading(source=PATH, counts=counts, started=metrics.started())
    for path in ("/server_info", "/get_server_info"):
        info = json_page(client, path, _ServerInfo)
        known = (
            [one.avg_spec_accept_length for one in info.internal_states if one.avg_spec_accept_length] if info else []
        )
        if known:
            return Reading(source=path, length=sum(known) / len(known), not_offered=_reason(found is not None))
    gauge = None if metrics is None else metrics.gauge(GAUGE)
    reason = _reason(metrics is not None)
    if gauge is not None:
        return Reading(source=PATH, length=gauge, is_recent=True, not_offered=reason)
    if found is not None:  # no verify pass yet
        nothing = Counts(rounds=0, accepted=0, source=PATH)
        return Reading(source=PATH, counts=nothing, started=metrics.started() if metrics is not None else ())
    return Reading(source=PATH, not_offered=reason)


def _reason(has_metrics: bool) -> str:
    return f"its {PATH} counts no verify passes" if has_metrics else f"it has no {PATH}: start it with --enable-metrics"


def of_answer(events: Sequence[bytes]) -> Counts | None:
    """Return the counts of one request, or of all its choices, that was asked with FIELDS."""
    for answer in said(events, _Answer):
        if answer.sglext is not None and (details := answer.sglext.spec_tokens_details) is not None:
            return total(_counts(one) for one in (details if isinstance(details, list) else [details]))
    return None


def _counts(one: _Details) -> Counts:
    histogram, drafted = one.spec_correct_drafts_histogram, one.spec_num_proposed_drafts
    if sum(histogram) == one.spec_verify_ct:
        return Counts.of_histogram(histogram, source=SOURCE, drafted=drafted)
    return Counts(rounds=one.spec_verify_ct, accepted=one.spec_num_correct_drafts, drafted=drafted, source=SOURCE)

"""vLLM: counters by position, and of a request what `--per-request-spec-decode-metrics` adds to its answer.

Source: vllm/v1/spec_decode/metrics.py of vLLM 0.14 to 0.33 (counters exist only where speculation is on; its own log
has 1 + accepted / drafts); the fields of an answer: vllm-project/vllm#48915, in releases after 0.28.
"""

from __future__ import annotations

from collections.abc import Sequence

import httpx
from msgspec import Struct

from eyas.client.endpoint.acceptance.counts import Counts, Reading
from eyas.client.endpoint.acceptance.pages import Metrics, metrics_page, said

__all__ = ["ACCEPTED", "DRAFTED", "ROUNDS", "counts_in", "of_answer", "read"]

PATH = "/metrics"
ROUNDS = "vllm:spec_decode_num_drafts_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
CREATED = "vllm:spec_decode_num_drafts_created"  # when the counter was made, that is, when the server started


class _Speculation(Struct):
    acceptance_histogram: list[int]
    num_draft_tokens: int | None = None


class _Metrics(Struct):
    speculative_decoding: _Speculation | None = None


class _Answer(Struct):
    metrics: _Metrics | None = None


def read(client: httpx.Client) -> Reading:
    """Read the counters since the server started."""
    metrics = metrics_page(client, PATH)
    if metrics is None:
        return Reading(source=PATH, not_offered=f"its {PATH} cannot be read")
    counts = counts_in(metrics)
    if counts is None:
        return Reading(source=PATH, not_offered=f"its {PATH} counts no drafts: it runs without speculation")
    return Reading(source=PATH, counts=counts, started=metrics.started(CREATED))


def counts_in(metrics: Metrics) -> Counts | None:
    """Return the counters under vLLM's names; None if one is missing."""
    found = metrics.counts(ROUNDS, ACCEPTED, DRAFTED)
    if found is None:
        return None
    rounds, accepted, drafted = found
    positions = metrics.by("position", BY_POSITION)
    if sum(positions) != accepted:
        return Counts(rounds=rounds, accepted=accepted, drafted=drafted, source=PATH)
    return Counts.of_positions(rounds, positions, source=PATH, drafted=drafted)


def of_answer(events: Sequence[bytes]) -> Counts | None:
    """Return the counts of one request, `metrics.speculative_decoding`."""
    for answer in said(events, _Answer):
        if answer.metrics is not None and (found := answer.metrics.speculative_decoding) is not None:
            source = "metrics.speculative_decoding"
            return Counts.of_histogram(found.acceptance_histogram, source=source, drafted=found.num_draft_tokens)
    return None

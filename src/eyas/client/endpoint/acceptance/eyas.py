"""Ours: vLLM's names, in `/metrics` and in every answer.

Unlike vLLM's, its rounds include those without drafts (`gateway/operation/metrics.py`), each of which commits one
token: with `--draft-tokens auto` the acceptance length is that of all rounds. Counted are requests that are over.
"""

from __future__ import annotations

import httpx

from eyas.client.endpoint.acceptance.counts import Reading
from eyas.client.endpoint.acceptance.pages import metrics_page
from eyas.client.endpoint.acceptance.vllm import counts_in, of_answer

__all__ = ["of_answer", "read"]

PATH = "/metrics"
RESTARTS = "eyas:engine_restarts_total"


def read(client: httpx.Client) -> Reading:
    """Read the counters since the server started; a restart of its engine process is one of the server."""
    metrics = metrics_page(client, PATH)
    counts = None if metrics is None else counts_in(metrics)
    if metrics is None or counts is None:
        return Reading(source=PATH, not_offered=f"its {PATH} cannot be read")
    return Reading(source=PATH, counts=counts, started=metrics.started(RESTARTS))

"""llama-server: counters by position (`--metrics`), and of a request its `timings`.

Source: tools/server of llama.cpp 0.5.0, server-task.cpp (`server_task_result_metrics::to_metrics`), server-context.cpp
(`print_timings`: mean length = 1 + accepted / verify passes) and server-common.cpp (`server_slot_stats::to_json`).
"""

from __future__ import annotations

from collections.abc import Sequence

import httpx
from msgspec import Struct

from eyas.client.endpoint.acceptance.counts import Counts, Reading
from eyas.client.endpoint.acceptance.pages import metrics_page, said

__all__ = ["of_answer", "read"]

PATH = "/metrics"
ROUNDS = "llamacpp:spec_decode_num_drafts_total"
ACCEPTED = "llamacpp:spec_decode_num_accepted_tokens_total"
DRAFTED = "llamacpp:spec_decode_num_draft_tokens_total"
BY_POSITION = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"


class _Timings(Struct):
    predicted_n: int = 0
    draft_n: int = 0
    draft_n_accepted: int = 0


class _Choice(Struct):
    finish_reason: str | None = None


class _Event(Struct):
    choices: list[_Choice] = []
    timings: _Timings | None = None


def read(client: httpx.Client) -> Reading:
    """Read the counters of requests that are over. All stay 0 without a draft model, and before the first draft."""
    metrics = metrics_page(client, PATH)
    if metrics is None:
        return Reading(source=PATH, not_offered=f"it has no {PATH}: start it with --metrics")
    found = metrics.counts(ROUNDS, ACCEPTED, DRAFTED)
    if found is None:
        return Reading(source=PATH, not_offered=f"its {PATH} counts no drafts: its build is older than 0.5.0")
    rounds, accepted, drafted = found
    positions = metrics.by("position", BY_POSITION)
    if sum(positions) == accepted:
        counts = Counts.of_positions(rounds, positions, source=PATH, drafted=drafted)
    else:
        counts = Counts(rounds=rounds, accepted=accepted, drafted=drafted, source=PATH)
    return Reading(source=PATH, counts=counts)


def of_answer(events: Sequence[bytes]) -> Counts | None:
    """Return the counts of one request from its `timings`, if its answer was cut at `max_tokens`; else None.

    They do not say how many passes there were. All tokens but the first, which is of the prompt's pass, and the
    accepted drafts are one of a pass each, those without drafts included. An answer that ends by itself may end in the
    midst of accepted drafts, which are counted and not sent: with 3 drafts that made a length of 4.33 out of 40 tokens.
    """
    found = list(said(events, _Event))
    timings = next((one.timings for one in found if one.timings is not None and one.timings.draft_n), None)
    if timings is None or all(choice.finish_reason != "length" for one in found for choice in one.choices):
        return None
    rounds = timings.predicted_n - 1 - timings.draft_n_accepted
    return Counts(rounds=rounds, accepted=timings.draft_n_accepted, drafted=timings.draft_n, source="timings")

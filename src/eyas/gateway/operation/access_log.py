"""Logs a line per finished request, and a progress line every ten seconds while there is work.

Lines hold counts and times only: no prompt, answer or key, and no message of a 4xx error, which quotes the request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

from eyas.base.logs import fields
from eyas.base.types import EngineStats
from eyas.gateway.http.outcome import Outcome
from eyas.gateway.operation.metrics import EngineCounters, kv_usage

__all__ = ["ProgressLog", "log_request"]

INTERVAL_S = 10.0
log = logging.getLogger(__name__)


def log_request(outcome: Outcome) -> None:
    """Log one line for a finished request; a warning if the server is at fault."""
    after_first = outcome.e2e_s - outcome.ttft_s if outcome.ttft_s is not None else 0.0
    is_ours = outcome.status >= 500
    log.log(
        logging.WARNING if is_ours else logging.INFO,
        "request",
        extra=fields(
            id=outcome.request_id,
            route=outcome.route,
            status=outcome.status,
            finish=",".join(outcome.finishes) or None,
            prompt=outcome.num_prompt,
            cached=outcome.num_cached,
            tokens=outcome.num_tokens,
            reasoning=outcome.num_reasoning,
            drafted=outcome.num_drafted,
            accepted=outcome.num_accepted,
            acceptance_length=_ratio(outcome.num_accepted + outcome.num_rounds, outcome.num_rounds),
            ttft_ms=None if outcome.ttft_s is None else round(outcome.ttft_s * 1e3, 1),
            e2e_ms=round(outcome.e2e_s * 1e3, 1),
            tok_per_s=_ratio(outcome.num_tokens - outcome.n, after_first),
            error=outcome.error if is_ours else None,
        ),
    )


def _ratio(above: float, below: float) -> float | None:
    return round(above / below, 2) if below > 0 and above >= 0 else None


class ProgressLog:
    """Logs the progress line every ten seconds; silent while there are no requests."""

    def __init__(self, counters: EngineCounters) -> None:
        self._counters = counters
        self._totals: Mapping[str, int] = {}
        self._then = time.monotonic()

    async def run(self, interval_s: float = INTERVAL_S) -> None:
        """Log until cancelled."""
        self._totals = self._counters.read()[1]
        while True:
            await asyncio.sleep(interval_s)
            self.tick()

    def tick(self) -> None:
        """Log what happened since the last line."""
        stats, totals = self._counters.read()
        now = time.monotonic()
        delta = {name: total - self._totals.get(name, 0) for name, total in totals.items()}
        seconds, self._then, self._totals = now - self._then, now, totals
        if stats.num_running or stats.num_waiting or delta["num_generated_tokens"] or delta["num_prompt_tokens"]:
            log.info("progress", extra=fields(**self._values(stats, delta, seconds)))

    def _values(self, stats: EngineStats, delta: Mapping[str, int], seconds: float) -> dict[str, object]:
        generated, accepted = delta["num_generated_tokens"], delta["num_accepted_tokens"]
        hits = _ratio(100 * delta["num_cached_tokens"], delta["num_prompt_tokens"])
        return {
            "tok_per_s": round(generated / seconds, 1),
            "prompt_tok_per_s": round(delta["num_prompt_tokens"] / seconds, 1),
            "running": stats.num_running,
            "waiting": stats.num_waiting,
            "kv_used_percent": round(100 * kv_usage(stats), 1),
            "prefix_hit_percent": hits,
            # Tokens per step of the target for a sequence, the step that computes the prompt included.
            "acceptance_length": _ratio(generated, generated - accepted),
            "restarts": self._totals["num_restarts"],
        }

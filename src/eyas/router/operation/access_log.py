"""Logs a line per finished request, and one per change of a backend: counts and times, and no prompt, answer or key."""

from __future__ import annotations

import logging

from eyas.base.logs import fields
from eyas.router.manager.happenings import Happening
from eyas.router.operation.hiding import Hide
from eyas.router.relay.outcome import Outcome, Trip

__all__ = ["AccessLog"]

log = logging.getLogger(__name__)
NOTABLE = {"failed": logging.WARNING, "loops": logging.ERROR}  # a loop itself comes as a trip
CHANGES = frozenset({"breaker", "condition"})


class AccessLog:
    """Listens to the relay and to the manager."""

    def __init__(self, hide: Hide) -> None:
        self._hide = hide

    def record(self, news: Outcome | Trip) -> None:
        """Log a finished request, as a warning if the router or a backend is at fault, or what a guard found."""
        if isinstance(news, Trip):
            log.warning(
                "an answer repeats itself",
                extra=fields(backend=news.backend, model=news.model, kind=news.kind, action=news.action),
            )
            return
        is_ours = news.status >= 500
        log.log(
            logging.WARNING if is_ours else logging.INFO,
            "request",
            extra=fields(
                id=news.request_id,
                path=news.path,
                status=news.status,
                model=news.model,
                route=news.route,
                backend=news.backend,
                asked=news.num_asked,
                queue_ms=_ms(news.queue_s),
                ttft_ms=_ms(news.ttft_s),
                e2e_ms=_ms(news.e2e_s),
                error=self._hide(news.error) if is_ours and news.error else None,
            ),
        )

    def happened(self, event: Happening) -> None:
        """Log failures and changes of backends."""
        if event.kind in NOTABLE:
            level = NOTABLE[event.kind]
        elif event.kind in CHANGES:
            is_bad = event.breaker == "open" or event.condition == "out"
            level = logging.WARNING if is_bad else logging.INFO
        else:
            return
        log.log(
            level,
            event.kind,
            extra=fields(
                backend=event.backend,
                model=event.model,
                failure=event.failure,
                state=event.breaker or event.condition,
                text=self._hide(event.text) or None,
            ),
        )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 1)

"""Things that all requests of a relay share."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from eyas.gateway.http.intake import Intake
from eyas.router.manager.manager import Manager
from eyas.router.relay.names import Names
from eyas.router.relay.outcome import Listener, Outcome, Trip
from eyas.router.relay.stored import Stored
from eyas.router.routes.choosing import Routes
from eyas.router.settings.schema import ModelSettings, RouterSettings
from eyas.router.sidecars.descriptions import Descriptions
from eyas.router.upstream.upstream import Upstream

__all__ = ["Shared"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shared:
    """`num_keys` is how many clients' keys there are: with several, a stored response belongs to one of them.

    `vision` is the model that sees images, if the file has one, and then there are `descriptions` by it.
    """

    settings: RouterSettings
    manager: Manager
    upstream: Upstream
    routes: Routes
    names: Names
    intake: Intake
    vision: ModelSettings | None = None
    descriptions: Descriptions | None = None
    num_keys: int = 0
    stored: Stored = field(default_factory=Stored)
    listeners: list[Listener] = field(default_factory=list)

    def tell(self, news: Outcome | Trip) -> None:
        """Tell all listeners."""
        for listener in self.listeners:
            try:
                listener(news)
            except Exception:
                log.exception("a listener failed on %s", news)

    def model_at(self, backend: str, model: str) -> str:
        """Return the name by which a backend knows `model`: its own for it, the one it tells, else the same."""
        return self.upstream.address(backend).model or self.manager.condition(backend).model or model

    def is_ours(self, backend: str) -> bool:
        """Return whether a backend speaks every dialect of the router."""
        return self.manager.condition(backend).is_ours

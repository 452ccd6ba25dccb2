"""Shows what a router's file means, as tables. No key is in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from eyas.base.serving.budgets import in_words
from eyas.base.units import readable
from eyas.recipes.plan import Plan
from eyas.router.commands.tables import table
from eyas.router.operation.hiding import shown_url
from eyas.router.settings.rest import at_rest
from eyas.router.settings.schema import BackendSettings, RouterSettings

__all__ = ["meaning"]


def meaning(settings: RouterSettings, plans: Mapping[str, Plan]) -> str:
    """Return the tables: backends, models and routes, and below what holds for all."""
    server = settings.server
    resident = settings.models[0].name if settings.models else "-"
    num_keys = len((server.api_key or "").split(",")) if server.api_key else 0
    parts = [
        table(
            ("backend", "where", "role", "model there", "at once", "twin of", "key", "guard", "budgets"),
            [_backend(one, settings) for one in settings.backends],
        ),
        table(
            ("model", "backends, best first"),
            [
                (one.name + (" (resident)" if one.name == resident else ""), ", ".join(one.backends))
                for one in settings.models
            ],
        ),
        table(
            ("route", "effort", "max_tokens", "model", "budgets"),
            [
                (
                    *(one.name, one.effort, str(one.max_tokens), one.model or resident),
                    in_words(one.budgets),
                )
                for one in settings.routes
            ],
        ),
        *([_pools(settings, plans)] if settings.pools else []),
        "\n".join(
            (
                f"listens    {server.host} port {server.port}",
                f"keys       {num_keys or 'none: any client may ask'}",
                f"route/auto {settings.decide}",
                f"guard      {settings.guard}",
                f"queue      {settings.max_queue}",
                f"budgets    {in_words(asdict(settings.budgets))}",
            )
        ),
    ]
    return "\n\n".join(parts)


def _pools(settings: RouterSettings, plans: Mapping[str, Plan]) -> str:
    """Return a table of memory at rest by owner, and one of what is loaded beside it."""
    rest = at_rest(settings, plans)
    pools = [
        (
            *(one.pool.name, one.pool.kind, "" if one.total is None else readable(one.total)),
            *(readable(one.limit) if one.total else "", str(one)),
        )
        for one in rest
    ]
    members = [
        (
            *(one.name, one.pool, one.priority, "yes" if one.is_pinned else "", "yes" if one.is_exclusive else ""),
            *(readable(one.steady_bytes), readable(one.peak_bytes)),
        )
        for one in settings.backends
        if one.pool is not None
    ]
    return "\n\n".join(
        (
            table(("pool", "kind", "size", "critical at", "at rest"), pools),
            table(("in a pool", "which", "priority", "pinned", "exclusive", "memory", "peak"), members),
        )
    )


def _backend(one: BackendSettings, settings: RouterSettings) -> Sequence[str]:
    url = "" if one.url is None else shown_url(one.url)
    return (
        one.name,
        url if one.plan is None else f"{one.plan.name} at {url}",
        one.role,
        one.model or "",
        str(one.concurrency),
        one.twin_of or "",
        "" if one.key is None else "yes",
        one.guard or "",
        "" if one.budgets == settings.budgets else in_words(asdict(one.budgets)),
    )

"""Finds out what an address is before anything is judged: a server that answers, its models, a model's context."""

from __future__ import annotations

from typing import Any

import httpx

from eyas.base.errors import UserError, nearest
from eyas.base.serving.address import bearer
from eyas.bench.check.asking import MODELS, Endpoint
from eyas.bench.check.finding import Failed

__all__ = ["connect", "discover"]

TIMEOUT_S = 600.0  # of a whole answer, on a CPU as well
CONNECT_S = 10.0
# Names of the context in the entries of /v1/models: vLLM's and ours, Anthropic's, llama.cpp's (in `meta`).
CONTEXTS = ("max_model_len", "context_length", "max_input_tokens", "n_ctx")


def connect(url: str, key: str | None) -> httpx.AsyncClient:
    """Return a client of the server, which goes there directly, whatever proxy is set. Raises UserError."""
    timeout = httpx.Timeout(TIMEOUT_S, connect=CONNECT_S)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=4)
    return httpx.AsyncClient(base_url=url, headers=bearer(key), timeout=timeout, limits=limits, trust_env=False)


async def discover(http: httpx.AsyncClient, url: str, model: str | None, *, has_key: bool = False) -> Endpoint:
    """Return the endpoint of `model`, by default the server's first. Raises UserError in one line.

    A server without a list of models is asked for what is named; its check of models will say so.
    """
    endpoint = Endpoint(http, model or "")
    try:
        reply = await endpoint.get(MODELS)
    except Failed as error:
        raise UserError(f"{url}: {error}; start the server, or correct the address") from None
    if reply.status in (401, 403):
        hint = "refuses this API key" if has_key else "wants an API key: --api-key env:NAME"
        raise UserError(f"the server at {url} {hint}")
    entries = _entries(reply.value)
    if model is None and not entries:
        raise UserError(
            f"{url} lists no model (GET {MODELS} was answered with HTTP status {reply.status}); "
            "check the address, or name one: --model NAME"
        )
    name = model or next(iter(entries))
    if entries and name not in entries:
        raise UserError(
            f"the server at {url} has no model '{name}'{nearest(name, entries)}; it has {', '.join(entries)}"
        )
    return Endpoint(http, name, context=_context(entries.get(name, {})))


def _entries(value: Any) -> dict[str, dict[str, Any]]:
    listed = value.get("data") if isinstance(value, dict) else None
    found = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    return {str(entry["id"]): entry for entry in found if "id" in entry}


def _context(entry: dict[str, Any]) -> int | None:
    meta = entry.get("meta")
    named = {**(meta if isinstance(meta, dict) else {}), **entry}
    found = (named.get(name) for name in CONTEXTS)
    return next((value for value in found if isinstance(value, int) and value > 0), None)

"""Ollama: tells nothing of drafts.

Source: `Metrics` in api/types.go and the routes in server/routes.go at commit fb30760 (2026-08): durations and numbers
of tokens, and no page of metrics.
"""

from __future__ import annotations

import httpx

from eyas.client.endpoint.acceptance.counts import Reading

__all__ = ["read"]


def read(client: httpx.Client) -> Reading:
    """Return why there are no counts."""
    return Reading(source="", not_offered="Ollama tells nothing of drafts")

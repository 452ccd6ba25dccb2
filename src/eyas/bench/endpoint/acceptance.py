"""Acceptance of the arms of a run: counters over each window, counts of each request, and both in words."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from eyas.bench.endpoint.load.session import Side
from eyas.bench.endpoint.records import Counts, Load, Window
from eyas.bench.endpoint.target import Arm, Endpoint
from eyas.client.endpoint.acceptance.adapters import ADAPTERS, Adapter, connect, read
from eyas.client.endpoint.acceptance.counts import Reading, accepted_of_rounds, difference, mean_length, total

__all__ = ["EngineAcceptance", "acceptance_lines", "side_of"]


class EngineAcceptance:
    """An engine's word on its drafts, for all windows of an arm."""

    def __init__(self, arm: Arm, endpoint: Endpoint) -> None:
        self._arm, self._endpoint = arm, endpoint
        self._adapter = None if endpoint.engine is None else ADAPTERS[endpoint.engine]

    def counters(self) -> WindowCounters:
        """Return counters for one window."""
        return WindowCounters(self)

    def counts_of(self, events: Sequence[bytes]) -> Counts | None:
        """Return what the last events of a stream say of its request."""
        return None if self._adapter is None else self._adapter.of_answer(events)

    def read(self) -> Reading:
        """Ask the server. It takes a moment: do not call it in an event loop."""
        with connect(self._endpoint.root, self._arm.key) as client:
            return read(self._endpoint.engine, client)


class WindowCounters:
    """Counters of a server over one window: requests count when they are over."""

    def __init__(self, acceptance: EngineAcceptance) -> None:
        self._acceptance = acceptance
        self._before = Reading(source="", not_offered="nothing was read yet")

    async def begin(self) -> None:
        """Read them at the beginning."""
        self._before = await asyncio.to_thread(self._acceptance.read)

    async def end(self) -> tuple[Counts | None, str]:
        """Read them again; return the difference, and why the window says nothing, if the server restarted."""
        after = await asyncio.to_thread(self._acceptance.read)
        if self._before.counts is None or after.counts is None:
            return None, ""
        found = difference(self._before, after)
        return (None, found) if isinstance(found, str) else (found, "")


def side_of(arm: Arm, endpoint: Endpoint) -> Side:
    """Return an arm whose requests ask for their counts, too, where the engine wants to be asked."""
    adapter = Adapter(read=lambda client: Reading(source="")) if endpoint.engine is None else ADAPTERS[endpoint.engine]
    asking = replace(arm, fields={**adapter.fields, **arm.fields})
    return Side(arm=asking, endpoint=endpoint, acceptance=EngineAcceptance(arm, endpoint))


def acceptance_lines(windows: Iterable[Window]) -> list[str]:
    """Format the acceptance length of each arm under each load: of all tokens, by request, and by position."""
    groups: dict[tuple[str, Load], list[Window]] = {}
    for window in windows:
        if not window.void:
            groups.setdefault((window.arm, window.load), []).append(window)
    lines = [_line(arm, load, group) for (arm, load), group in groups.items()]
    return [line for line in lines if line]


def _line(arm: str, load: Load, windows: Sequence[Window]) -> str:
    of_requests = [r.counts for w in windows for r in w.records if r.counts is not None and r.error is None]
    counts = total(w.counts for w in windows if w.counts is not None) or total(of_requests)
    if counts is None or counts.length is None or counts.drafted == 0:
        return ""
    parts = [f"acceptance length {counts.length:.2f} ({counts.rounds:,} rounds, {counts.source})"]
    if (by_request := mean_length(of_requests)) is not None:
        parts.append(f"{by_request:.2f} by request")
    if shares := accepted_of_rounds(counts):
        parts.append(f"accepted by position, of all rounds: {', '.join(f'{share:.0%}' for share in shares)}")
    return f"{arm}, {load.text()}: {'; '.join(parts)}"

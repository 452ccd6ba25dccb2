"""Messages of the live view: step reports become one small message for all viewers. Independent of HTTP.

Schema, one JSON object per message; `n` is a list with one number per draft position:

    t        seconds on the feed's clock
    step     number of the last step; steps: number of steps that this message covers
    ms       mean milliseconds of one step
    k        tokens drafted per sequence in the last round; absent if this message has none
    undrafted_ms          milliseconds that this round would take without drafts, by the engine's own costs; absent
             unless it learns them (`--draft-tokens auto`)
    running, waiting      current requests
    rounds, tokens        rounds of all sequences, and tokens that they committed
    drafted, accepted     n: tokens drafted at a position, and accepted there
    slots    [{id, choice, first, rounds: [{accepted, rejected, own}], finish}]
             id is short; `first` marks the beginning of the choice;
             accepted: drafts that the target also drew; rejected: drafts that it did not, and those after them;
             own: drawn by the target. Each is a list of texts, or of lengths in characters
    pages    {group: {total, used, idle, owners: [[id, choice, pages]]}}; shared pages count for each owner

Between reports a message has only t, running, waiting, pages and `failure`: why nothing can be served, or null.
"""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import UNSET, Struct, UnsetType

from eyas.base.tokens.tokenizer import TextCodec
from eyas.base.types import EngineStats, PageOwner, RoundTrace, StepReport, TokenEvent

__all__ = ["LiveMessage", "LiveMessageBuilder", "short_id"]

MAX_SLOTS = 64  # choices shown; the counts include all
SHORT_ID = 6  # the last characters of a request's id

Tokens = list[str] | list[int]
Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class LiveRound(Struct, kw_only=True):
    accepted: Tokens
    rejected: Tokens
    own: Tokens


class Slot(Struct, kw_only=True):
    id: str
    choice: int
    first: bool
    rounds: list[LiveRound]
    finish: str | None = None


class PageGroup(Struct, kw_only=True):
    total: int
    used: int
    idle: int
    owners: list[tuple[str, int, int]]


class LiveMessage(Struct, kw_only=True):
    """A message; the module's docstring has its schema."""

    t: float
    running: int
    waiting: int
    pages: dict[str, PageGroup]
    failure: str | UnsetType | None = UNSET
    step: int | UnsetType = UNSET
    steps: int | UnsetType = UNSET
    ms: float | UnsetType = UNSET
    k: int | UnsetType = UNSET
    undrafted_ms: float | UnsetType = UNSET
    rounds: int | UnsetType = UNSET
    tokens: int | UnsetType = UNSET
    drafted: list[int] | UnsetType = UNSET
    accepted: list[int] | UnsetType = UNSET
    slots: list[Slot] | UnsetType = UNSET


class LiveMessageBuilder:
    """Builds messages from reports. Keeps, for each choice, the bytes of a character that is not yet complete."""

    def __init__(self, codec: TextCodec, *, with_text: bool) -> None:
        self._codec = codec
        self._with_text = with_text
        self._decoders: dict[tuple[str, int], codecs.IncrementalDecoder] = {}
        self._aside = Utf8Decoder("replace")

    @property
    def num_followed(self) -> int:
        """Return the number of running choices."""
        return len(self._decoders)

    def forget(self) -> None:
        """Drop the state of all choices, after reports were lost or there were no viewers."""
        self._decoders.clear()

    def state(self, t: float, stats: EngineStats, failure: str | None) -> LiveMessage:
        """Return a message without a step."""
        return LiveMessage(
            t=round(t, 3),
            running=stats.num_running,
            waiting=stats.num_waiting,
            pages=_pages(stats, ()),
            failure=failure,
        )

    def batch(self, t: float, reports: Sequence[StepReport]) -> LiveMessage:
        """Return one message of one or more reports."""
        last = reports[-1]
        events = [event for report in reports for event in report.events]
        traces = [event.round for event in events if event.round is not None]
        newest = next((report for report in reversed(reports) if _has_round(report)), None)
        undrafted_ms = None if newest is None else newest.undrafted_ms
        return LiveMessage(
            t=round(t, 3),
            running=last.stats.num_running,
            waiting=last.stats.num_waiting,
            pages=_pages(last.stats, last.pages),
            step=last.step,
            steps=len(reports),
            ms=round(sum(report.ms for report in reports) / len(reports), 3),
            k=UNSET if newest is None else newest.num_drafts,
            undrafted_ms=UNSET if undrafted_ms is None else round(undrafted_ms, 3),
            rounds=len(traces),
            tokens=sum(len(event.token_ids) for event in events),
            drafted=_reached(len(trace.draft_ids) for trace in traces),
            accepted=_reached(trace.num_accepted for trace in traces),
            slots=self._slots(events),
        )

    def _slots(self, events: Iterable[TokenEvent]) -> list[Slot]:
        slots: dict[tuple[str, int], Slot] = {}
        for event in events:
            key = (event.request_id, event.choice)
            if key not in slots:
                if len(slots) == MAX_SLOTS:
                    self._decoders.pop(key, None)
                    continue
                first = key not in self._decoders and event.round is None
                slots[key] = Slot(id=short_id(event.request_id), choice=event.choice, first=first, rounds=[])
            if (decoder := self._decoders.get(key)) is None:
                decoder = self._decoders[key] = Utf8Decoder("replace")
            if event.token_ids:
                slots[key].rounds.append(self._round(event, decoder))
            if event.finish is not None:
                slots[key].finish = event.finish
                del self._decoders[key]
        return list(slots.values())

    def _round(self, event: TokenEvent, decoder: codecs.IncrementalDecoder) -> LiveRound:
        trace = event.round or RoundTrace(draft_ids=(), num_accepted=0)
        accepted = self._texts(event.token_ids[: trace.num_accepted], decoder)
        self._aside.setstate(decoder.getstate())  # a rejected token must not spoil what follows
        rejected = self._texts(trace.draft_ids[trace.num_accepted :], self._aside)
        own = self._texts(event.token_ids[trace.num_accepted :], decoder)
        return LiveRound(accepted=self._shown(accepted), rejected=self._shown(rejected), own=self._shown(own))

    def _texts(self, ids: Sequence[int], decoder: codecs.IncrementalDecoder) -> list[str]:
        """Return the text that each token completes; the first bytes of a character are shown with its last one."""
        return [decoder.decode(self._codec.token_bytes(token)) for token in ids]

    def _shown(self, texts: list[str]) -> Tokens:
        return texts if self._with_text else [len(text) for text in texts]


def short_id(request_id: str) -> str:
    return request_id[-SHORT_ID:]


def _has_round(report: StepReport) -> bool:
    return any(event.round is not None for event in report.events)


def _reached(counts: Iterable[int]) -> list[int]:
    """Return, as entry i, how many of `counts` are above i."""
    sizes = Counter(counts)
    return [sum(times for size, times in sizes.items() if size > i) for i in range(max(sizes, default=0))]


def _pages(stats: EngineStats, owners: Sequence[PageOwner]) -> dict[str, PageGroup]:
    groups = {}
    for name, total in stats.pages_total.items():
        held = [
            (short_id(owner.request_id), owner.choice, owner.num_full if name == "full" else owner.num_sliding)
            for owner in owners[:MAX_SLOTS]
        ]
        groups[name] = PageGroup(
            total=total, used=stats.pages_used.get(name, 0), idle=stats.pages_idle.get(name, 0), owners=held
        )
    return groups

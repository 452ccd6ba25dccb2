"""Decides what is loaded in one pool of memory. Pure: events in, effects out, time passed in; it owns no resource.

Learnt from others: one swap serves all who wait and evictions are a pure function (llama-swap); one load at a time, and
the next waits until memory has come back, with a deadline for each wait (Ollama's deadlock, its issue 17408).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from eyas.base.units import readable
from eyas.router.memory.events import (
    Effect,
    Event,
    Fails,
    Learnt,
    Load,
    Looked,
    Noted,
    NoteKind,
    Ordered,
    Reading,
    State,
    Stood,
    Unload,
    Waits,
)
from eyas.router.memory.member import Footprint, Member
from eyas.router.memory.pressure import Level, level_of
from eyas.router.settings.schema import BackendSettings, MemorySettings

__all__ = ["PoolPolicy"]

STALE_S = 15.0  # an older reading decides nothing
BACK_SHARE = 0.75  # of a footprint that must have come back, as Ollama waits for
STILL_S = 3.0  # without coming back any further: it has all come
BACK_S = 60.0  # that is waited for at most ("60+ s after docker kill", field report)
SETTLE_S = 3.0  # after it is ready, until its footprint counts as steady
AGAIN_S = 30.0  # after a load was refused
LARGER = 1.05  # of what was declared


class PoolPolicy:
    """State of one pool and its backends. The same events at the same times have the same effects."""

    def __init__(
        self,
        backends: Sequence[BackendSettings],
        footprints: Mapping[str, Footprint],
        settings: MemorySettings,
        now: float,
        *,
        system: int = 0,
        are_owners_whole: bool = True,
    ) -> None:
        self.members = {one.name: Member(one, footprints[one.name], now) for one in backends}
        self.level: Level = "normal"
        self.reading: Reading | None = None
        self.read_at = -math.inf
        self._settings, self._system = settings, system
        self._are_owners_whole = are_owners_whole  # else processes hold memory that is not counted as theirs
        self.fault = ""
        self._returning: Member | None = None  # its processes have ended; is its memory back?
        self._returning_since = self._still_since = 0.0
        self._lowest = self._expected = 0  # that was used since; that is to come back
        self._effects: list[Effect] = []
        for member in self.members.values():
            if member.is_pinned:
                member.ordered_at = now

    def decide(self, event: Event, now: float) -> list[Effect]:
        """Return what follows from `event` at `now`, in order."""
        self._effects = []
        match event:
            case Looked():
                self._looked(event, now)
            case Stood():
                self._stood(self.members[event.backend], event, now)
            case Ordered():
                self._ordered(self.members[event.backend], event, now)
        self._relieve(now)
        self._load_next(now)
        return self._effects

    def held(self, member: Member) -> int:
        """Return the bytes that a backend holds now, as far as that can be said of the last reading."""
        if self.reading is None or member.state not in ("loading", "ready", "unloading"):
            return 0
        own = self.reading.owners.get(member.name, 0)
        if self._are_owners_whole and own:
            return own
        if member.state == "loading":
            return max(own, member.load_peak, 0)
        return min(self.reading.used, max(own, member.footprint.steady))

    @property
    def is_returning(self) -> bool:
        """Whether the memory of one that was unloaded is waited for."""
        return self._returning is not None

    @property
    def is_moving(self) -> bool:
        """Whether a backend is on its way, or its memory on its way back."""
        is_busy = any(one.state in ("loading", "unloading") for one in self.members.values())
        return is_busy or self._returning is not None

    @property
    def is_watched(self) -> bool:
        """Whether the memory is to be looked at every second: it is short, or something is on its way."""
        return self.level != "normal" or self.is_moving

    # -- events --------------------------------------------------------------------------------------------------------

    def _looked(self, event: Looked, now: float) -> None:
        for name, member in self.members.items():
            member.waiting_since = event.waiting.get(name)
            if name in event.usage:
                member.used(event.usage[name], now)
        if event.reading is not None:
            self._read(event.reading, now)
        elif event.fault and event.fault != self.fault:
            self._note("unknown", f"memory cannot be measured: {event.fault}; nothing is loaded until it can")
        self.fault = event.fault

    def _read(self, reading: Reading, now: float) -> None:
        self.reading, self.read_at = reading, now
        level = level_of(reading, self._settings)
        if level != self.level:
            share = f"{readable(reading.used)} of {readable(reading.total)} used"
            stalls = f", stalls {reading.some:.0f} % some, {reading.full:.0f} % full" if reading.some >= 1 else ""
            self._note("pressure", f"{self.level} -> {level}: {share}{stalls}")
            self.level = level
        for member in self.members.values():
            self._measure(member, reading, now)
        self._wait_for_memory(reading, now)

    def _measure(self, member: Member, reading: Reading, now: float) -> None:
        """Learn from a reading what a backend takes."""
        own = reading.owners.get(member.name, 0)
        taken = own if self._are_owners_whole and own else max(own, reading.used - member.used_before)
        if member.state == "loading":
            member.load_peak = max(member.load_peak, taken)
            return
        if member.state != "ready":
            return
        if member.load_peak > 0 and now >= member.ready_at + SETTLE_S:  # the end of a load that was seen whole
            steady = max(own, min(taken, member.load_peak))
            self._learn(member, member.footprint.learn(max(member.load_peak, steady), steady))
            member.load_peak = -1
        elif own > member.footprint.steady:
            self._learn(member, replace(member.footprint, peak=max(member.footprint.peak, own), steady=own))

    def _learn(self, member: Member, footprint: Footprint) -> None:
        if footprint == member.footprint:
            return
        declared = member.settings.steady_bytes
        member.footprint = footprint
        self._effects.append(Learnt(member.name, footprint.peak, footprint.steady))
        if declared and footprint.steady > LARGER * declared and not member.is_larger_told:
            member.is_larger_told = True
            text = f"takes {readable(footprint.steady)}, {readable(declared)} were declared"
            self._note("larger", text, member)

    def _wait_for_memory(self, reading: Reading, now: float) -> None:
        """End the wait for the memory of a backend that was unloaded, once it is back or does not come."""
        member = self._returning
        if member is None:
            return
        if reading.used < self._lowest - reading.total / 500:
            self._lowest, self._still_since = reading.used, now
        seconds = now - self._returning_since
        freed = member.used_before - self._lowest
        if freed >= BACK_SHARE * self._expected:
            self._note("unloaded", f"{readable(max(0, freed))} came back after {seconds:.1f} s", member, seconds)
        elif now >= self._still_since + STILL_S or seconds >= BACK_S:
            text = f"{readable(max(0, freed))} of {readable(self._expected)} came back in {seconds:.0f} s"
            self._note("late", text, member, seconds)
        else:
            return
        self._returning = None

    def _stood(self, member: Member, event: Stood, now: float) -> None:
        before, member.state = member.state, event.state
        if before == event.state:
            return
        member.waits_reason = ""
        match event.state:
            case "ready":
                member.ready_at = member.last_used = now
                member.sent_before, member.was_used = member.usage.num_sent, member.waiting_since is None
                member.ordered_at = None
                if before == "loading":
                    self._note("loaded", "is loaded", member)
            case "loading":
                if before != "loading":
                    self._begin(member)
            case "idle" | "out":
                member.ordered_at = now if event.state == "idle" and member.is_pinned else None
                if before in ("unloading", "ready", "loading"):
                    self._ended(member, before, now)

    def _begin(self, member: Member) -> None:
        """Begin to measure a load. Without a reading nothing is known of what was used before."""
        member.used_before = 0 if self.reading is None else self.reading.used
        member.load_peak = -1 if self.reading is None else 0

    def _ended(self, member: Member, before: State, now: float) -> None:
        """Wait for the memory of a backend whose processes have ended."""
        if self.reading is None:
            return
        if before != "unloading":
            member.used_before = self.reading.used
        self._returning, self._returning_since, self._still_since = member, now, now
        self._lowest = self.reading.used
        self._expected = (
            member.footprint.steady if member.load_peak < 0 else min(member.footprint.steady, member.load_peak)
        )
        self._wait_for_memory(self.reading, now)

    def _ordered(self, member: Member, event: Ordered, now: float) -> None:
        match event.order:
            case "load":
                if member.state in ("idle", "out"):
                    member.ordered_at, member.failed_until = now, -math.inf
            case "unload":
                member.ordered_at = None
                if member.state in ("ready", "loading"):
                    self._unload(member, "a person unloads it", self._settings.drain_s)
            case "pin" | "unpin":
                member.is_pinned = event.order == "pin"
                if member.is_pinned and member.state == "idle":
                    member.ordered_at = now

    # -- pressure ------------------------------------------------------------------------------------------------------

    def _relieve(self, now: float) -> None:
        """Unload what must go: in an emergency all that is not pinned, at once; in critical pressure what is idle."""
        if self.reading is None or now > self.read_at + STALE_S:
            return
        share = f"{self.reading.used / self.reading.total:.0%} of the memory is used"
        if self.level == "emergency":
            for member in sorted(self.members.values(), key=lambda one: one.rank):
                is_held = member.state in ("ready", "loading") or (member.state == "unloading" and member.is_draining)
                if is_held and not member.is_pinned:
                    self._unload(member, f"emergency: {share}", 0.0)
        elif self.level == "critical" and not self.is_moving:  # a load may pass it for a moment
            idle = [one for one in self.members.values() if one.may_go(now) and not one.usage.in_flight]
            if idle:
                self._unload(min(idle, key=lambda one: one.rank), f"it was idle, and {share}", 0.0)

    def _unload(self, member: Member, reason: str, drain_s: float) -> None:
        if member.state == "loading" and member.load_peak > member.footprint.peak:  # more would have come
            self._learn(member, replace(member.footprint, peak=member.load_peak))
        member.state, member.is_draining = "unloading", drain_s > 0
        if self.reading is not None:
            member.used_before = self.reading.used
        self._note("unload", reason, member)
        self._effects.append(Unload(member.name, reason, drain_s))

    # -- loads ---------------------------------------------------------------------------------------------------------

    def _load_next(self, now: float) -> None:
        """Load the backend that was wanted first, or make room for it. One at a time: all others wait."""
        if self.reading is None and not self.fault:  # nothing was looked at yet
            return
        wanted = [
            one
            for one in self.members.values()
            if one.state == "idle" and one.wanted_since is not None and now >= one.failed_until
        ]
        wanted.sort(key=lambda one: one.wanted_since or 0.0)
        for member in list(wanted):
            assert member.wanted_since is not None
            if now >= member.wanted_since + self._settings.wait_s and not member.is_pinned:
                self._fail(member, f"no memory came free for it in {self._settings.wait_s:.0f} s", now)
                wanted.remove(member)
        if not wanted:
            return
        reason = self._admit(wanted[0], now)
        for member in wanted[1:]:
            self._wait(member, f"waits for memory behind {wanted[0].name}")
        if reason is not None:
            self._wait(wanted[0], reason)

    def _admit(self, member: Member, now: float) -> str | None:
        """Load it, unload others for it, or refuse it; return why it waits."""
        if self.reading is None or now > self.read_at + STALE_S:
            return "waits until the memory can be measured" + (f": {self.fault}" if self.fault else "")
        loading = next((one for one in self.members.values() if one.state == "loading"), None)
        if loading is not None:
            return f"waits until {loading.name} is loaded"
        rivals = [
            one
            for one in self.members.values()
            if one is not member
            and one.settings.is_exclusive
            and member.settings.is_exclusive
            and one.state in ("ready", "unloading")
        ]
        if (kept := next((one for one in rivals if one.is_pinned), None)) is not None:
            self._fail(member, f"is exclusive, as {kept.name} is, which is pinned", now)
            return None
        unloading = next((one for one in self.members.values() if one.state == "unloading"), None)
        if unloading is not None:
            return f"waits until {unloading.name} is unloaded"
        if self._returning is not None:
            return f"waits until the memory of {self._returning.name} is back"
        footprint = member.footprint
        claim = self._settings.claim(footprint.steady, footprint.peak, self.reading.total)
        needed = claim.num_bytes
        pinned = [one for one in self.members.values() if one.is_pinned and one is not member]
        if (most := self._most(self.reading.total, pinned)) < needed:
            beside = f" beside {', '.join(one.name for one in pinned)}" if pinned else ""
            self._fail(member, f"{claim.takes}, and at most {claim.left(most)} is left for it{beside}", now)
            return None
        if (most := self._most_now()) < needed:
            return f"waits until others free memory: it {claim.takes}, and {claim.left(most)} can be had"
        must = [one for one in rivals if one.state == "ready"]
        room = self._room() + sum(one.footprint.steady for one in must)
        victims = must + self._victims(needed - room, must, now)
        if any(not one.may_go(now) for one in victims) or (not victims and needed > self._room()):
            return "waits until others have answered those that waited for them"
        if victims:
            for victim in victims:
                self._unload(victim, f"makes room for {member.name}", self._settings.drain_s)
            return f"waits until {' and '.join(one.name for one in victims)} made room"
        if self.level in ("critical", "emergency"):
            return f"waits while {self.reading.used / self.reading.total:.0%} of the memory is used"
        member.state, member.waits_reason = "loading", ""
        self._begin(member)
        self._note("load", f"is loaded: {readable(footprint.peak)} at most, {readable(self._room())} are left", member)
        self._effects.append(Load(member.name))
        return None

    def _room(self) -> int:
        """Return how much may be taken until pressure is critical."""
        assert self.reading is not None
        return int(self._settings.critical * self.reading.total) - self.reading.used

    def _most(self, total: int, pinned: Sequence[Member]) -> int:
        """Return what can ever be left for one backend: `pinned` ones stay, and so does the system."""
        kept = sum(one.footprint.steady for one in pinned)
        return max(0, int(self._settings.critical * total) - kept - self._system)

    def _most_now(self) -> int:
        """Return the room if all went that may go, and what does not belong to this pool stayed."""
        going = (one for one in self.members.values() if not one.is_pinned and one.state == "ready")
        return self._room() + sum(one.footprint.steady for one in going)

    def _victims(self, missing: int, must: Sequence[Member], now: float) -> list[Member]:
        """Return who must go besides `must` so that `missing` bytes are free; fewest by the order of evictions."""
        found: list[Member] = []
        for one in sorted(self.members.values(), key=lambda member: member.rank):
            if missing <= 0:
                break
            if one not in must and one.may_go(now):
                found.append(one)
                missing -= one.footprint.steady
        for one in list(found):  # the last one may have been large enough for those before it
            if missing + one.footprint.steady <= 0:
                found.remove(one)
                missing += one.footprint.steady
        return found if missing <= 0 else []

    def _wait(self, member: Member, reason: str) -> None:
        if reason != member.waits_reason:
            member.waits_reason = reason
            self._effects.append(Waits(member.name, reason))

    def _fail(self, member: Member, reason: str, now: float) -> None:
        member.failed_until, member.waits_reason = now + AGAIN_S, ""
        if not member.is_pinned:
            member.ordered_at = None
        self._note("refused", reason, member)
        self._effects.append(Fails(member.name, reason, AGAIN_S))

    def _note(self, kind: NoteKind, text: str, member: Member | None = None, seconds: float | None = None) -> None:
        self._effects.append(Noted(kind, text, None if member is None else member.name, seconds))

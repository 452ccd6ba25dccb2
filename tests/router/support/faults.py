"""Faults of a backend, what a client must get for each, and the table of what it got."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.router.support.asking import Got

__all__ = ["FAULTS", "INSIDE", "PREFILL_S", "STALL_S", "TOTAL_S", "Fault", "Row", "table"]

PREFILL_S, STALL_S, TOTAL_S = 1.0, 1.2, 3.0  # budgets of the faulty backends; the last for whole answers
LATE_S = 5.0  # that a busy machine may be late

# What a client gets. answered: a whole answer of the sound backend, or refused if there is none. refused: an error of
# the router in any case. ended: two pieces, then an error event. passed: the backend's own error, as it is.
End = Literal["answered", "refused", "ended", "passed"]
INSIDE = {"after": 2, "between_s": 0.25}  # the first piece has reached the client


@dataclass(frozen=True)
class Fault:
    """A fault, and its consequences. `statuses` are those of a refusal; `budget_s` is what must be waited for."""

    name: str
    script: dict[str, Any]
    streams: tuple[bool, ...] = (True, False)
    end: End = "answered"
    statuses: tuple[int, ...] = (502, 503)
    is_failure: bool = True  # for the breaker
    budget_s: float | None = None


def _hangs(name: str, after: int | None, budget_s: float, end: End = "answered", **fields: Any) -> Fault:
    script = {"end": "hang", "after": after, "between_s": 0.25} | fields
    return Fault(name, script, streams=(True,), end=end, statuses=(504,), budget_s=budget_s)


FAULTS = (
    Fault("RST before the first byte", {"end": "rst"}),
    Fault("RST after the role", {"end": "rst", "after": 0}, streams=(True,)),
    Fault("RST inside", {"end": "rst", **INSIDE}, streams=(True,), end="ended"),
    Fault("RST inside", {"end": "rst", **INSIDE}, streams=(False,)),
    Fault("closed before the first byte", {"end": "cut"}),
    Fault("closed inside", {"end": "cut", **INSIDE}, streams=(True,), end="ended"),
    Fault("closed inside", {"end": "cut", **INSIDE}, streams=(False,)),
    Fault("ends early, as if well", {"end": "short", **INSIDE}, streams=(True,), end="ended"),
    Fault("ends early, as if well", {"end": "short", **INSIDE}, streams=(False,)),
    Fault("error event before content", {"end": "error", "after": 0}, streams=(True,)),
    Fault("error event inside", {"end": "error", **INSIDE}, streams=(True,), end="ended"),
    Fault("status 500", {"status": 500}),
    Fault("status 503", {"status": 503, "retry_after": "2"}),
    Fault("status 429", {"status": 429, "retry_after": "2"}, statuses=(429,), is_failure=False),
    Fault("status 400", {"status": 400}, end="passed", statuses=(400,), is_failure=False),
    Fault("200 with HTML", {"html": True}),
    Fault("redirect", {"status": 307, "location": "http://127.0.0.1:9/"}),
    Fault("event of 17 MiB", {"event_bytes": 17 << 20}, streams=(True,)),
    _hangs("stall before the first byte", None, PREFILL_S),
    _hangs("stall after the role, with pings", 0, PREFILL_S, noise_s=0.2),
    _hangs("stall inside", 2, STALL_S, end="ended"),
    _hangs("stall inside, with pings", 2, STALL_S, end="ended", noise_s=0.2),
    Fault("stall", {"end": "hang"}, streams=(False,), end="refused", statuses=(504,), budget_s=TOTAL_S),
)


@dataclass
class Row:
    """What came of one fault. `others`: there is a sound backend behind the faulty one."""

    fault: Fault
    stream: bool
    others: bool
    got: Got
    breaker: str
    wrong: list[str] = field(default_factory=list)

    def check(self, failures: int) -> None:
        """Compare with what must be; `failures` are those that the breaker has counted."""
        fault, got = self.fault, self.got
        wants = "refused" if fault.end == "answered" and not self.others else fault.end
        if reason := got.what_is_wrong():
            self.wrong.append(reason)
        met = {
            "answered": got.outcome == "done" and got.backend == "sound",
            "refused": got.outcome == "error" and not got.pieces,
            "ended": got.outcome == "error" and len(got.pieces) == 2 and got.status == 200,
            "passed": got.outcome == "error" and got.status == 400 and got.message == "the script says so",
        }[wants]
        if not met:
            self.wrong.append(f"wants {wants}")
        if wants == "refused" and got.status not in (fault.statuses if not got.comments else (200,)):
            self.wrong.append(f"wants a status of {fault.statuses}")
        if failures != int(fault.is_failure):
            self.wrong.append(f"the breaker counts {failures}")
        low = fault.budget_s or 0.0
        if not low * 0.95 <= got.seconds <= low + LATE_S:
            self.wrong.append(f"after {got.seconds:.2f} s")


def table(rows: Iterable[Row]) -> str:
    """The rows for people."""
    head = ("fault", "", "behind it", "the client got", "after s", "budget s", "breaker", "")
    lines = [head]
    for row in rows:
        got = row.got
        what = f"{got.status} {got.outcome}"
        what += f", {len(got.pieces)} pieces" if got.pieces else ""
        what += f", of {got.backend}" if got.outcome == "done" else f": {got.message[:60]}"
        budget = "-" if row.fault.budget_s is None else f"{row.fault.budget_s:g}"
        kind = "streamed" if row.stream else "whole"
        behind = "another" if row.others else "none"
        lines.append(
            (row.fault.name, kind, behind, what, f"{got.seconds:.2f}", budget, row.breaker, "; ".join(row.wrong))
        )
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)

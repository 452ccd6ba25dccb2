"""Result of a program, and the text that a model reads of it."""

from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import dataclass

from eyas.sandbox.limits import Limits

__all__ = ["Outcome"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """`output` is what was printed, errors too. `stopped` says why the program was ended, if it did not end itself.

    `exit_code` is 128 and the number of the signal where one killed it, None where it was stopped.
    """

    output: str
    seconds: float
    exit_code: int | None = None
    stopped: str | None = None
    note: str | None = None  # which limit an error in the output comes from

    @property
    def is_good(self) -> bool:
        return self.exit_code == 0

    @property
    def text(self) -> str:
        """The result of the tool: the output, and one line more where there is something to say."""
        line = self.stopped or self.note or _ending(self)
        if line is None:
            return self.output
        gap = "" if not self.output or self.output.endswith("\n") else "\n"
        return f"{self.output}{gap}{line}"


def _ending(outcome: Outcome) -> str | None:
    code = outcome.exit_code or 0
    if code > 128:
        return f"killed by {_signal(code - 128)}"
    if outcome.output.strip():
        return None
    return "nothing was printed; use print()" if code == 0 else f"exit status {code}, and nothing was printed"


def _signal(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def note_of(output: str, limits: Limits) -> str | None:
    """Return the limit behind the error that a program ended with, by the last line of its traceback."""
    last = output.rstrip().rpartition("\n")[2]
    for marks, note in (
        (("MemoryError",), f"the limit is {limits.memory_bytes >> 20} MiB of memory"),
        (("[Errno 11]", "can't start new thread"), f"the limit is {limits.processes} processes and threads"),
        (("[Errno 24]",), f"the limit is {limits.open_files} open files"),
        (("[Errno 27]",), f"the limit is {limits.file_bytes >> 20} MiB a file"),
        (("[Errno 28]",), f"the limit is {limits.scratch_bytes >> 20} MiB and {limits.files} files in /tmp"),
        (("[Errno 1] ", "[Errno 38] "), "the sandbox allows no network and nothing of the system"),
        (("[Errno 30] ",), "only /tmp can be written"),
    ):
        if any(mark in last for mark in marks):
            return note
    return None

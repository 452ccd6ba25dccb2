"""Runs one program at a time in a process of its own: nothing is kept between programs, and nothing outlives one.

A fresh interpreter and an empty folder each time, as openai/gpt-oss has it in gpt_oss/tools/python_docker.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from eyas.base.errors import UserError
from eyas.sandbox.layout import SCRATCH, Layout, find_layout
from eyas.sandbox.limits import Limits
from eyas.sandbox.outcome import Outcome, note_of
from eyas.sandbox.refusal import refusal, shown
from eyas.sandbox.running import Running
from eyas.sandbox.seccomp import filter_for
from eyas.sandbox.usage import beyond, look
from eyas.sandbox.ways import BUBBLEWRAP, NAMESPACES, Way, find_bubblewrap, with_bubblewrap, with_namespaces

__all__ = ["NotStarted", "Sandbox", "find_sandbox"]

LOOK_S = 0.1  # between two looks at what a program uses
TRIAL, TRIAL_OUTPUT = "print(6 * 7)", "42\n"


class NotStarted(UserError):
    """No program runs this way on this machine; `why` is the last line of what was said."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"the sandbox ({name}) does not start: {why}")
        self.why = why


class Sandbox:
    """`way` says how programs are shut in, `name` what it is called."""

    def __init__(self, way: Way, name: str, limits: Limits | None = None) -> None:
        """Raises UserError on a machine whose system calls are not known."""
        self.name = name
        self.limits = Limits() if limits is None else limits
        self._way = way
        self._layout: Layout = find_layout()
        self._filter = base64.b64encode(filter_for(os.uname().machine)).decode()
        self._confine = Path(__file__).with_name("confine.py").read_text(encoding="utf-8")

    async def run(self, code: str) -> Outcome:
        """Run a program to its end or to a limit; cancelling the task kills it. Raises NotStarted."""
        program = code.encode("utf-8", "surrogatepass")
        if len(program) > self.limits.code_bytes:
            return Outcome(
                output="", seconds=0.0, stopped=f"the program has more than {self.limits.code_bytes:,} bytes"
            )
        running = await Running.start(self._command, program, self.limits.output_bytes)
        stopped, began = None, time.monotonic()
        try:
            if running.has_started:
                stopped = await self._follow(running)
        finally:
            seconds = time.monotonic() - began
            await running.end()
        text = running.output.data.decode("utf-8", "replace")
        if not running.has_started:
            raise NotStarted(self.name, shown(text))
        if stopped is not None:
            return Outcome(output=text, seconds=seconds, stopped=stopped)
        note = note_of(text, self.limits) if running.exit_code == 1 else None
        return Outcome(output=text, seconds=seconds, exit_code=running.exit_code, note=note)

    def _command(self, ready: int) -> list[str]:
        plan = {
            "scratch": SCRATCH,
            "limits": asdict(self.limits),
            "filter": self._filter,
            "ready": ready,
            "python": self._layout.python,
        }
        inner = [self._layout.python, "-I", "-S", "-c", self._confine, json.dumps(plan)]
        return self._way(self._layout, self.limits, inner)

    async def _follow(self, running: Running) -> str | None:
        """Wait for the end; return the limit that was reached, None if the program ended by itself."""
        limits, loop = self.limits, asyncio.get_running_loop()
        until = loop.time() + limits.wall_s
        while True:
            left = until - loop.time()
            await asyncio.wait({running.reading}, timeout=max(0.0, min(LOOK_S, left)))
            if running.output.is_full:
                return f"printed more than {limits.output_bytes:,} bytes"
            if running.reading.done():
                return None
            if left <= 0:
                return f"timed out after {limits.wall_s:g} s"
            usage = await asyncio.to_thread(look, running.pid)  # thousands of mappings take long to read
            if (reason := beyond(usage, limits)) is not None:
                return reason


async def find_sandbox(limits: Limits | None = None) -> Sandbox:
    """Return the first sandbox that works here: bubblewrap, else user namespaces. Raises UserError: what is missing."""
    if sys.platform != "linux":
        raise UserError(refusal({}, has_bubblewrap=False))
    bubblewrap = find_bubblewrap()
    ways = {} if bubblewrap is None else {BUBBLEWRAP: with_bubblewrap(bubblewrap)}
    failures = {}
    for name, way in (ways | {NAMESPACES: with_namespaces}).items():
        try:
            outcome = await Sandbox(way, name, limits).run(TRIAL)
        except NotStarted as error:
            failures[name] = error.why
            continue
        if outcome.output == TRIAL_OUTPUT:
            return Sandbox(way, name, limits)
        failures[name] = shown(outcome.text)
    raise UserError(refusal(failures, has_bubblewrap=bubblewrap is not None))

"""A program in the sandbox as a process: its start, its output, and an end after which nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from asyncio import StreamReader
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from tempfile import TemporaryFile

from eyas.sandbox.layout import ENVIRONMENT
from eyas.sandbox.usage import children

__all__ = ["Output", "Running"]

START_S = 30.0  # for namespaces and mounts, on a busy machine
# For sh: where memory ends, this dies first.
FIRST_VICTIM = '{ echo 1000 >/proc/self/oom_score_adj; } 2>/dev/null; exec "$@"'


class Output:
    """The first `most` bytes that are read, and whether there were more."""

    def __init__(self, most: int) -> None:
        self.data = bytearray()
        self.is_full = False
        self._most = most

    async def read(self, stream: StreamReader) -> None:
        """Read to the end, which comes when the last process that could write has gone."""
        while data := await stream.read(1 << 16):
            self.data += data[: self._most - len(self.data) + 1]
            if len(self.data) > self._most:
                self.is_full = True
                del self.data[self._most :]


class Running:
    """A started process. `reading` is done when its output has ended; `end` must be awaited, whatever happens."""

    def __init__(self, process: Process, most_output: int) -> None:
        assert process.stdout is not None
        self.output = Output(most_output)
        self.reading = asyncio.create_task(self.output.read(process.stdout))
        self._process = process
        self._first: int | None = None  # descriptor of process 1 of its namespace

    @classmethod
    async def start(cls, command: Callable[[int], Sequence[str]], program: bytes, most_output: int) -> Running:
        """Start what `command` makes of the descriptor on which the other side says that it is ready.

        The program is its standard input. It waits until we hold process 1, whose end is that of all others.
        `has_started` says whether it came so far.
        """
        ours, theirs = socket.socketpair()
        with ours, TemporaryFile() as file:
            with theirs:
                file.write(program)
                file.seek(0)
                process = await asyncio.create_subprocess_exec(
                    "/bin/sh", "-c", FIRST_VICTIM, "sh", *command(theirs.fileno()),
                    stdin=file.fileno(), stdout=PIPE, stderr=STDOUT, cwd="/", env=ENVIRONMENT,
                    pass_fds=(theirs.fileno(),), start_new_session=True,
                )  # fmt: skip
            running = cls(process, most_output)
            try:
                await running._release(ours)
            except BaseException:
                await running.end()
                raise
        return running

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_started(self) -> bool:
        """Whether the program itself was started; if not, the output says what went wrong before."""
        return self._first is not None

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode

    async def end(self) -> None:
        """Kill what still runs, and wait until all of it has gone."""
        if self._first is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
            await _until_readable(self._first)
            os.close(self._first)
        elif self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        await self.reading
        await self._process.wait()  # which ends when all is read

    async def _release(self, ours: socket.socket) -> None:
        ours.setblocking(False)
        ended = asyncio.create_task(_until_readable(ours.fileno()))
        try:
            await asyncio.wait({ended, self.reading}, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        with suppress(OSError):
            if ours.recv(1):
                self._first = os.pidfd_open(children(self._process.pid)[0])
                ours.send(b"1")


async def _until_readable(descriptor: int) -> None:
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)

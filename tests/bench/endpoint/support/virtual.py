"""A loop whose clock is the next timer, and connections to a server of scripts in it: every time is exact.

Waits of the scripts are binary fractions, so that sums of them have no rounding.
"""

import asyncio
import selectors
from dataclasses import dataclass, field

import aiohttp
from aiohttp.base_protocol import BaseProtocol
from tests.bench.endpoint.support.scripts import SCRIPTS

__all__ = ["VirtualServer", "run_virtual"]


class _Selector(selectors.SelectSelector):
    """Lets the time that it would wait go by at once."""

    loop = None

    def select(self, timeout=None):
        assert timeout is not None, "nothing will ever happen any more"
        self.loop.now += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        self.now = 1024.0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self):
        return self.now


def run_virtual(main):
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


@dataclass
class VirtualServer:
    """Stands for `eyas.client.server.Server`; answers by its scripts in order, and keeps what it sent when."""

    names: list
    name: str = "stub"
    key: str | None = None
    received: list = field(default_factory=list)  # (time, body)
    sent: list = field(default_factory=list)  # of each request (time, kind, characters, tokens)
    num_running: int = 0
    most_running: int = 0

    async def send(self, method, path, body, *, until):
        loop = asyncio.get_running_loop()
        number = len(self.received)
        self.received.append((loop.time(), path, body))
        script = SCRIPTS[self.names[number % len(self.names)]]
        response = _Response(loop)
        self.sent.append([])
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        task = asyncio.ensure_future(self._answer(script, response, self.sent[-1]))
        response.task = task
        task.add_done_callback(self._over)
        return response

    async def close(self):
        pass

    def _over(self, task):
        self.num_running -= 1

    async def _answer(self, script, response, sent):
        loop = asyncio.get_running_loop()
        for send in script.sends:
            await asyncio.sleep(send.wait_s)
            sent += [(loop.time(), *chunk) for chunk in send.chunks]
            response.content.feed_data(send.data)
        if script.resets:
            response.content.set_exception(aiohttp.ClientConnectionError())
        else:
            response.content.feed_eof()


class _Connected(BaseProtocol):
    connected = True


class _Response:
    headers = {}  # noqa: RUF012
    content_type = "text/event-stream"
    task = None

    def __init__(self, loop):
        self.content = aiohttp.StreamReader(_Connected(loop), 1 << 16, loop=loop)

    def close(self):
        self.task.cancel()

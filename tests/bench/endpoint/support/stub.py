"""A server of scripts over HTTP, in a process or a thread of its own, that records when it sent what.

Times are of the monotonic clock, which all processes of a machine share. The first text of an answer is its number
(`#7 `), so that a client's record and the server's can be laid side by side. `GET /record` returns all of it.

    python -m tests.bench.endpoint.support.stub      prints its port
"""

import asyncio
import contextlib
import json
import socket
import threading
import time

from aiohttp import web
from tests.bench.endpoint.support.scripts import SCRIPTS, chunk

__all__ = ["StubServer", "served"]


class StubServer:
    """Answers by its scripts in order. `status` and `error` replace all answers, `dies_after` counts those before."""

    def __init__(self, names=("several tokens a chunk",), *, key=None, models=("stub",), dies_after=None):
        self.names, self.key, self.models, self.dies_after = names, key, models, dies_after
        self.received, self.sent, self.bodies = [], [], []
        self.refuses_usage = False

    def app(self):
        app = web.Application()
        app.add_routes([web.get("/v1/models", self.list_models), web.get("/record", self.record)])
        app.add_routes([web.post("/v1/chat/completions", self.answer), web.post("/v1/completions", self.answer)])
        return app

    async def list_models(self, request):
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": {"message": "wrong key"}}, status=401)
        return web.json_response({"data": [{"id": name, "owned_by": "tests"} for name in self.models]})

    async def record(self, request):
        return web.json_response({"received": self.received, "sent": self.sent})

    async def answer(self, request):
        received, number = time.monotonic(), len(self.received)
        body = await request.json()
        if (refusal := self._refusal(body)) is not None:
            return refusal
        if self.dies_after is not None and number >= self.dies_after:
            _cut(request)
            return web.Response()
        self.received.append(received)
        self.bodies.append(body)
        self.sent.append([])
        script = SCRIPTS[self.names[number % len(self.names)]]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):  # the client may leave
            await self._send(script, response, number, received)
        if script.resets:
            _cut(request)
        return response

    async def _send(self, script, response, number, until):
        is_named = False
        for send in script.sends:
            until += send.wait_s
            await asyncio.sleep(until - time.monotonic())
            data = send.data
            if not is_named and send.chunks and send.chunks[0][0] != "call":
                text, (kind, _, tokens) = f"#{number} ", send.chunks[0]
                name = "reasoning_content" if kind == "reasoning" else "content"
                data = f"data: {json.dumps(chunk(tokens=tokens, **{name: text}))}\n\n".encode()
                chunks, is_named = [(kind, len(text), tokens)], True
            else:
                chunks = send.chunks
            await response.write(data)
            self.sent[number] += [(time.monotonic(), *one) for one in chunks]

    def _refusal(self, body):
        if body["model"] not in self.models:
            return web.json_response({"error": {"message": f"no model {body['model']}"}}, status=404)
        if self.refuses_usage and "stream_options" in body:
            return web.json_response({"error": {"message": "unknown field stream_options"}}, status=400)
        return None


def _cut(request):
    if request.transport is not None:  # None: the client has left
        request.transport.abort()


@contextlib.contextmanager
def served(server):
    """Serve in a thread; yield the address. Leaving closes the port at once, and cuts what is being answered."""
    loop, ready, addresses = asyncio.new_event_loop(), threading.Event(), []

    async def main():
        runner = web.AppRunner(server.app(), shutdown_timeout=0.01, access_log=None)
        await runner.setup()
        listener = socket.create_server(("127.0.0.1", 0))
        await web.SockSite(runner, listener).start()
        addresses.append(f"http://127.0.0.1:{listener.getsockname()[1]}")
        ready.set()
        try:
            await server.ended
        finally:
            # asyncio leaves a socket open whose connection it accepted in the step that closes the port.
            loop.remove_reader(listener)
            await asyncio.sleep(0)
            await runner.cleanup()

    def run():
        server.ended = loop.create_future()
        with contextlib.closing(loop):
            loop.run_until_complete(main())

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(10)

    def end():
        if not loop.is_closed():
            loop.call_soon_threadsafe(lambda: server.ended.done() or server.ended.set_result(None))

    server.stop = end
    try:
        yield addresses[0]
    finally:
        end()
        thread.join(10)


if __name__ == "__main__":

    async def serve():
        stub = StubServer([name for name in SCRIPTS if name != "a call"])
        runner = web.AppRunner(stub.app(), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.Event().wait()

    asyncio.run(serve())

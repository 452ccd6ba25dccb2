"""A backend over HTTP whose every answer a script decides, and which keeps what it received.

In a test's own loop: `async with ScriptedBackend("a").serving() as backend: backend.url`; beside a test without one:
`with ScriptedBackend("a").in_thread() as backend`; as a process, for tests that kill it: `scripted_process`, or
`python -m tests.router.support.scripted --port 9001 --name a`. A request may bring its own script (`script.py`).
"""

import argparse
import asyncio
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
from aiohttp import web
from tests.router.support.script import DIALECTS, Answer, Script, script_of, user_text

__all__ = ["CANARY", "Received", "Script", "ScriptedBackend", "free_port", "scripted_process"]

CANARY = "Name the four seasons"  # of client/endpoint/canary.py
ROOT = Path(__file__).parents[3]
LINGER_0 = struct.pack("ii", 1, 0)  # close() resets the connection
READY_S = 60


@dataclass(eq=False)
class Received:
    """A request, as it came. `ended`: "" while it runs, whole, left (the client has), a status, or the script's end."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    script: Script
    is_canary: bool
    start: float = field(default_factory=time.monotonic)
    stop: float | None = None
    num_pieces: int = 0
    ended: str = ""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def mark(self) -> str:
        return self.script.mark

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)


class ScriptedBackend:
    """The server. `script` may be changed at any time; the canary's question has an answer of its own.

    `is_ours`: it looks like an eyas server, and has /v1/messages. `tokenizes_content`: it has llama-server's /tokenize.
    `key`: what it wants as a bearer token. `log`: a file that gets a line for the start of each request and for each
    piece, at once, so that it outlives a kill -9.
    """

    def __init__(
        self,
        name: str = "a",
        *,
        model: str = "scripted",
        script: Script | None = None,
        is_ours: bool = False,
        tokenizes_content: bool = False,
        key: str | None = None,
        port: int = 0,
        log: Path | None = None,
    ) -> None:
        self.name, self.model, self.key, self.is_ours = name, model, key, is_ours
        self.tokenizes_content = tokenizes_content
        self.script = script or Script()
        self.canary = Script(text="Spring, summer, autumn and winter are the four seasons.")
        self.models_hang = False  # /v1/models gets no answer
        self.is_held = False  # what is asked waits before it is answered
        self.received: list[Received] = []
        self.num_models_asked = 0
        self._port = port
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if log else None
        self._stored: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        """The address, without /v1. Known once it serves."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def asked(self) -> list[Received]:
        """Requests for answers, without the canary's."""
        return [one for one in self.received if not one.is_canary]

    def num_running(self) -> int:
        return sum(one.ended == "" for one in self.received)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=256 << 20)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_route("*", "/v1/responses/{id}", self._stored_response)
        app.router.add_get("/scripted/received", self._all_received)
        app.router.add_post("/scripted/script", self._new_script)
        for path in DIALECTS:
            if self.is_ours or path != "/v1/messages":
                app.router.add_post(path, self._answer)
        if self.is_ours:
            app.router.add_post("/v1/messages/count_tokens", self._count)
        return app

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["ScriptedBackend"]:
        """Serve in the running loop, on a free port unless one was given."""
        listener = socket.create_server(("127.0.0.1", self._port), backlog=512)
        self._port = listener.getsockname()[1]
        runner = web.AppRunner(self.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.SockSite(runner, listener).start()
            yield self
        finally:
            await runner.cleanup()
            listener.close()

    @contextmanager
    def in_thread(self) -> Iterator["ScriptedBackend"]:
        """Serve from a thread with a loop of its own."""
        ready, loop = threading.Event(), asyncio.new_event_loop()
        over = asyncio.Event()

        async def main() -> None:
            async with self.serving():
                ready.set()
                await over.wait()

        def run() -> None:
            with contextlib.closing(loop):
                loop.run_until_complete(main())

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert ready.wait(READY_S)
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(over.set)
            thread.join()

    async def _models(self, request: web.Request) -> web.Response:
        self.num_models_asked += 1
        self._check_key(request)
        while self.models_hang:
            await asyncio.sleep(0.05)
        owner = "eyas" if self.is_ours else "scripted"
        entry = {"id": self.model, "object": "model", "created": 1, "owned_by": owner, "max_model_len": 4096}
        return web.json_response({"object": "list", "data": [entry]})

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.tokenizes_content:
            return web.json_response({"tokens": list(range(len(body.get("content", "").split())))})
        num = len((body.get("prompt") or json.dumps(body.get("messages", ""))).split())
        return web.json_response({"count": num, "tokens": list(range(num)), "max_model_len": 4096})

    async def _count(self, request: web.Request) -> web.Response:
        self._check_key(request)
        return web.json_response({"input_tokens": len((await request.read()).split())})

    async def _stored_response(self, request: web.Request) -> web.Response:
        self._check_key(request)
        body = self._stored.get(request.match_info["id"])
        if request.method == "DELETE":
            self._stored.pop(request.match_info["id"], None)
        if body is None:
            error = {"message": "no such response", "type": "invalid_request_error", "param": None, "code": None}
            return web.json_response({"error": error}, status=404)
        if request.query_string:
            error = {"message": request.query_string, "type": "invalid_request_error", "param": None, "code": None}
            return web.json_response({"error": error}, status=400)
        if request.method == "DELETE":
            body = json.dumps({"id": request.match_info["id"], "object": "response", "deleted": True}).encode()
        return web.Response(body=body, content_type="application/json")

    async def _all_received(self, request: web.Request) -> web.Response:
        shown = ("path", "start", "stop", "num_pieces", "ended", "is_canary", "mark")
        return web.json_response([{name: getattr(one, name) for name in shown} for one in self.received])

    async def _new_script(self, request: web.Request) -> web.Response:
        self.script = msgspec.json.decode(await request.read(), type=Script)
        return web.json_response({})

    def _check_key(self, request: web.Request) -> None:
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            raise web.HTTPUnauthorized(text='{"error": {"message": "wrong key"}}', content_type="application/json")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw)
        text = user_text(body)
        is_canary = text.startswith(CANARY)
        script = self.canary if is_canary else script_of(text, self.script, self.name)
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.raw_headers]
        one = Received(request.method, request.path, headers, raw, script, is_canary)
        self.received.append(one)
        self._write({"start": script.mark, "by": self.name, "stream": bool(body.get("stream")), "canary": is_canary})
        self._check_key(request)
        try:
            return await self._play(request, one, body)
        except asyncio.CancelledError:
            one.ended = one.ended or "left"
            raise
        except ConnectionError:
            one.ended = one.ended or "left"
            return web.Response(status=500)  # nobody reads it
        finally:
            one.stop = time.monotonic()

    async def _play(self, request: web.Request, one: Received, body: Mapping[str, Any]) -> web.StreamResponse:
        script = one.script
        signed = f"{script.mark}_{self.name}_{len(self.received)}" if script.sign else script.mark
        answer = DIALECTS[request.path](msgspec.structs.replace(script, mark=signed), self._model_of(body), body)
        while self.is_held:
            await asyncio.sleep(0.01)
        await asyncio.sleep(script.before_s)
        if script.end and script.after is None:
            return await self._end(request, one, web.StreamResponse(), b"")
        headers = {"Server": "scripted/secret", "Set-Cookie": f"backend={self.name}", "x-by": self.name}
        headers |= {**script.headers}
        if script.retry_after is not None:
            headers["Retry-After"] = script.retry_after
        if script.location is not None:
            headers["Location"] = script.location
        if script.status != 200 or script.html or script.body is not None:
            one.ended = "html" if script.html else str(script.status)
            return self._other(request, script, headers)
        if not body.get("stream"):
            return await self._whole(request, one, answer, headers)
        response = web.StreamResponse(headers={**headers, "Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        return await self._stream(request, one, answer, response)

    def _model_of(self, body: Mapping[str, Any]) -> str:
        return str(body.get("model") or self.model)

    def _other(self, request: web.Request, script: Script, headers: Mapping[str, str]) -> web.Response:
        if script.html or script.body is not None:
            text, kind = script.body or "<html><body>Welcome to nginx!</body></html>", "text/html"
            kind = kind if script.html else "application/json"
            return web.Response(status=script.status, text=text, content_type=kind, headers=headers)
        error: dict[str, Any] = {"type": "api_error", "message": script.error}
        if request.path.startswith("/v1/messages"):
            return web.json_response({"type": "error", "error": error}, status=script.status, headers=headers)
        error |= {"param": None, "code": None}
        return web.json_response({"error": error}, status=script.status, headers=headers)

    async def _whole(
        self, request: web.Request, one: Received, answer: Answer, headers: Mapping[str, str]
    ) -> web.StreamResponse:
        script = one.script
        response = web.StreamResponse(headers={**headers, "Content-Type": "application/json"})
        share = min(1.0, (script.after or 0) / max(1, script.pieces))
        cut = answer.whole[: min(int(len(answer.whole) * share), len(answer.whole) - 1)]
        cut = json.dumps({"error": {"message": script.error}}).encode() if script.end == "error" else cut
        response.content_length = len(cut if script.end in ("short", "error") else answer.whole)
        await asyncio.sleep(script.first_s + script.between_s * script.pieces)
        self._write({"pieces": script.mark, "by": self.name})
        await response.prepare(request)
        if script.end:
            return await self._end(request, one, response, cut)
        await response.write(answer.whole)
        if request.path == "/v1/responses":
            self._stored[json.loads(answer.whole)["id"]] = answer.whole
        one.num_pieces, one.ended = script.pieces, "whole"
        await response.write_eof()
        return response

    async def _stream(
        self, request: web.Request, one: Received, answer: Answer, response: web.StreamResponse
    ) -> web.StreamResponse:
        script = one.script
        await response.write(b"".join(answer.opening))
        await self._wait(script.first_s, one, answer, response)
        for thought in answer.thoughts:
            await response.write(thought)
        for number, piece in enumerate(answer.pieces):
            if script.end and number == script.after:
                return await self._end(request, one, response, answer.error if script.end == "error" else b"", answer)
            if number:
                await self._wait(script.between_s, one, answer, response)
            self._write({"piece": script.mark, "by": self.name, "number": number + 1})
            await response.write(piece)
            one.num_pieces += 1
        if script.end:
            return await self._end(request, one, response, answer.error if script.end == "error" else b"", answer)
        if request.path == "/v1/responses":
            self._stored[json.loads(answer.whole)["id"]] = answer.whole
        one.ended = "whole"
        await response.write(b"".join(answer.closing))
        await response.write_eof()
        return response

    async def _wait(self, seconds: float, one: Received, answer: Answer, response: web.StreamResponse) -> None:
        """Wait, with noise if the script says so."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(left if one.script.noise_s is None else min(left, one.script.noise_s))
            if one.script.noise_s is not None and answer.noise:
                await response.write(b"".join(answer.noise))

    async def _end(
        self,
        request: web.Request,
        one: Received,
        response: web.StreamResponse,
        data: bytes,
        answer: Answer | None = None,
    ) -> web.StreamResponse:
        """End an answer in another way than well, after `data`."""
        end, transport = one.script.end, request.transport
        if data:
            await response.write(data)
        if end == "hang":
            empty = answer or Answer(opening=[], thoughts=[], pieces=[], closing=[], noise=[], error=b"", whole=b"")
            await self._wait(3600.0, one, empty, response)
        one.ended = end
        if end in ("short", "error") and response.prepared:
            await response.write_eof()
            return response
        if transport is not None:
            await asyncio.sleep(0)  # what was written leaves
            if end == "rst":
                transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_0)
                transport.abort()
            else:
                transport.close()
        return response

    def _write(self, line: Mapping[str, object]) -> None:
        if self._log is not None:
            os.write(self._log, json.dumps({**line, "at": time.monotonic()}).encode() + b"\n")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def start_scripted(port: int, name: str, *options: str) -> subprocess.Popen[bytes]:
    """Start a backend as a process; `wait_until_ready` waits for it."""
    command = [sys.executable, "-m", "tests.router.support.scripted", "--port", str(port), "--name", name, *options]
    return subprocess.Popen(command, cwd=ROOT, start_new_session=True)


def wait_until_ready(port: int, timeout_s: float = READY_S) -> None:
    """Wait until somebody answers /health there."""
    end = time.monotonic() + timeout_s
    while True:
        with suppress(httpx.HTTPError):
            if httpx.get(f"http://127.0.0.1:{port}/health", timeout=2).status_code == 200:
                return
        assert time.monotonic() < end, f"nobody answers on port {port}"
        time.sleep(0.02)


@contextmanager
def scripted_process(name: str, *options: str, port: int = 0) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a backend as a process that is ready; yields its address and the process, which may be gone at the end."""
    port = port or free_port()
    process = start_scripted(port, name, *options)
    try:
        wait_until_ready(port)
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.kill()  # SIGKILL ends a stopped process, too
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--name", default="a")
    parser.add_argument("--model", default="scripted")
    parser.add_argument("--ours", action="store_true")
    parser.add_argument("--key")
    parser.add_argument("--log", type=Path)
    parser.add_argument("--script", default="{}", help="JSON")
    args = parser.parse_args()
    script = msgspec.json.decode(args.script.encode(), type=Script)
    backend = ScriptedBackend(
        args.name, model=args.model, script=script, is_ours=args.ours, key=args.key, port=args.port, log=args.log
    )

    async def serve() -> None:
        async with backend.serving():
            await asyncio.Event().wait()

    with suppress(KeyboardInterrupt):
        asyncio.run(serve())


if __name__ == "__main__":
    main()

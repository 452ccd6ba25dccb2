"""An OpenAI endpoint over real HTTP whose replies a test writes: a peer's behaviour, faults included."""

import json
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DROP = object()  # close the connection without an answer


@dataclass
class Reply:
    """An HTTP answer; a `body` that is no text is sent as JSON."""

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


def said(content: str | None = None, *, calls=(), finish: str | None = None, **message: Any) -> Reply:
    """A chat completion. `calls` are pairs of name and arguments."""
    tool_calls = [
        {"id": f"new{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(calls)
    ]
    message |= {"role": "assistant", "content": content} | ({"tool_calls": tool_calls} if tool_calls else {})
    reason = finish or ("tool_calls" if tool_calls else "stop")
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    return Reply({"choices": [{"index": 0, "message": message, "finish_reason": reason}], "usage": usage})


class Scripted:
    """`script` makes a reply of each body; `bodies` and `keys` are what has come."""

    def __init__(self, script: Callable[[Any], Any]) -> None:
        self.script = script
        self.bodies: list[Any] = []
        self.keys: list[str | None] = []
        self.in_flight = self.most_in_flight = 0
        self.lock = threading.Lock()
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.send(Reply({"data": [{"id": "target"}]}))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with scripted.lock:
                    scripted.bodies.append(body)
                    scripted.keys.append(self.headers.get("authorization"))
                    scripted.in_flight += 1
                    scripted.most_in_flight = max(scripted.most_in_flight, scripted.in_flight)
                reply = scripted.script(body)
                with scripted.lock:
                    scripted.in_flight -= 1
                self.close_connection = True
                if reply is not DROP:
                    self.send(reply)

            def send(self, reply: Reply) -> None:
                content = (reply.body if isinstance(reply.body, str) else json.dumps(reply.body)).encode()
                self.send_response(reply.status)
                for name, value in {
                    "content-length": str(len(content)),
                    "connection": "close",
                    **reply.headers,
                }.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)
                self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 128

            def handle_error(self, *_: Any) -> None:
                """A client that is killed is no error."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def die(self) -> None:
        """Listen no more: connections are refused."""
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def scripted(script: Callable[[Any], Any]):
    """A scripted endpoint that ends with the test."""
    endpoint = Scripted(script)
    try:
        yield endpoint
    finally:
        endpoint.die()
        endpoint.thread.join()

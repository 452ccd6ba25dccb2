"""A server that says what a test wants: models, and Anthropic's events as they should be or spoilt."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = 64  # tokens; a token is a character here
MODELS = (
    {"id": "gpt-oss-20b", "object": "model", "max_model_len": 65536},
    {"id": "claude-local-gpt-oss-20b", "object": "model", "max_model_len": 65536},
)


class StandIn:
    """`key` is asked for if set, `statuses` answer paths with an error, `spoil` changes the events of an answer."""

    def __init__(self):
        self.url = ""
        self.models = list(MODELS)
        self.key = None
        self.statuses = {}
        self.spoil = lambda events: events
        self.is_caching = True
        self.seen = []  # (method, path, headers)
        self.bodies = []
        self._prompts = set()

    def get(self, path):
        if path in self.statuses:
            return self.statuses[path]
        return 200, {
            "/v1/models": {"object": "list", "data": self.models, "has_more": False},
            "/ready": {"status": "ready"},
            "/version": {"version": "1.2.3", "commit": None},
        }[path]

    def events(self, body):
        prompt = json.dumps([body.get("system"), body["messages"]])
        cached = len(prompt) // PAGE * PAGE if self.is_caching and prompt in self._prompts else 0
        self._prompts.add(prompt)
        usage = {"input_tokens": len(prompt) - cached, "cache_read_input_tokens": cached, "output_tokens": 1}
        if body.get("tools"):
            block = {"type": "tool_use", "id": "toolu_1", "name": body["tools"][0]["name"], "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": text} for text in ('{"colo', 'ur":"green"}')]
        else:
            block = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": text} for text in ("Hel", "lo")]
        stop = "tool_use" if body.get("tools") else "end_turn"
        yield {"type": "message_start", "message": {"usage": usage}}
        yield {"type": "ping"}
        yield {"type": "content_block_start", "index": 0, "content_block": block}
        yield from ({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas)
        yield {"type": "content_block_stop", "index": 0}
        yield {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 3}}
        yield {"type": "message_stop"}


def handler(server):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def do_GET(self):
            server.seen.append((self.command, self.path, dict(self.headers)))
            if server.key is not None and self.headers["authorization"] != f"Bearer {server.key}":
                return self.reply(401, json.dumps({"error": {"message": "no"}}))
            status, content = server.get(self.path)
            return self.reply(status, content if isinstance(content, str) else json.dumps(content))

        def do_POST(self):
            server.seen.append((self.command, self.path, dict(self.headers)))
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            server.bodies.append(body)
            if self.path in server.statuses:
                status, content = server.statuses[self.path]
                return self.reply(status, json.dumps(content))
            events = server.spoil(list(server.events(body)))
            lines = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
            return self.reply(200, "".join(lines))

        def reply(self, status, text):
            self.send_response(status)
            self.send_header("content-length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

    return Handler


@contextmanager
def stand_in():
    server = StandIn()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(server)) as http:
        http.daemon_threads = True
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        server.url = f"http://127.0.0.1:{http.server_address[1]}"
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()

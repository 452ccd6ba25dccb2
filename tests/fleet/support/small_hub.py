"""A small hub over HTTP: as much of its protocol as huggingface_hub needs to list and fetch repositories.

Faults on order: cut a connection, refuse without a token, answer 500. `asked` keeps what was asked, ranges too.
"""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = 1000  # bytes from which a file is stored apart, with its sha256 as ETag


@dataclass
class Hub:
    """`files` by repository and path. `cut_after`: bytes of a large file before the connection is dropped, once.

    `stalls`: it is not dropped, nothing more comes until the end of the test.
    """

    url: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    token: str = "hf_goodtoken"
    cut_after: int | None = None
    fails_after_cut: bool = False
    stalls: bool = False
    ended: threading.Event = field(default_factory=threading.Event)
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)  # method, path, range
    tokens: set[str] = field(default_factory=set)
    was_cut: bool = False

    def fetched(self) -> list[tuple[str, str | None]]:
        """Paths of the files whose content was asked for, with the range."""
        contents = [item for item in self.asked if item[0] == "GET" and "/resolve/" in item[1]]
        return [(path.split(f"/{COMMIT}/")[-1], span) for _, path, span in contents]


def etag(content: bytes) -> str:
    if len(content) >= LARGE:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()  # as git names it


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args) -> None: ...

    def do_HEAD(self) -> None:
        self.answer(False)

    def do_GET(self) -> None:
        self.answer(True)

    def answer(self, has_body: bool) -> None:
        hub, path = self.hub, unquote(urlparse(self.path).path)
        hub.asked.append((self.command, path, self.headers.get("Range")))
        bearer = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if bearer:
            hub.tokens.add(bearer)
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
            self.listing(match[1], match[2], has_body)
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            repo, name = match.groups()
            if repo in hub.gated and bearer != hub.token:
                self.refuse(401, "GatedRepo", f"Access to model {repo} is restricted")
            elif name not in hub.files.get(repo, {}):
                self.refuse(404, "EntryNotFound", "Entry not found")
            elif hub.fails_after_cut and hub.was_cut and has_body:
                self.refuse(500, "Broken", "Internal error")
            else:
                self.content(hub.files[repo][name], has_body)
        else:
            self.refuse(404, "EntryNotFound", "no such route")

    def listing(self, repo: str, revision: str, has_body: bool) -> None:
        if repo not in self.hub.files:
            return self.refuse(401, "RepoNotFound", "Repository not found")
        if revision not in ("main", COMMIT):
            return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        siblings = []
        for name, content in self.hub.files[repo].items():
            sibling = {"rfilename": name, "size": len(content), "blobId": hashlib.sha1(content).hexdigest()}
            if len(content) >= LARGE:
                sibling["lfs"] = {"sha256": etag(content), "size": len(content), "pointerSize": 130}
            else:
                sibling["blobId"] = etag(content)
            siblings.append(sibling)
        body = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings, "private": False}
        self.send(200, {"Content-Type": "application/json"}, json.dumps(body).encode(), has_body)

    def content(self, content: bytes, has_body: bool) -> None:
        hub = self.hub
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{etag(content)}"', "Accept-Ranges": "bytes"}
        if len(content) >= LARGE:
            headers |= {"X-Linked-Etag": f'"{etag(content)}"', "X-Linked-Size": str(len(content))}
        status, begin = 200, 0
        if match := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or ""):
            status, begin = 206, int(match[1])
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        if has_body and len(content) >= LARGE and hub.cut_after is not None and not hub.was_cut:
            hub.was_cut = True
            self.send(status, headers, content[begin:], True, cut=hub.cut_after)
            return
        self.send(status, headers, content[begin:], has_body)

    def refuse(self, status: int, code: str, message: str) -> None:
        self.send(status, {"X-Error-Code": code, "X-Error-Message": message}, b"", False)

    def send(self, status, headers, body: bytes, has_body: bool, *, cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if has_body:
            self.wfile.write(body[:cut])
        if cut is not None:
            self.wfile.flush()
            if self.hub.stalls:
                self.hub.ended.wait()
            self.close_connection = True


@contextmanager
def small_hub() -> Iterator[Hub]:
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("HubHandler", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        hub.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()

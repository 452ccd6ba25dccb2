"""Hub ids against a local server that speaks the hub's protocol: what is fetched, cached, and said when it fails."""

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub.constants as constants
import pytest

from eyas.base.errors import UserError
from eyas.model.checkpoints.hub import resolve, resolve_headers
from eyas.model.checkpoints.loader import inspect_target
from eyas.model.commands.describe import describe
from eyas.model.making.make import make_target
from eyas.model.making.presets import PRESETS

COMMIT = "c" * 40


class Hub(BaseHTTPRequestHandler):
    """The few endpoints that a snapshot needs; one repository, gated and missing ones by name."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self._answer(body=False)

    def do_GET(self):
        self._answer(body=True)

    def _answer(self, *, body):
        self.server.requests.append(self.path)
        match = re.fullmatch(r"(?:/api/models)?/([\w-]+/[\w-]+)(/.*)?", self.path.split("?")[0])
        repo, rest = match[1], match[2] or ""
        if repo != "acme/tiny":
            code = (403, "GatedRepo") if repo == "acme/gated" else (401, "RepoNotFound")
            return self._send(*code, b"", body)
        files = self.server.files
        if self.path.startswith("/api/models"):
            if "nowhere" in rest:
                return self._send(404, "RevisionNotFound", b"", body)
            listing = [{"type": "file", "path": n, "size": len(d), "oid": digest(d)} for n, d in files.items()]
            siblings = [{"rfilename": name} for name in files]
            value = listing if "/tree/" in rest else {"id": repo, "sha": COMMIT, "siblings": siblings}
            return self._send(200, None, json.dumps(value).encode(), body)
        name = re.fullmatch(r"/resolve/[^/]+/(.*)", rest)[1]
        if name not in files:
            return self._send(404, "EntryNotFound", b"", body)
        self._send(200, None, files[name], body)

    def _send(self, status, error, data, body):
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked:
            status, data = 206, data[int(asked[1]) : int(asked[2] or len(data)) + 1]
        self.send_response(status)
        if error:
            self.send_header("X-Error-Code", error)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{digest(data)}"')
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.server.sent_bytes += len(data)
            self.wfile.write(data)

    def log_message(self, *_):
        pass


def digest(data):
    return hashlib.sha1(data).hexdigest()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    folder = make_target(PRESETS["tiny"], tmp_path / "source", shard_bytes=400_000)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.files = {path.name: path.read_bytes() for path in folder.iterdir()}
    twins = ("original/model.safetensors", "original/config.json", "metal/model.bin", "pickle.bin", "code.py")
    server.files |= dict.fromkeys(twins, b"must not be fetched")
    server.requests, server.sent_bytes = [], 0
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_fetches_the_top_level_and_no_twins(hub):
    folder = resolve("acme/tiny")
    wanted = {name for name in hub.files if name.endswith((".json", ".safetensors")) and "/" not in name}
    assert {path.name for path in folder.iterdir()} == wanted and len(wanted) > 5
    assert inspect_target(folder)[0] == PRESETS["tiny"]


def test_a_cached_model_needs_no_network(hub, monkeypatch):
    folder = resolve("acme/tiny@main")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    assert resolve("acme/tiny@main") == folder
    assert resolve(f"acme/tiny@{COMMIT}") == folder
    assert hub.requests == []


def test_headers_alone_are_fetched_for_a_description(hub):
    folder, stored = resolve_headers("acme/tiny")
    assert not list(folder.glob("*.safetensors"))
    description = describe(folder, stored)
    assert hub.sent_bytes < sum(map(len, hub.files.values())) / 2
    assert description == describe(*resolve_headers(str(resolve("acme/tiny"))))
    assert resolve_headers("acme/tiny") == (folder, None)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("acme/gated", "acme/gated asks for consent first"),
        ("acme/missing", "acme/missing is not on the hub, or private"),
        ("acme/tiny@nowhere", "acme/tiny@nowhere has no such revision"),
        ("no-such-folder", "neither a folder nor a hub id"),
        ("../acme/tiny", "neither a folder nor a hub id"),
        ("a/b/c", "neither a folder nor a hub id"),
    ],
)
def test_one_clear_line(hub, model, message):
    with pytest.raises(UserError, match=message) as caught:
        resolve(model)
    assert "\n" not in str(caught.value)


def test_offline_and_not_cached(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for ask in (resolve, resolve_headers):
        with pytest.raises(UserError, match="acme/tiny is not cached, and the hub cannot be reached"):
            ask("acme/tiny")
    assert hub.requests == []


def test_a_hub_that_does_not_answer(hub, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="acme/tiny is not cached, and the hub cannot be reached"):
        resolve("acme/tiny")


def test_a_hub_that_breaks_off_or_has_other_weights(hub):
    hub.files = {name: data for name, data in hub.files.items() if not name.startswith("model")}
    with pytest.raises(UserError, match="acme/tiny has no safetensors weights at its top level"):
        resolve_headers("acme/tiny")
    hub.files["model.safetensors"] = b"\xff" * 100
    with pytest.raises(UserError, match=r"acme/tiny could not be read from the hub \(.+\); try again") as caught:
        resolve_headers("acme/tiny")
    assert "\n" not in str(caught.value)


def test_paths(tmp_path):
    assert resolve(str(tmp_path)) == tmp_path
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="is a file; give the folder"):
        resolve(str(tmp_path / "model.safetensors"))

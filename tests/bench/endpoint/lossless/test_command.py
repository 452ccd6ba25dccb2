"""`eyas bench endpoint --lossless` against two servers over HTTP: what it prints, keeps and returns."""

import argparse
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import msgspec
import pytest
from tests.bench.endpoint.lossless.test_lossless import Engine

from eyas.base.errors import UserError
from eyas.bench.endpoint.command import add_arguments, run
from eyas.bench.endpoint.lossless.command import Result


@contextmanager
def serving(engine):
    """An engine as a server on this machine; its models are vLLM's."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            is_list = self.path == "/v1/models"
            self._send(200 if is_list else 404, b'{"data": [{"id": "m", "owned_by": "vllm"}]}' if is_list else b"{}")

        def do_POST(self):
            content = self.rfile.read(int(self.headers["Content-Length"]))
            answer = engine(httpx.Request("POST", self.path, content=content))
            self._send(answer.status_code, answer.content)

        def _send(self, status, body):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def called(*words):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(words))


def test_it_prints_keeps_and_returns_what_it_found(capsys, tmp_path):
    out = tmp_path / "found.json"
    with serving(Engine()) as off, serving(Engine(lambda number, gap: number == 220)) as on:
        words = [f"--arm=off={off}", f"--arm=on={on}", "--lossless=400", "--max-tokens=100", "--concurrency=1"]
        assert called(*words, f"--out={out}") == 1
        said = capsys.readouterr().out
        with pytest.raises(UserError, match="is there already"):
            called(*words, f"--out={out}")
    assert "on against off: 1 defect in " in said and "first defect: chat/" in said
    kept = msgspec.json.decode(out.read_bytes(), type=Result)
    line = json.loads(said.splitlines()[-1])
    assert line["lossless"] == json.loads(out.read_bytes())["lossless"]
    assert kept.stamp.endpoint.keys() == {"off", "on"}
    with serving(Engine()) as off, serving(Engine()) as on:
        assert called(off, on, "--lossless=200", "--max-tokens=100") == 0
    assert "B against A: no defect in " in capsys.readouterr().out


def test_one_endpoint_is_not_two():
    with serving(Engine()) as url, pytest.raises(UserError, match="compares two endpoints"):
        called(url, "--lossless")


@pytest.mark.parametrize("gap", ["x", "-1", "nan"])
def test_a_gap_is_a_number(gap, capsys):
    with pytest.raises(SystemExit):
        called("http://x:1", f"--near-tie={gap}")
    assert "--near-tie: wants a difference of log-probabilities such as 0.25" in capsys.readouterr().err

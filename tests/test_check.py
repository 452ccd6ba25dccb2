"""`eyas check` as it is called: lines, exit codes, requests to repeat with curl, JSON, and servers that are none."""

import asyncio
import json
import os
import shutil
import subprocess
import threading
from contextlib import ExitStack, contextmanager

import pytest
from tests.bench.check.support.stub import serving
from tests.support.serving import served

from eyas import cli
from eyas.bench.check import watching
from eyas.bench.check.smoke import CHECKS

KEY = "sk-very-secret-4711"


@contextmanager
def stub(*faults, **settings):
    """A stub in a loop of its own, since the command has its own as well."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = serving(*faults, **settings)
    try:
        yield asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(10)
        asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(watching, "MOVES_S", 0.3)
    monkeypatch.setattr(watching, "FREED_S", 0.5)
    monkeypatch.delenv("EYAS_API_KEY", raising=False)


def check(capsys, *argv):
    code = cli.main(["check", *map(str, argv)])
    out, err = capsys.readouterr()
    return code, out.splitlines(), err


def test_a_sound_server_with_a_key(capsys):
    with stub(key=KEY) as server:
        code, lines, err = check(capsys, f"{server.url}/v1", "--api-key", KEY)
    assert (code, err) == (0, "")
    assert lines[0] == f"eyas check: 'toy' at {server.url}"
    assert [line.split()[0] for line in lines[1 : len(CHECKS) + 1]] == ["ok"] * len(CHECKS)
    assert lines[len(CHECKS) + 1].split()[:2] == ["missing", "/v1/messages"]
    assert lines[-1] == f"{len(CHECKS)} ok, 1 missing"
    assert KEY not in "".join(lines)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_what_is_broken_can_be_repeated_by_curl(capsys, monkeypatch, tmp_path):
    """A short body stands in the line, a long one in a file; the key is taken from the shell."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with stub("errors as HTML", "500 on long prompts", key=KEY) as server:
        code, lines, _ = check(capsys, server.url, "--api-key", KEY)
        said = [run_curl(line.strip()) for line in lines if line.strip().startswith("curl ")]
    assert code == 1 and KEY not in "".join(lines)
    assert len(said) == 2 and "400 Bad Request" in said[0] and "<h1>Bad Gateway</h1>" in said[0]
    assert "500 Internal Server Error" in said[1] and "illegal memory access" in said[1]
    (path,) = (tmp_path / "eyas-check").iterdir()
    assert path.name == "long-prompt.json" and KEY not in path.read_text()


def run_curl(line):
    environ = os.environ | {"EYAS_API_KEY": KEY, "no_proxy": "*"}
    return subprocess.run(["bash", "-c", line], env=environ, capture_output=True, text=True, timeout=30).stdout


def test_json(capsys):
    with stub("stop ignored") as server:
        code, lines, _ = check(capsys, server.url, "--json", "--model", "toy")
    report = json.loads("\n".join(lines))
    assert code == 1 and (report["url"], report["model"]) == (server.url, "toy")
    verdicts = {one["name"]: one["verdict"] for one in report["findings"]}
    assert verdicts.pop("stop") == "broken" and verdicts.pop("/v1/messages") == "missing"
    assert set(verdicts.values()) == {"ok"}
    (curl,) = (one["curl"] for one in report["findings"] if one["verdict"] == "broken")
    assert curl.startswith("curl -sS -i http://127.0.0.1:") and '"stop": ["' in curl


def test_a_server_that_dies_in_between_leaves_what_was_found(capsys):
    with stub(dies_after=9) as server:
        code, lines, err = check(capsys, server.url)
    assert (code, err) == (1, "")
    verdicts = [line.split()[0] for line in lines[1:] if line[0] != " "]
    assert verdicts[:4] == ["ok"] * 4 and verdicts.count("broken") > 3
    assert any("no answer (Server disconnected" in line for line in lines)


def test_a_body_that_cannot_be_written_ends_nothing(capsys, monkeypatch, tmp_path):
    (tmp_path / "eyas-check").write_text("in the way")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with stub("500 on long prompts") as server:
        code, lines, _ = check(capsys, server.url)
    assert code == 1 and any("eyas-check cannot be written: File exists)" in line for line in lines)
    assert lines[-1] == f"{len(CHECKS) - 1} ok, 1 missing, 1 broken"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["{url}", "--api-key", "wrong"], "the server at {url} refuses this API key"),
        (["{url}"], "the server at {url} wants an API key: --api-key env:NAME"),
        (["{url}", "--api-key", KEY, "--model", "toyy"], "has no model 'toyy' (did you mean 'toy'?)"),
        (["{url}/nothing", "--api-key", KEY], "{url}/nothing lists no model"),
        (["http://127.0.0.1:9"], "http://127.0.0.1:9: no answer (All connection attempts failed); start the server"),
    ],
)
def test_what_is_no_endpoint_is_one_line(capsys, argv, words):
    with stub(key=KEY) as server:
        code, lines, err = check(capsys, *(word.format(url=server.url) for word in argv))
    assert (code, lines) == (1, [])
    assert err.startswith("eyas: error: ") and words.format(url=server.url) in err and len(err.splitlines()) == 1
    assert KEY not in err


def test_an_address_that_is_none(capsys):
    with pytest.raises(SystemExit) as error:
        cli.main(["check", "http://user:secret@host"])
    err = capsys.readouterr().err
    assert error.value.code == 2 and "wants a URL" in err and "secret" not in err


@pytest.mark.slow
def test_ours(capsys, monkeypatch):
    """All is well but for the long prompt, which the demo model's context of 4,096 tokens does not hold."""
    monkeypatch.undo()
    with ExitStack() as stack:
        server = stack.enter_context(served("demo", "--api-key", KEY, "--draft-tokens", "3"))
        code, lines, _ = check(capsys, server.url, "--api-key", KEY)
    verdicts = {
        line[11:26].strip(): line.split()[0] for line in lines[1:] if line.startswith(("ok", "miss", "brok", "not"))
    }
    print("\n".join(lines))
    assert code == 0 and len(verdicts) == len(CHECKS) + 1
    assert {name for name, verdict in verdicts.items() if verdict != "ok"} == {"long prompt"}

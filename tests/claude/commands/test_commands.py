"""The commands as a person meets them: what they print, one line for what is wrong, exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.claude.support.stand_in_client import Client, is_gone

from eyas import cli

TEXT = '{"model": "opus", "env": {"MINE": "1"}}'


@pytest.fixture
def mine(home):
    """The person's settings.json."""
    path = home / ".claude" / "settings.json"
    path.parent.mkdir()
    path.write_text(TEXT)
    return path


def eyas(capsys, *argv):
    """Exit code, standard output and standard error of a command."""
    try:
        code = cli.main(["claude", *argv])
    except SystemExit as stop:
        code = stop.code
    return code, *capsys.readouterr()


def fails(capsys, *argv, code=1):
    """The one line on standard error."""
    found, out, error = eyas(capsys, *argv)
    assert (found, out) == (code, "") and error.startswith("eyas: error: ") and error.count("\n") == 1
    return error


def test_print(server, home, capsys):
    code, out, error = eyas(capsys, "print", "--url", f"{server.url}/v1")
    assert (code, error) == (0, "")
    assert json.loads(out)["env"]["ANTHROPIC_BASE_URL"] == server.url
    assert not list(home.iterdir())


def test_write_and_undo(server, home, mine, capsys):
    code, out, _ = eyas(capsys, "write", "--url", server.url)
    assert (code, out) == (0, f"written into {mine}; eyas claude undo takes it out again\n")
    content = json.loads(mine.read_text())
    assert content["model"] == "opus" and content["env"]["MINE"] == "1"
    assert content["env"]["ANTHROPIC_BASE_URL"] == server.url
    mine.write_text(mine.read_text().replace('"model": "opus"', '"model": "haiku"').replace('"19456"', '"9999"'))
    code, out, _ = eyas(capsys, "undo")
    assert code == 0 and out == (
        f"env.CLAUDE_CODE_MAX_OUTPUT_TOKENS was changed since and stays as it is\nundone in {mine}\n"
    )
    assert mine.read_text() == ('{"model": "haiku", "env": {"MINE": "1", "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "9999"}}')
    assert "nothing to undo" in fails(capsys, "undo")


def test_other_files(server, home, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "config"))
    for options, path in (
        (("--project",), tmp_path / ".claude" / "settings.json"),
        (("--settings", "x.json"), tmp_path / "x.json"),
        ((), tmp_path / "config" / "settings.json"),
    ):
        code, out, _ = eyas(capsys, "write", "--url", server.url, *options)
        assert code == 0 and f"; {' '.join(('eyas claude undo', *options))} takes" in out
        assert path.exists()
        assert eyas(capsys, "undo", *options)[0] == 0
        assert not path.exists()
    assert "not allowed with argument" in fails(capsys, "undo", "--project", "--settings", "x", code=2)


def test_a_key_is_asked_of_the_server_and_written_nowhere(server, home, mine, monkeypatch, capsys):
    server.key = "s3cret"
    monkeypatch.setenv("SERVER_KEY", "s3cret")
    assert "wants an API key" in fails(capsys, "write", "--url", server.url)
    assert "wants env:NAME" in fails(capsys, "write", "--url", server.url, "--api-key", "s3cret", code=2)
    assert "'NO_KEY', which is not set" in fails(capsys, "print", "--api-key", "env:NO_KEY", code=2)
    assert eyas(capsys, "write", "--url", server.url, "--api-key", "env:SERVER_KEY")[0] == 0
    assert json.loads(mine.read_text())["apiKeyHelper"] == "printenv SERVER_KEY"
    assert all("s3cret" not in path.read_text() for path in home.rglob("*") if path.is_file())


def test_no_json(server, mine, capsys):
    mine.write_text("// mine")
    assert f"{mine} is left alone: it is no JSON" in fails(capsys, "write", "--url", server.url)
    assert mine.read_text() == "// mine"


@pytest.mark.parametrize("command", [[], ["print"], ["write"]])
def test_a_small_context(server, mine, tmp_path, capsys, command):
    server.models[1] = server.models[1] | {"max_model_len": 4096}
    binary = [] if command else ["--binary", str(Client(tmp_path).program)]
    error = fails(capsys, *command, "--url", server.url, *binary)
    assert "4,096 tokens of context" in error and "eyas serve openai/gpt-oss-20b --context 64k" in error
    assert mine.read_text() == TEXT


def test_check(server, capsys):
    code, out, _ = eyas(capsys, "check", "--url", server.url)
    lines = out.splitlines()
    assert code == 0 and [line.split()[0] for line in lines] == [
        "server",
        "key",
        "context",
        "stream",
        "repeat",
        "tools",
    ]
    assert lines[0] == f"server   claude-local-gpt-oss-20b at {server.url} (eyas 1.2.3)"
    assert lines[1] == "key      ok: none is asked for" and all(" ok: " in line for line in lines[1:])
    server.is_caching = False
    code, out, _ = eyas(capsys, "check", "--url", server.url)
    assert code == 1 and "\nrepeat   FAILED: 0 of " in out


def test_the_client_is_started(server, mine, tmp_path):
    server.key = "s3cret"
    client = Client(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "eyas", "claude", "--url", server.url, "--api-key", "env:KEY", "--", "-p", "fail"],
        env=os.environ
        | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "KEY": "s3cret", "XDG_RUNTIME_DIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "the client's output\n", "")
    report = client.report()
    assert report["argv"][2:] == ["-p", "fail"] and report["settings"]["env"]["ANTHROPIC_AUTH_TOKEN"] == "s3cret"
    assert is_gone(Path(report["path"])) and mine.read_text() == TEXT


def test_what_cannot_be_started(server, home, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "Claude Code is not installed; get it with: npm install -g" in fails(capsys, "--url", server.url)
    Client(tmp_path)
    assert "no server answers at http://127.0.0.1:9" in fails(capsys, "--url", "http://127.0.0.1:9")
    server.key = "s3cret"
    assert "refuses this API key" in fails(capsys, "--url", server.url, "--api-key", "other")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["prnt"], "unexpected 'prnt' (did you mean 'print'?); what is for Claude Code follows --"),
        (["--url", "http://x", "hello"], "unexpected 'hello'; what is for Claude Code follows --"),
        (["-p", "--", "x"], "unexpected '-p'"),
        (["--url", "x"], "argument --url: wants a URL such as http://127.0.0.1:8000, got 'x'"),
        (["check", "x"], "unexpected 'x'"),
    ],
)
def test_wrong_usage(capsys, argv, words):
    assert words in fails(capsys, *argv, code=2)


def test_help_names_the_other_commands(capsys):
    code, out, _ = eyas(capsys, "--help")
    words = " ".join(out.split())
    assert code == 0 and all(f"eyas claude {name}" in words for name in ("print", "write", "undo", "check"))

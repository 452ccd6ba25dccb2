"""The command line as a person meets it: help, errors of one line, exit codes, and a server that stops cleanly."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest
from tests.gateway.support import build_tokenizer

from eyas import cli

STUB_SERVER = """
import sys
from pathlib import Path
from eyas import cli, serve
from eyas.base.harmony import stop_ids
from eyas.base.tokenizer import Tokenizer
from eyas.base.types import ModelInfo
from eyas.engine.stub import StubEngine

def load(config):
    codec = Tokenizer.load(Path(sys.argv[1]))
    info = ModelInfo(name="stub", context=5000, vocab_size=codec.vocab_size, eos_ids=stop_ids(codec), drafter="eagle3")
    ids = [codec.special["<|message|>"], *codec.encode("go " * 1000)]
    engine = StubEngine(info, lambda request, choice: ids, round_s=0.02)
    engine.tokenizer = codec
    return engine

serve.load_engine = load
serve.DRAIN_S = int(sys.argv[2])
sys.exit(cli.main(["serve", "--port", "0", "--served-name", "bird"]))
"""


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer(folder)
    return folder


def eyas(*argv, **environ):
    return subprocess.run(
        [sys.executable, "-m", "eyas", *argv],
        capture_output=True,
        text=True,
        timeout=60,
        env=clean_environ() | environ,
    )


def clean_environ():
    return {name: value for name, value in os.environ.items() if not name.startswith("EYAS_")}


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_overview_lists_every_command(argv, capsys):
    assert cli.main(argv) == 0
    out = capsys.readouterr().out
    assert all(f"eyas {name}" in out and command.help in out for name, command in cli.COMMANDS.items())


def test_help_of_a_group(capsys):
    assert cli.main(["bench"]) == 0
    out = capsys.readouterr().out
    assert "eyas bench engine" in out and "eyas serve" not in out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["srve"], "no command 'srve' (did you mean 'serve'?)"),
        (["bench", "engin"], "no command 'bench engin' (did you mean 'engine'?)"),
        (["serve", "--prot", "1"], "unexpected '--prot' (did you mean '--port'?); try: eyas serve --help"),
        (["serve", "--por=1"], "unexpected '--por=1' (did you mean '--port'?)"),
        (["serve", "a", "b"], "unexpected 'b'"),
        (["serve", "--port", "x"], "argument --port: wants a number such as 4096 or 32k, got 'x'"),
        (["generate"], "PROMPT"),
    ],
)
def test_wrong_usage_is_one_line(argv, words):
    done = eyas(*argv)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("eyas: error: ") and words in done.stderr and done.stderr.count("\n") == 1


def test_wrong_settings_are_one_line(tmp_path):
    done = eyas("serve", EYAS_DRAFT_TOKEN="3")
    assert done.returncode == 1
    assert (
        done.stderr
        == "eyas: error: unknown environment variable EYAS_DRAFT_TOKEN (did you mean 'EYAS_DRAFT_TOKENS'?)\n"
    )


def test_a_port_in_use_is_said_before_anything_is_loaded():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = eyas("serve", "/no/such/model", "--port", str(port))
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == f"eyas: error: port {port} on 127.0.0.1 is in use; choose another with --port, or --port 0\n"


def test_an_address_of_another_machine():
    done = eyas("serve", "--host", "192.0.2.1", "--port", "0")
    assert done.returncode == 1 and "cannot listen on 192.0.2.1" in done.stderr and done.stderr.count("\n") == 1


def test_the_reader_of_a_pipe_may_leave():
    done = subprocess.run(
        f"{sys.executable} -m eyas --help | true", shell=True, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""


@contextmanager
def stub_server(folder, drain_s=600):
    """`eyas serve` with the stub in the engine's place, in its own process; yields (process, port)."""
    process = subprocess.Popen(
        [sys.executable, "-c", STUB_SERVER, str(folder), str(drain_s)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environ(),
    )
    try:
        lines = [process.stdout.readline() for _ in range(4)]
        assert lines[0].startswith("model    stub: context 5,000 tokens"), process.communicate()
        url = lines[3].split()[1]
        yield process, int(url.rsplit(":", 1)[1].removesuffix("/v1"))
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_an_idle_server(tokenizer_folder, number):
    with stub_server(tokenizer_folder) as (process, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/ready")
        assert json.load(connection.getresponse())["model"] == "bird"
        connection.close()
        process.send_signal(number)
        _, err = process.communicate(timeout=20)
        assert (process.returncode, err) == (0, "")
        socket.create_server(("127.0.0.1", port)).close()


@contextmanager
def streaming(port):
    """A response in the middle of its answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    with connection.getresponse() as response:
        assert response.read(10)
        yield response
    connection.close()


def test_an_answer_that_outlasts_the_time_to_drain_is_told_so(tokenizer_folder):
    with stub_server(tokenizer_folder, drain_s=1) as (process, port), streaming(port) as response:
        process.send_signal(signal.SIGTERM)
        last = json.loads(response.read().split(b"data: ")[-1])
        assert last["error"]["message"] == "the request was cancelled: the server is stopping"
        out, err = process.communicate(timeout=20)
        assert (process.returncode, err) == (0, "") and "stopping: running answers get 1 s" in out


def test_a_second_signal_does_not_wait(tokenizer_folder):
    with stub_server(tokenizer_folder) as (process, port), streaming(port):
        process.send_signal(signal.SIGINT)
        while not process.stdout.readline().startswith("stopping"):
            pass
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
        assert process.returncode == 0

"""The command line as a person meets it: help, errors of one line, exit codes."""

import os
import shlex
import socket
import subprocess
import sys

import pytest

from eyas import cli


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
        (["serve", "--por=1"], "unexpected '--por' (did you mean '--port'?)"),
        (["train", "run", "x.yaml", "--apikey=sk-secret"], "unexpected '--apikey'; try"),
        (["serve", "a", "b"], "unexpected 'b'"),
        (["serve", "--port", "x"], "argument --port: wants a number such as 4096 or 32k, got 'x'"),
        (["generate"], "PROMPT"),
        (["model"], "no command 'model'; it is eyas models now; try: eyas --help"),
        (["model", "make", "tiny"], "no command 'model'; it is eyas models now"),
        (["plan", "demo", "--head", "x"], "no option --head; it is --draft now; try: eyas plan --help"),
        (["models", "make", "tiny", "--head=none"], "no option --head; it is --draft now"),
        (["up", "demo", "--listen", "::1"], "no option --listen; it is --host now"),
        (["up", "demo", "--api-key-env", "KEY"], "no option --api-key-env; it is --api-key env:NAME now"),
        (
            ["plan", "demo", "--api-key", "s3cret"],
            "wants env:NAME, the name of an environment variable, not the key itself",
        ),
        (["serve", "--api-keys", "a,b"], "no option --api-keys; it is --api-key now"),
        (["serve", "--api-key", "a,env:NO_SUCH_KEY"], "names the environment variable 'NO_SUCH_KEY', which is not set"),
        (["bench", "http", "--key", "a"], "no option --key; it is --api-key now"),
        (["bench", "http", "--api-key", "env:NO_SUCH_KEY"], "variable 'NO_SUCH_KEY', which is not set"),
        (["bench", "acceptance", "x.jsonl", "--model", "demo"], "no option --model; it is the argument MODEL now"),
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
        f"{shlex.quote(sys.executable)} -m eyas --help | true", shell=True, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""

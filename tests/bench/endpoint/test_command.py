"""`eyas bench endpoint` from outside: what it prints, keeps and refuses, against a server over HTTP."""

import json
import resource
import signal
import threading
import time

import pytest
from tests.bench.endpoint.support.stub import StubServer, served

from eyas.bench.endpoint.journal import read_run
from eyas.cli import main

pytestmark = pytest.mark.usefixtures("any_lag")

QUICK = ("--concurrency", "2", "--duration", "0.5", "--warm-up", "0", "--turns", "1", "--max-tokens", "16")


def bench(*words):
    return main(["bench", "endpoint", *words])


def last_json(capsys):
    return json.loads(capsys.readouterr().out.strip().rpartition("\n")[2])


@pytest.mark.slow
def test_two_arms_take_turns_and_each_window_is_kept(tmp_path, capsys, monkeypatch):
    out = tmp_path / "run.jsonl"
    with served(StubServer(["several tokens a chunk"])) as one, served(StubServer(["counts along"])) as two:
        arms = ("--arm", f"off={one}/v1", "--arm", f"on={two}", "--prompts", "chat,tools", "--api-key", "secret-key")
        words = (*arms, *QUICK[:-4], "--turns", "2", "--max-tokens", "16", "--out", str(out))
        monkeypatch.setattr("sys.argv", ["eyas", "bench", "endpoint", *words])
        assert bench(*words) == 0
    said = capsys.readouterr()
    assert (
        "a window, without warm-up; turns: 2" in said.out
        and "no warm-up before 4 of 4 windows (--warm-up 0)" in said.out
    )
    assert " 0 s of warm-up" not in said.out + said.err
    found = json.loads(said.out.strip().rpartition("\n")[2])
    assert found["bench"] == "endpoint" and found["ended"] == "complete"
    assert [row["arm"] for row in found["figures"]] == ["off", "on"]
    assert [row["tpot_is_exact"] for row in found["figures"]] == [False, True]
    assert "secret-key" not in json.dumps(found) and "***" in found["stamp"]["command"]
    run = read_run(out)
    assert [(window.arm, window.turn) for window in run.windows] == [("off", 0), ("on", 0), ("off", 1), ("on", 1)]
    assert {record.category for window in run.windows for record in window.records} == {"chat", "tools"}
    starts = [window.started_s for window in run.windows]
    assert starts == sorted(starts)


def test_prompts_are_salted_and_fields_belong_to_arms(capsys):
    server = StubServer(["several tokens a chunk"])
    with served(server) as url:
        fields = ("--field", "temperature=0", "--field", 'on:speculative={"k": 3}', "--mode", "fixed")
        assert bench("--arm", f"off={url}", "--arm", f"on={url}", *fields, *QUICK, "--shared-prefix", "50") == 0
    texts = [body["messages"][0]["content"] for body in server.bodies]
    assert len(set(texts)) == len(texts) > 4
    shared = {text.partition("\n")[0] for text in texts if "(request" in text.partition("\n")[2]}
    assert len(shared) == 1 and len(shared.pop().split()) == 50
    assert all(body["temperature"] == 0 and body["ignore_eos"] is True for body in server.bodies)
    assert {"speculative" in body for body in server.bodies} == {True, False}
    assert all(body["stream_options"]["continuous_usage_stats"] for body in server.bodies)


def test_an_endpoint_that_refuses_to_be_asked_for_usage(capsys):
    server = StubServer(["several tokens a chunk"])
    server.refuses_usage = True
    with served(server) as url:
        assert bench(url, *QUICK) == 0
    assert not any("stream_options" in body for body in server.bodies)


@pytest.mark.parametrize(
    ("words", "server", "error"),
    [
        ((), StubServer(key="right"), "refuses the key (401); give it with --api-key"),
        (("--model", "other"), StubServer(), "it answers 404: no model other; check model and base_url"),
        ((), StubServer(models=()), "names no model at /v1/models; name one with --model"),
        ((), StubServer(["reset"]), "the connection ended before the answer"),
        (("--prompts", "chats"), StubServer(), "no prompts are called 'chats' (did you mean 'chat'?)"),
        (("--slo", "ttft=200"), StubServer(), "wants a time with its unit, such as ttft=200ms"),
        (("--field", "temperature=cold"), StubServer(), "'cold' is not JSON"),
        (("--rate", "2"), StubServer(), "--rate and --concurrency are two kinds of load"),
        (("--resume",), StubServer(), "--resume goes on with a file; name it with --out"),
    ],
)
def test_what_cannot_be_measured_is_one_line(words, server, error, capsys):
    with served(server) as url:
        assert bench(url, *QUICK, *words) == 1
    said = capsys.readouterr().err
    assert error in said and said.count("\n") == 1 and "Traceback" not in said


def test_no_endpoint_and_a_dead_one(capsys):
    assert bench(*QUICK) == 1
    assert "there is no endpoint to measure" in capsys.readouterr().err
    with served(StubServer()) as url:
        pass
    assert bench(url, *QUICK) == 1
    said = capsys.readouterr().err
    assert "start the server, or correct the URL" in said and said.count("\n") == 1


def stop_after_a_window(server, out):
    while not (out.exists() and out.read_bytes().count(b"\n") > 1):
        time.sleep(0.05)
    server.stop()


def test_a_server_that_dies_leaves_what_was_measured(tmp_path, capsys):
    out, server = tmp_path / "run.jsonl", StubServer(["several tokens a chunk"])
    with served(server) as url:
        threading.Thread(target=stop_after_a_window, args=(server, out), daemon=True).start()
        assert bench(url, *QUICK[:-4], "--turns", "50", "--out", str(out)) == 1
        said = capsys.readouterr()
    assert "no connection to" in said.err.splitlines()[-1] and "go on with --resume" in said.err.splitlines()[-1]
    assert "A, 2 at once" in said.out and "void" in said.out
    windows = read_run(out).windows
    assert [bool(window.void) for window in windows][-1:] == [True] and not windows[0].void


def test_resume_measures_only_what_is_missing(tmp_path, capsys):
    out = tmp_path / "run.jsonl"
    with served(StubServer()) as url:
        assert bench(url, *QUICK, "--out", str(out)) == 0
        data = out.read_bytes()
        assert bench(url, *QUICK, "--out", str(out)) == 1
        assert "is there already; go on with it by --resume" in capsys.readouterr().err
        out.write_bytes(data[: data.index(b"\n") + 40])  # a disk that was full in the middle of the window
        assert bench(url, *QUICK, "--out", str(out), "--resume") == 0
        assert len(read_run(out).windows) == 1 and read_run(out).header.run in data.decode()
        assert bench(url, *QUICK, "--out", str(out), "--resume") == 0
        assert len(read_run(out).windows) == 1
        assert bench(url, *QUICK, "--out", str(out), "--resume", "--max-tokens", "17") == 1
        assert "was measured with other settings (loads)" in capsys.readouterr().err


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_what_was_measured_is_kept(tmp_path, capsys):
    out, load = tmp_path / "run.jsonl", (*QUICK[:2], "--requests", "8", *QUICK[4:6])  # lines of about one length
    with served(StubServer()) as url:
        assert bench(url, *load, "--turns", "1", "--max-tokens", "16", "--out", str(out)) == 0
        size = out.stat().st_size
        out.unlink()
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (round(1.5 * size), before[1]))
        try:
            assert bench(url, *load, "--turns", "3", "--max-tokens", "16", "--out", str(out)) == 1
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = capsys.readouterr()
    assert "cannot be written: File too large; what was measured before is in it" in said.err.splitlines()[-1]
    assert len(read_run(out).windows) == 1
    assert "A, 2 at once" in said.out


def test_ctrl_c_keeps_what_is_there(tmp_path, capsys):
    out = tmp_path / "run.jsonl"
    server = StubServer()

    def leave():
        while len(server.received) < 6:  # two are asked at a time: some have been answered
            time.sleep(0.05)
        signal.raise_signal(signal.SIGINT)

    with served(server) as url:
        threading.Thread(target=leave).start()
        assert bench(url, "--concurrency", "2", "--duration", "600", "--warm-up", "0", "--out", str(out)) == 130
    said = capsys.readouterr()
    assert f"interrupted; what was measured is in {out}" in said.err
    (window,) = read_run(out).windows
    assert window.void == "interrupted" and window.records

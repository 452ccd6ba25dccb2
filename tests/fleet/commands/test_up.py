"""`eyas up` and `down` with real processes: order, environment, readiness, the canary, failures, what is left."""

import json
import os
import signal
import socket
import stat

import pytest
from tests.fleet.support.lab import engine, free_port, is_alive, members, wait_until

from eyas.fleet.commands import up
from eyas.recipes.plan import EnvVar, File, Home, Launch, Ref, Wait
from eyas.recipes.planning.planner import Ask, make_plan


def test_up_ps_logs_down(lab):
    path = lab.plan("--say", "loaded")
    lab.home.mkdir()
    (lab.home / "httpx.py").write_text("raise SystemExit('not meant')")
    out = lab.up(path)
    assert stat.S_IMODE((lab.home / "supervisors" / "lab.log").stat().st_mode) == 0o600
    assert "ready" in out and "/v1" in out
    assert lab.row().status == "ready"
    code, table, _ = lab.run("ps")
    assert code == 0 and "lab" in table and "ready" in table and "llama.cpp b1" in table
    assert lab.run("logs", "lab")[1] == "loaded\n"
    pid = lab.journal_lines()[0]["pid"]
    assert is_alive(pid)
    assert "lab is up already" in lab.up(path)
    assert len(lab.journal_lines()) == 1
    assert "lab is down" in lab.down()
    assert not is_alive(pid) and not members(lab.tmp)
    assert lab.row().status == "stopped" and not lab.is_supervised()
    assert "nothing is up" in lab.run("ps")[1]
    assert "lab is not up" in lab.down()
    assert lab.run("logs", "lab")[1] == "loaded\n"


def test_launches_start_in_order_with_their_environment_and_files(lab, monkeypatch):
    monkeypatch.setenv("MY_SECRET", "it's $HOME")
    port, other = free_port(), free_port()
    record = ["--journal", lab.journal, "--env", "A", "--env", "B", "--env", "C", "--env", "EYAS_HOME"]
    env = (
        EnvVar(name="A", value="a 'b' $C\n\"x\""),
        EnvVar(name="B", value=Ref(name="MY_SECRET")),
        EnvVar(name="C", value=Home(path="x y")),
    )
    content = "line\n\n'q' \"$HOME\" \\n `id`\n\u00e9"
    launches = (
        Launch(name="once", argv=engine(*record, "--exit", 0, name="once"), is_once=True),
        Launch(
            name="log", argv=engine(*record, "--slow", 0.05, "--say", "now UP", name="log"), wait=Wait(log="now U[P]")
        ),
        Launch(name="port", argv=engine(*record, "--slow", 0.05, "--port", other, name="port"), wait=Wait(port=other)),
        Launch(name="server", argv=engine(*record, "--port", port, "a b", "$x", name="server"), env=env),
    )
    launches = (*launches[:3], Launch(name="server", argv=engine(*record, "--port", port), env=env))
    files = (File(path="a b/c", content=content, mode=0o750), File(path="empty", content=""))
    lab.up(lab.plan(launches=launches, port=port, files=files))
    lines = lab.journal_lines()
    assert [line["name"] for line in lines] == ["once", "log", "port", "server"]
    home = os.environ["HOME"]
    assert lines[3]["env"] == {"A": "a 'b' $C\n\"x\"", "B": "it's $HOME", "C": f"{home}/x y", "EYAS_HOME": None}
    assert lines[3]["cwd"] == str(lab.tmp / "node")
    written = lab.tmp / "node" / "a b" / "c"
    assert written.read_bytes() == content.encode() and stat.S_IMODE(written.stat().st_mode) == 0o750
    assert (lab.tmp / "node" / "empty").read_bytes() == b""
    starts = [text for _, text in lab.events() if text.startswith("starting ")]
    assert starts == ["starting once", "starting log", "starting port", "starting server"]
    lab.down()


def test_ready_waits_for_green(lab):
    green = lab.tmp / "green"
    path = lab.plan("--green-file", green)
    lab.up(path, "--detach")
    lab.wait_for_starts(1)
    assert lab.row().status == "starting"
    green.touch()
    lab.wait_for_events("asking it something", "ready")


@pytest.mark.parametrize(
    ("answer", "role", "why"),
    [
        ("garbage", "text", "garbage came back: '!'"),
        pytest.param("empty", "text", "empty answer", marks=pytest.mark.slow),
        pytest.param("never", "text", "no answer within", marks=pytest.mark.slow),
        pytest.param("garbage", "embeddings", "a vector of zeros came back", marks=pytest.mark.slow),
        ("blind", "vision", 'HTTP status 500: {"error": {"message": "image input is not supported'),
    ],
)
def test_canary_refuses(lab, answer, role, why):
    lab.limit(canary_s=0.2 if answer == "never" else 60.0)
    code, _, err = lab.run("up", lab.plan("--answer", answer, role=role))
    assert code == 1 and "the server is up, its answer is not" in err and why in err
    assert err.count("eyas: error:") == 1 and err.splitlines()[-1].startswith("eyas: error: lab: ")
    assert lab.row().status == "failed" and not lab.is_supervised()
    assert not members(lab.tmp), "a failed start leaves nothing"


@pytest.mark.parametrize("role", [pytest.param("vision", marks=pytest.mark.slow), "embeddings"])
def test_canary_asks_what_the_role_can_do(lab, role):
    lab.up(lab.plan(role=role))
    assert lab.row().status == "ready"
    lab.down()


def test_canary_takes_reasoning_and_brings_the_key(lab, monkeypatch):
    monkeypatch.setenv("LAB_KEY", "sk-0123456789")
    port = free_port()
    launch = Launch(
        name="server",
        argv=engine("--port", port, "--answer", "reasoning", "--key-env", "THEIRS"),
        env=(EnvVar(name="THEIRS", value=Ref(name="LAB_KEY")),),
    )
    lab.up(lab.plan(launches=(launch,), port=port, api_key_env="LAB_KEY"))
    monkeypatch.delenv("LAB_KEY")
    code, _, err = lab.run("up", "lab")
    assert code == 1 and "the plan needs LAB_KEY; set it first: export LAB_KEY=..." in err
    lab.down()


def test_a_first_start_that_fails_says_why_and_leaves_nothing(lab):
    port = free_port()
    launches = (
        Launch(name="helper", argv=engine("--journal", lab.journal)),
        Launch(name="server", argv=engine("--exit", 7, "--port", port), wait=Wait(port=port)),
    )
    code, _, err = lab.run("up", lab.plan(launches=launches, port=port))
    assert code == 1 and "server ended with exit code 7" in err and "eyas logs lab --explain" in err
    assert not members(lab.tmp)
    assert "ends at once" in lab.run("logs", "lab")[1]
    assert "failed" in lab.run("ps")[1]
    assert "is a plan already" not in lab.run("up", "lab", "--context", "8k")[2], "its name is free"
    assert "lab is down" in lab.down() and "nothing is up" in lab.run("ps")[1]


def test_a_command_that_is_not_there(lab):
    path = lab.plan(launches=(Launch(name="server", argv=("/no such/program", "x")),))
    code, _, err = lab.run("up", path)
    assert code == 1 and "/no such/program" in err and "nothing was started" in err and lab.row() is None
    code, _, err = lab.run("up", path, "--force")
    assert code == 1 and "exit code 127" in err
    assert "not found" in lab.run("logs", "lab")[1]


def test_a_port_in_use(lab):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        path = lab.plan(port=port)
        for flags in ((), ("--force",)):  # the checks see it, and so does who starts
            code, _, err = lab.run("up", path, *flags)
            assert code == 1 and f"port {port} is in use" in err.splitlines()[-1]
    assert not lab.journal.exists()


def test_restart_after_kill(lab):
    lab.up(lab.plan("--children"))
    first = lab.journal_lines()[0]["pid"]
    os.kill(first, signal.SIGKILL)
    lab.wait_for_starts(2)
    lab.wait_for_events("was killed by SIGKILL", "starting again, attempt 1 of 3", "ready")
    assert lab.row().restarts == 1
    lab.down()
    assert not members(lab.tmp), "children in sessions of their own are ended, too"


def test_gives_up_after_its_restarts(lab):
    crash = lab.tmp / "crash"
    lab.up(lab.plan("--crash-file", crash))
    crash.touch()
    wait_until(lambda: lab.row().status == "failed")
    wait_until(lambda: not members(lab.tmp))
    assert "gave up after 3 restarts" in lab.row().note
    assert lab.row().restarts == 3
    lab.wait_for_events("attempt 1 of 3", "attempt 2 of 3", "attempt 3 of 3", "gave up")
    assert not members(lab.tmp)


def test_a_server_that_hangs_is_restarted(lab):
    lab.limit(probe_s=0.2, hung_s=0.2)
    hang = lab.tmp / "hang"
    lab.up(lab.plan("--hang-file", hang))
    hang.touch()
    lab.wait_for_events("the server does not answer", "did not answer for 0.2 s")
    assert "hung" in [status for status, _ in lab.events()]
    hang.unlink()
    lab.wait_for_starts(2)
    wait_until(lambda: lab.row().status == "ready")
    lab.down()


def test_term_is_not_enough(lab):
    lab.limit(grace_s=0.3)
    lab.up(lab.plan("--ignore-term", "--children"))
    lab.down()
    assert not members(lab.tmp)


@pytest.mark.parametrize(
    ("when", "number"), [("recorded", signal.SIGINT), pytest.param("started", signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_ctrl_c_and_sigterm_stop_what_was_started(lab, when, number):
    path = lab.plan("--green-file", lab.tmp / "never")
    process = lab.start("up", path)
    wait_until(lab.row if when == "recorded" else lab.journal_lines)
    process.send_signal(number)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 130, out + err
    assert "stopping what was started of lab" in err
    assert lab.row().status == "stopped"
    assert not members(lab.tmp)


def test_logs_of_a_crash_are_explained(lab):
    port = free_port()
    cry = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    launch = Launch(name="server", argv=engine("--say", cry, "--crash-file", "/dev/null"))
    assert lab.run("up", lab.plan(launches=(launch,), port=port))[0] == 1
    _, out, _ = lab.run("logs", "lab", "--explain")
    assert cry in out and "means" in out and "failed: server ended with exit code 3" in out
    _, out, _ = lab.run("logs", "lab", "--events")
    assert "failed" in out
    code, _, err = lab.run("logs", "lab", "--launch", "other")
    assert code == 1 and "it has: server" in err


@pytest.mark.slow
def test_follow_logs(lab):
    lab.up(lab.plan("--say", "one line"))
    process = lab.start("logs", "lab", "-f")
    assert process.stdout.readline() == "one line\n"
    with (lab.tmp / "node" / "logs" / "server.log").open("a") as file:
        file.write("another\n")
    assert process.stdout.readline() == "another\n"
    lab.down()
    assert process.wait(100) == 0
    process.communicate()


def test_bad_names(lab):
    lab.up(lab.plan())
    code, _, err = lab.run("down", "lob")
    assert code == 1 and "no deployment 'lob' (did you mean 'lab'?)" in err
    code, _, err = lab.run("down")
    assert code == 1 and "say which" in err
    assert lab.run("down", "--all")[0] == 0
    assert json.loads(lab.run("ps", "--all", "--json")[1])["status"] == "stopped"


def test_the_address_is_the_routers_where_one_stands_in_front(lab):
    """With the name by which it knows the model: by the engine's it would answer that there is none."""
    made = make_plan(Ask(model="gpt-oss-20b", on="spark", engine="ollama", purpose="claude-code", nodes=("me@far",)))
    shown = up.address(made)
    assert "http://127.0.0.1:8100/v1   model gpt-oss-20b\n" in shown
    assert "ssh -N -L 8100:127.0.0.1:8100 me@far" in shown
    store = lab.store()
    store.put(made)
    store.record(made.choice.name, "failed", "x")
    store.close()
    assert "http://127.0.0.1:8100/v1 on me@far" in lab.run("ps")[1]

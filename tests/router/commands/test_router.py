"""`eyas router` from outside: what --check says, what keeps it from starting, how it starts and how signals end it."""

import asyncio
import contextlib
import io
import json
import os
import signal
import socket

import httpx
import pytest
import yaml
from tests.fleet.support.lab import make_plan, write_plan
from tests.router.support.files import read
from tests.router.support.running import router_process
from tests.router.support.script import Script
from tests.router.support.scripted import ScriptedBackend, free_port
from tests.router.support.watched import FAST

from eyas import cli
from eyas.gateway.operation.serving import Draining, serve
from eyas.recipes.plan import Launch
from eyas.router.app import Router
from eyas.router.backends.planned import claim
from eyas.router.operation.alerts import rules

SECRET = "sk-2718281828"


def write(folder, **content):
    path = folder / "router.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def run(*argv):
    """(exit code, standard output, standard error) of `eyas ARGV`."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main([str(word) for word in argv])
    return code, out.getvalue(), err.getvalue()


def good(folder, **more):
    backends = {
        "fast": {"url": "http://127.0.0.1:9001", "key": "env:BACKEND_KEY", "model": "x", "concurrency": 4},
        "plain": {"url": "http://127.0.0.1:9002", "model": "x", "twin_of": "fast"},
    }
    return write(folder, backends=backends, models={"large": ["fast", "plain"]}, **more)


def test_check_shows_what_a_file_means_and_no_key(tmp_path, monkeypatch):
    monkeypatch.setenv("BACKEND_KEY", SECRET)
    monkeypatch.setenv("CLIENT_KEY", SECRET + "3")
    routes = {"MATH": {"max_tokens": 4096}}
    path = good(tmp_path, server={"api_key": "env:CLIENT_KEY", "port": 9000}, routes=routes)
    code, out, err = run("router", path, "--check")
    assert (code, err) == (0, "") and out.endswith(f"{path} is good\n") and SECRET not in out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "fast http://127.0.0.1:9001 text x 4 yes" in lines
    assert "plain http://127.0.0.1:9002 text x 8 fast" in lines
    assert "large (resident) fast, plain" in lines
    assert "MATH high 4096 large" in lines and "SELF_HANDLE low 2048 large" in lines
    assert "listens 127.0.0.1 port 9000" in lines and "keys 1" in lines


def test_check_says_all_that_is_wrong(tmp_path):
    backends = {"fast": {"url": "http://localhost:8100/v1", "key": "env:BACKEND_KEY", "guards": "act"}}
    path = write(tmp_path, backends=backends, models={"large": ["fsat"]}, routes={"MTAH": {}})
    code, out, err = run("router", path, "--check")
    assert code == 1 and "is good" not in out and "fast" in out
    assert err.splitlines() == [
        f"eyas: error: {path}: {text}"
        for text in (
            "backends.fast.guards: unknown key (did you mean 'guard'?)",
            "backends.fast.key names the environment variable BACKEND_KEY, which is not set",
            "routes.MTAH: no route 'MTAH' (did you mean 'MATH'?)",
            "models.large: no backend 'fsat' (did you mean 'fast'?)",
            "backends.fast belongs to no model; list it at one under models",
            "backends.fast is the router itself: its url is where the router listens, port 8100",
        )
    ]
    assert run("router", path)[::2] == (1, err)  # nothing is started, for the same reasons
    assert run("router", path, "--check", "--port", 8101)[2].count("\n") == 5


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["none.yaml"], "cannot read none.yaml: No such file or directory"),
        (["none.yaml", "--port", "99999"], "wants 0 to 65535, got 99999"),
        (["none.yaml", "--prot", "1"], "unexpected '--prot' (did you mean '--port'?)"),
        (["none.yaml", "--checks"], "unexpected '--checks' (did you mean '--check'?)"),
    ],
)
def test_wrong_words(argv, said):
    with contextlib.suppress(SystemExit):
        code, _, err = run("router", *argv)
        assert code == 1 and said in err
        return
    err = io.StringIO()
    with contextlib.redirect_stderr(err), pytest.raises(SystemExit) as info:
        cli.main(["router", *argv])
    assert info.value.code == 2 and said in err.getvalue()


def test_a_plan_that_another_router_runs(lab):
    port = free_port()
    file = write_plan(lab.tmp / "lab.yaml", make_plan(lab.tmp / "lab", port, [Launch(name="x", argv=("true",))]))
    path = write(lab.tmp, backends={"a": {"plan": str(file)}}, models={"m": ["a"]}, server={"port": 0})
    assert run("router", path, "--check")[0] == 0
    lab.home.mkdir(exist_ok=True)
    held = claim(lab.home, {"a": "lab"})
    code, out, err = run("router", path, "--check")
    assert code == 1 and "run by another router" in err and "is good" not in out
    code, out, err = run("router", path)
    assert code == 1 and "run by another router" in err and "ready" not in out
    os.close(*held)
    assert lab.row() is None


def test_a_port_that_is_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("BACKEND_KEY", SECRET)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, _, err = run("router", good(tmp_path), "--port", taken.getsockname()[1])
    assert code == 1 and "is in use; choose another with --port" in err


def test_alerts():
    assert run("router", "alerts") == (0, rules(), "")


BODY = {"stream": True, "model": "scripted", "messages": [{"role": "user", "content": "hello"}]}


def test_a_router_serves_drains_and_ends(tmp_path):
    script = Script(pieces=40, between_s=0.05)
    with (
        ScriptedBackend(script=script).in_thread() as server,
        router_process(tmp_path, {"a": server.url}, server={"drain": 20}) as router,
    ):
        with httpx.stream("POST", f"{router.url}/v1/chat/completions", json=BODY, timeout=30) as answer:
            assert answer.headers["x-eyas-backend"] == "a"
            lines = answer.iter_lines()
            next(lines)
            router.process.send_signal(signal.SIGTERM)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert router.process.wait(30) == 0
        assert "Traceback" not in router.log and f"ready    {router.url}/v1" in router.log


@contextlib.asynccontextmanager
async def served(router, listener, *, drain_s=0.2):
    """Serve a router in this loop, and stop it by a signal."""
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    draining = Draining(drain=router.drain, num_in_flight=router.num_in_flight, end=router.end, drain_s=drain_s)
    async with router.running(), httpx.AsyncClient(base_url=url, timeout=30) as http:
        task = asyncio.create_task(serve(router.app, listener, draining))
        try:
            yield http
        finally:
            signal.raise_signal(signal.SIGTERM)
            await task


async def state(http, name, wanted):
    """Wait until a backend is in a state, and return how it stands."""
    for _ in range(500):
        backends = (await http.get("/router/status")).json()["backends"]
        now = next(one for one in backends if one["name"] == name)
        if now["state"] == wanted:
            return now
        await asyncio.sleep(0.02)
    raise AssertionError(now)


def test_an_answer_that_outlasts_the_time_to_drain_is_told_so(tmp_path):
    async def test():
        script = Script(pieces=10_000, between_s=0.01)
        async with ScriptedBackend(script=script).serving() as server:
            path = write(tmp_path, backends={"a": {"url": server.url}}, models={"scripted": ["a"]})
            router = Router(read(path, {}, {"port": 0}), pace=FAST)
            with socket.create_server(("127.0.0.1", 0)) as listener:
                async with contextlib.AsyncExitStack() as stack:
                    http = await stack.enter_async_context(served(router, listener))
                    await state(http, "a", "ready")
                    lines = []
                    async with http.stream("POST", "/v1/chat/completions", json=BODY) as answer:
                        async for line in answer.aiter_lines():
                            lines.append(line)
                            if len(lines) == 10:
                                signal.raise_signal(signal.SIGTERM)
            said = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
            assert "error" in json.loads(said[-1]), said[-3:]
            assert not router.num_in_flight()

    asyncio.run(test())


def test_a_router_that_is_its_own_backend_by_an_address_that_nobody_knew(tmp_path):
    async def test():
        with socket.create_server(("127.0.0.1", 0)) as listener:
            backends = {"a": {"url": f"http://127.0.0.1:{listener.getsockname()[1]}"}}
            server = {"api_key": f"sha256:{'ab' * 32}"}  # it refuses the question, and is known all the same
            router = Router(read(write(tmp_path, backends=backends, models={"m": ["a"]}, server=server), {}), pace=FAST)
            async with served(router, listener):
                for _ in range(500):
                    if router.manager.condition("a").state == "out":
                        break
                    await asyncio.sleep(0.02)
                assert "would ask itself" in router.manager.condition("a").reason

    asyncio.run(test())

"""Real servers behind the router, stopped and killed while they answer: ours, and llama-server. `-s` shows a table."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from tests.engines.support.llama import EXACT, command
from tests.router.support.asking import Got, ask
from tests.router.support.faults import LATE_S, PREFILL_S, STALL_S
from tests.router.support.running import RouterProcess, router_process
from tests.router.support.scripted import ScriptedBackend, scripted_process, wait_until_ready
from tests.support.serving import served

from eyas.base.bundled import DEMO
from eyas.base.tokens.tokenizer import Tokenizer
from tools import llama_server as tool

BUDGETS = {"queue": 10, "prefill": PREFILL_S, "stall": STALL_S}
MAX_TOKENS = 400
ASKED_S = 30  # after which the server of a whole answer is asked whether it is still there


class Scene:
    """A real server and a scripted one behind it, and the table of what clients get."""

    def __init__(self, router: RouterProcess, pid: int, session: aiohttp.ClientSession, fields: dict[str, Any]) -> None:
        self.router, self._pid, self._session, self._fields = router, pid, session, fields
        self.lines: list[str] = []

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._pid, number)

    async def ask(self, *, stream: bool, at_first: Callable[[], None] | None = None) -> Got:
        """Ask for a long answer; `at_first` is called when its first text has come."""
        got = Got("", "", stream)
        task = asyncio.create_task(
            ask(self._session, self.router.url, {}, model="null", stream=stream, into=got, **self._fields)
        )
        while at_first is not None and got.first is None:
            assert not task.done(), task.result()
            await asyncio.sleep(0.005)
        if at_first is not None:
            at_first()
        return await task

    def line(self, what: str, got: Got, seconds: float, budget_s: float | None = None) -> None:
        """Add a row, and check the time."""
        now = self.router.backend("real")
        kind = "streamed" if got.stream else "whole"
        end = f"{got.outcome} by {got.backend}" if got.outcome == "done" else f"{got.outcome}: {got.message[:70]}"
        budget = "-" if budget_s is None else f"{budget_s:g}"
        state = f"{now['breaker']}, {now['failures']} in a row, {now['state']}"
        self.lines.append(f"{what:<30} {kind:<9} {got.status} {end:<84} {seconds:>6.2f} {budget:>5}  {state}")
        low = budget_s or 0.0
        assert 0.9 * low <= seconds <= low + LATE_S, self.lines[-1]


async def play(scene: Scene) -> None:
    """Stop the server, let it go on, kill it."""
    for stream in (True, False):
        got = await scene.ask(stream=stream)
        scene.line("as it is", got, 0.0)
        assert (got.outcome, got.headers["x-eyas-backend"]) == ("done", "real"), got

    stopped: list[float] = []
    got = await scene.ask(
        stream=True, at_first=lambda: (stopped.append(time.monotonic()), scene.signal(signal.SIGSTOP))
    )
    scene.line("SIGSTOP inside", got, got.end - stopped[0], STALL_S)
    assert got.outcome == "error" and got.status == 200 and got.text
    got = await scene.ask(stream=True)
    scene.line("SIGSTOP before", got, got.seconds, PREFILL_S)
    assert got.outcome == "done" and got.text.startswith("[ 1/4]")
    got = await scene.ask(stream=False)
    scene.line("SIGSTOP before", got, got.seconds, ASKED_S + STALL_S)
    assert (got.outcome, got.backend) == ("done", "other")
    scene.signal(signal.SIGCONT)
    await asyncio.to_thread(scene.router.until_ready, "real")
    got = await scene.ask(stream=True)
    scene.line("after SIGCONT", got, 0.0)
    assert (got.outcome, got.headers["x-eyas-backend"]) == ("done", "real")

    killed: list[float] = []
    whole = asyncio.create_task(scene.ask(stream=False))
    got = await scene.ask(stream=True, at_first=lambda: (killed.append(time.monotonic()), scene.signal(signal.SIGKILL)))
    scene.line("kill -9 inside", got, got.end - killed[0])
    assert got.outcome == "error" and got.status == 200 and got.text
    got = await whole
    scene.line("kill -9 inside", got, got.end - killed[0])
    assert (got.outcome, got.backend) == ("done", "other")
    for stream in (True, False):
        got = await scene.ask(stream=stream)
        scene.line("after kill -9", got, got.seconds)
        assert (got.outcome, got.backend) == ("done", "other")


def run(folder: Path, url: str, pid: int, **fields: Any) -> None:
    with ScriptedBackend("other", model="null").in_thread() as other:
        settings = {"real": {"budgets": BUDGETS}}
        urls = {"real": url, "other": other.url}
        with router_process(folder, urls, model="null", backends=settings) as router:

            async def main() -> list[str]:
                async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
                    scene = Scene(router, pid, session, fields)
                    try:
                        await play(scene)
                    finally:
                        print("\n" + "\n".join(scene.lines))
                return scene.lines

            asyncio.run(main())


@pytest.mark.slow
def test_our_server_stops_and_dies(tmp_path):
    with served("null:20", "--live", "off") as server:
        run(tmp_path, server.url, server.process.pid, max_tokens=MAX_TOKENS)


@pytest.mark.engines
def test_llama_server_stops_and_dies(tmp_path):
    with llama_server(tmp_path) as (url, pid):
        special = Tokenizer.load(DEMO).special
        ends = {str(special[name]): -100 for name in ("<|return|>", "<|end|>", "<|call|>")}  # the answer goes on
        run(tmp_path, url, pid, max_tokens=3 * MAX_TOKENS, logit_bias=ends)


@contextmanager
def llama_server(folder: Path) -> Iterator[tuple[str, int]]:
    """llama-server with the demo model, which calls itself null. `make test-engines` builds it."""
    from eyas.model.gguf.export import export_target

    export_target(DEMO, folder / "model.gguf", weights="f32", name="null")
    argv = [*command(tool.binary(), folder / "model.gguf", slots=4), *EXACT, "--alias", "null"]
    port = int(argv[argv.index("--port") + 1])
    with (folder / "llama.log").open("wb") as log, subprocess.Popen(argv, stdout=log, stderr=log) as process:
        try:
            wait_until_ready(port)
            yield f"http://127.0.0.1:{port}", process.pid
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL], ids=["SIGSTOP", "kill -9"])
def test_a_whole_answer_that_is_written_when_its_server_stops_or_dies(tmp_path, how):
    """Whole answers show no progress: their server is asked for its models meanwhile."""
    with scripted_process("real") as (url, process), ScriptedBackend("other").in_thread() as other:
        settings = {"real": {"budgets": BUDGETS}}
        with router_process(tmp_path, {"real": url, "other": other.url}, backends=settings) as router:

            async def main() -> Got:
                async with aiohttp.ClientSession() as session:
                    script = {"mark": "m", "sign": True, "on": {"real": {"before_s": 100}}}
                    task = asyncio.create_task(ask(session, router.url, script, stream=False))
                    while not await asyncio.to_thread(lambda: httpx.get(f"{url}/scripted/received").json()[1:]):
                        await asyncio.sleep(0.05)
                    os.kill(process.pid, how)
                    return await task

            got = asyncio.run(main())
            print(
                f"\n{how.name} while it writes a whole answer: {got.outcome} by {got.backend} after {got.seconds:.1f} s"
            )
            assert (got.outcome, got.backend, got.what_is_wrong()) == ("done", "other", None)
            assert got.seconds < LATE_S + (ASKED_S + STALL_S if how == signal.SIGSTOP else 1.0)

"""The router is killed again and again while it loads, evicts and drains: what runs is known, and nothing is lost."""

import json
import random
import threading
import time
from contextlib import suppress

import httpx
import pytest
from tests.fleet.support.lab import is_alive
from tests.router.support.pooled import Ballast, write_file
from tests.router.support.running import RouterProcess

from eyas.fleet.running.state import Store

MOMENTS = ("load", "eviction", "drain")
NAMES = ("a", "b")
PATIENCE_S = 60


def ask(router: RouterProcess, model: str) -> int:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
    return httpx.post(f"{router.url}/v1/chat/completions", json=body, timeout=PATIENCE_S).status_code


def asked_beside(router: RouterProcess, model: str) -> threading.Thread:
    """A request that a kill may cut."""

    def run() -> None:
        with suppress(httpx.HTTPError):
            ask(router, model)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def wait(condition, what: str, router: RouterProcess) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"{what}: {json.dumps(router.status()['backends'])[:2000]}\n{router.log[-6000:]}"
        time.sleep(0.01)


def states(router: RouterProcess) -> dict[str, str]:
    return {one["name"]: one["state"] for one in router.status()["backends"]}


def running(lab) -> dict[str, list[int]]:
    """The engines that live, by all that were ever started."""
    found: dict[str, list[int]] = {name: [] for name in NAMES}
    for line in lab.journal_lines():
        if is_alive(line["pid"], line["began"]):  # 32,768 numbers last for four minutes here
            found[line["name"]].append(line["pid"])
    return found


def known(lab) -> dict[str, bool]:
    store = Store(lab.home)
    try:
        return {name: bool(store.launches(name)) for name in NAMES}
    finally:
        store.close()


def is_right(router: RouterProcess, lab) -> bool:
    """Whether the router's map is settled, and is what runs."""
    found = states(router)
    alive = {name: len(pids) for name, pids in running(lab).items()}
    return set(found.values()) <= {"ready", "idle"} and alive == {n: int(s == "ready") for n, s in found.items()}


@pytest.mark.parametrize(
    "num_kills", [pytest.param(12, marks=pytest.mark.slow), pytest.param(30, marks=pytest.mark.soak)]
)
def test_kills_at_each_moment(lab, num_kills):
    engines = [Ballast(name, 60, load_s=0.6, answer_s=0.5, end_s=1.0) for name in NAMES]
    path = write_file(lab.tmp, engines, 120, lab.journal)
    router = RouterProcess(lab.tmp, json.loads(path.read_text()), lab.environ)
    rng = random.Random(30)
    num_by_moment = dict.fromkeys(MOMENTS, 0)
    try:
        router.until_up()
        assert ask(router, "a") == 200
        loaded, other = "a", "b"
        for number in range(num_kills):
            moment = MOMENTS[number % 3]
            if moment == "drain":
                slow = [asked_beside(router, loaded)]
                wait(lambda name=loaded: router.backend(name)["in_flight"] > 0, "in flight", router)
                slow.append(asked_beside(router, other))
                wait(lambda name=loaded: states(router)[name] == "unloading", "a drain", router)
            else:
                asked_beside(router, other)
                name, state = (other, "loading") if moment == "load" else (loaded, "unloading")
                wait(lambda name=name, state=state: states(router)[name] == state, moment, router)
                time.sleep(rng.uniform(0.0, 0.4))
            num_by_moment[moment] += 1
            router.kill()
            router.start()
            router.until_up()
            # what a start under way leaves behind is noticed within the three seconds between two looks
            wait(lambda: is_right(router, lab), f"kill {number} in a {moment}", router)
            alive = running(lab)
            assert {name: bool(pids) for name, pids in alive.items()} == known(lab)
            assert ask(router, loaded) == 200
            assert ask(router, other) == 200
            loaded, other = other, loaded
        assert num_by_moment == dict.fromkeys(MOMENTS, num_kills // 3)
    finally:
        router.process.kill()
        router.process.wait()

"""Measures what it costs that a model is loaded for a request, and another unloaded: time to its first token.

    python -m tools.bench_memory [--repeats 5]

Two engines that exclude each other, the demo model as llama-server (make test-engines builds it) and as our own server,
behind `eyas router`. Each request goes to the one that is not loaded. Beside it the same command, started by hand:
from its start to its first token. The exit code is 1 if the bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import yaml

from eyas.base.bundled import DEMO
from eyas.bench.http.servers import started
from eyas.bench.machine import machine
from eyas.bench.report import positive_int, print_json, provenance, table
from eyas.bench.stats import Spread
from eyas.fleet.preflight.plan_file import read_plan
from eyas.model.gguf.export import export_target
from eyas.recipes.plan import Plan
from tools import llama_server

ROOT = Path(__file__).parents[1]
BAR_S = 1.0  # beside the engine's own start, without the end of the other one
LIMIT_S = 120.0
POLL_S = 0.01
PORTS = {"llama.cpp": 8471, "eyas": 8472}
DEFINITIONS = """\
by hand   from the start of the engine's process to the first token of an answer; it is asked every 10 ms
router    from a request to its first token: the other engine is unloaded, this one is loaded and asked its canary
unload    the part of that until the other one's memory is back, from the router's own events
overhead  median of router, less the medians of by hand and of unload"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=positive_int, default=5, metavar="N", help="loads of each (default: 5)")
    args = parser.parse_args(argv)
    lines, origin = provenance(machine(), libraries=("uvicorn", "aiohttp"))
    print("\n".join(["bench memory", *lines, f"method    {args.repeats} loads of each in turns, median (min..max)"]))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["EYAS_HOME"] = str(folder / "home")
        plans = {engine: _plan(engine, folder) for engine in PORTS}
        by_hand = {engine: Spread(tuple(_by_hand(plan) for _ in range(args.repeats))) for engine, plan in plans.items()}
        try:
            router, unload = _through_router(folder, plans, args.repeats)
        finally:
            subprocess.run([sys.executable, "-m", "eyas", "down", "--all"], capture_output=True, check=False)
    rows, overhead = [], {}
    for engine in PORTS:
        overhead[engine] = router[engine].median - by_hand[engine].median - unload[engine].median
        rows.append((engine, *(one[engine].text(2) for one in (by_hand, router, unload)), f"{overhead[engine]:.2f}"))
    print("\n".join(["", *table(("seconds", "by hand", "router", "unload", "overhead"), rows), "", DEFINITIONS]))
    figures = {name: {e: one.json() for e, one in group.items()} for name, group in (("by_hand", by_hand),
               ("router", router), ("unload", unload))}  # fmt: skip
    print_json({"bench": "memory", **origin, "repeats": args.repeats, "figures": figures, "overhead_s": overhead})
    is_met = all(value <= BAR_S for value in overhead.values())
    print(f"\noverhead at most {BAR_S:g} s: {'met' if is_met else 'MISSED'}")
    return int(not is_met)


def _plan(engine: str, folder: Path) -> Plan:
    """Return a plan of the demo model on an engine, without speculation; of llama-server with a GGUF that is there."""
    argv = ["plan", "demo", "--engine", engine, "--native", "--spec", "none", "--name", engine.replace(".", "-")]
    if engine == "llama.cpp":
        argv += ["--binary", str(llama_server.binary())]
    out = folder / engine
    argv += ["--port", str(PORTS[engine]), "--emit", "plan", "--out", str(out)]
    subprocess.run([sys.executable, "-m", "eyas", *argv], check=True, capture_output=True)
    (file,) = out.iterdir()
    plan = read_plan(file)
    if engine == "llama.cpp":
        model = folder / "model.gguf"
        export_target(DEMO, model, weights="f32", name="demo")
        server = plan.emission.launches[-1]
        words = tuple(str(model) if at and server.argv[at - 1] == "-m" else word for at, word in enumerate(server.argv))
        emission = msgspec.structs.replace(plan.emission, launches=(msgspec.structs.replace(server, argv=words),))
        plan = msgspec.structs.replace(plan, emission=emission)
        file.write_text(yaml.safe_dump(json.loads(msgspec.json.encode(plan))), encoding="utf-8")
    return plan


def _first_token_s(url: str, model: str, since: float) -> float | None:
    """Return the time from `since` to the first content of a streamed answer; None if there is none yet."""
    body = {"model": model, "messages": [{"role": "user", "content": "Name a bird."}], "max_tokens": 8, "stream": True}
    with (
        suppress(httpx.HTTPError),
        httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=LIMIT_S) as got,
    ):
        if got.status_code != 200:
            return None
        for line in got.iter_lines():
            if line.startswith("data: {") and _has_text(json.loads(line[6:])):
                return time.perf_counter() - since
    return None


def _has_text(chunk: Mapping[str, Any]) -> bool:
    delta = chunk["choices"][0]["delta"] if chunk.get("choices") else {}
    return any(delta.get(name) for name in ("content", "reasoning", "reasoning_content"))


def _by_hand(plan: Plan) -> float:
    """Start the server of a plan; return the time to its first token."""
    argv = [str(word) for word in plan.emission.launches[-1].argv]
    if argv[0] == "eyas":
        argv = [sys.executable, "-m", *argv]
    since = time.perf_counter()
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while time.perf_counter() < since + LIMIT_S:
            taken = _first_token_s(f"http://127.0.0.1:{plan.choice.port}", "demo", since)
            if taken is not None:
                return taken
            time.sleep(POLL_S)
        raise SystemExit(f"{argv[0]} did not answer within {LIMIT_S:.0f} s")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _through_router(
    folder: Path, plans: Mapping[str, Plan], repeats: int
) -> tuple[dict[str, Spread], dict[str, Spread]]:
    """Return, for each engine, the times to the first token when it is loaded for it, and those of the unloading."""
    backends = {
        name: {"plan": str(next((folder / name).iterdir())), "exclusive": True, "memory": "500MiB"} for name in plans
    }
    config = {
        "server": {"port": 0},
        "pools": {"box": {"kind": "size", "size": "4GiB"}},
        "backends": {name.replace(".", "-"): entry for name, entry in backends.items()},
        "models": {name.replace(".", "-"): [name.replace(".", "-")] for name in plans},
    }
    path = folder / "router.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    taken: dict[str, list[float]] = {name: [] for name in plans}
    unload: dict[str, list[float]] = {name: [] for name in plans}
    with started("router", str(path)) as (url, _):
        url = url.removesuffix("/v1")
        for _ in range(repeats + 1):
            for name in plans:
                model = name.replace(".", "-")
                since, wall = time.perf_counter(), time.time()
                seconds = _first_token_s(url, model, since)
                assert seconds is not None, httpx.get(f"{url}/router/status").text
                taken[name].append(seconds)
                unload[name].append(_until_load_s(url, model, wall))
    return ({name: Spread(tuple(values[1:])) for name, values in group.items()} for group in (taken, unload))  # type: ignore[return-value]


def _until_load_s(url: str, backend: str, since: float) -> float:
    """Return how long after `since` (Unix) the last load of a backend began, by the router's events."""
    found = since
    with httpx.stream("GET", f"{url}/router/events", timeout=10) as got:
        for line in got.iter_lines():
            event = json.loads(line[6:]).get("event") if line.startswith("data: ") else None
            if not event or event.get("backend") != backend or event["time_s"] < since:
                continue
            if event.get("memory") == "load":
                found = event["time_s"]
            elif event.get("memory") == "loaded":
                break
    return max(0.0, found - since)


if __name__ == "__main__":
    sys.exit(main())

"""Measures what `eyas router` adds to an answer, beside LiteLLM's proxy: time to first token, CPU a chunk, memory.

    python tools/bench_router.py [--repeats 5] [--requests 200] [--streams 64] [--seconds 5] [--no-litellm]

Behind both is `eyas serve null`, whose engine computes nothing. LiteLLM is its published package in an environment of
its own, which is made at the first use (.clients/litellm). All of it runs on this machine. The exit code is 1 if a bar
is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import uvloop

from eyas.bench.http.client import Target
from eyas.bench.http.load import Singles, run_sequential, run_streams
from eyas.bench.http.servers import null_server, started
from eyas.bench.machine import machine
from eyas.bench.report import positive_int, print_json, provenance, table
from eyas.bench.stats import Spread, percentile
from eyas.router.routes.classifier import Classifier

__all__ = ["main", "router_file"]

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

PERCENTS = (50, 95, 99)
PAUSE_MS = 20
CONTEXT = 32 << 10
WARM_S = 1.0
STREAM_TOKENS = 256
NUM_WARM = 50
PROMPTS = ROOT / "tools" / "routes" / "prompts.jsonl"
# What is compared with which bar: a figure of the router, and the most that it may be.
BARS = {
    "added_ms_p50": 0.6,
    "added_ms_p99": 3.0,
    "share_of_litellm": 0.1,
    "flat_cpu_us": 50.0,
    "paced_cpu_us": 50.0,
    "classifier_ms": 0.3,
}
DEFINITIONS = """\
TTFT      request sent (connection open) to first event with text, at the client; requests one by one
added     TTFT less the median of direct requests in the same repeat; percentiles over the requests of a repeat, by
          nearest rank
share     median added time of the router over LiteLLM's
chunk     one server-sent event with text; the null engine's text is a loop, and the guard observes it
CPU       user and system time of the router's process, all its threads, over chunks
paced     the null engine pauses 20 ms before each round, as one that computes; flat out: it does not
lag       how late timers of the client's own loop are: what it adds to TTFT"""

Figures = dict[str, Spread]


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    lines, origin = provenance(machine(), libraries=("uvicorn", "uvloop", "aiohttp"))
    if not args.no_litellm:
        origin["versions"]["litellm"] = version = _litellm_version()
        lines[-1] += f", LiteLLM {version}"
    print("\n".join(["bench router", *lines, _method(args)]), flush=True)
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        ttft = _measure_ttft(args, runner, Path(folder))
        streams = {
            name: _measure_streams(args, runner, Path(folder), model)
            for name, model in (("flat out", "null"), ("paced", f"null:{PAUSE_MS}"))
        }
    classifier = _measure_classifier(args.repeats)
    values = _values(ttft, streams, classifier)
    print("\n".join(["", *_tables(ttft, streams, classifier), "", *_verdicts(values), "", DEFINITIONS, ""]))
    figures = {**ttft, **{f"router, {name}": group for name, group in streams.items()}, "classifier": classifier}
    shown = {name: {key: one.json() for key, one in group.items()} for name, group in figures.items()}
    print_json({"bench": "router", **origin, **vars(args), "figures": shown, "bars": BARS, "values": values})
    return int(any(value > BARS[name] for name, value in values.items()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--repeats", type=positive_int, default=5, metavar="N", help="repeats, in turns (default: 5)")
    add("--requests", type=positive_int, default=200, metavar="N", help="requests one by one a repeat (default: 200)")
    add("--streams", type=positive_int, default=64, metavar="N", help="answers streamed at once (default: 64)")
    add("--seconds", type=positive_int, default=5, metavar="S", help="seconds of streaming a repeat (default: 5)")
    add("--no-litellm", action="store_true", help="do not install and measure LiteLLM's proxy")
    return parser


def _method(args: argparse.Namespace) -> str:
    others = "" if args.no_litellm else ", through LiteLLM's proxy"
    return (
        f"method    'eyas serve null' asked directly, through 'eyas router'{others}; client on the same machine\n"
        f"          {args.repeats} repeats in turns, median (min..max); in each {args.requests} requests on one "
        f"connection.\n          Then the router alone: {args.repeats} times {args.streams} streams of "
        f"{STREAM_TOKENS} tokens for {args.seconds} s"
    )


def router_file(url: str) -> str:
    """Return a configuration of a router in front of one null server."""
    return f"""\
backends:
  engine:
    url: {url}
    concurrency: 1024
models:
  "null": [engine]
guard: observe
server:
  port: 0
"""


@contextmanager
def _router(folder: Path, url: str) -> Generator[tuple[str, int], None, None]:
    """Run a router in front of a server; yield its address and process id once it takes requests."""
    path = folder / "router.yaml"
    path.write_text(router_file(url.removesuffix("/v1")), encoding="utf-8")
    with started("router", str(path)) as router:
        yield router


def _measure_ttft(args: argparse.Namespace, runner: asyncio.Runner, folder: Path) -> dict[str, Figures]:
    """Measure each way to the null engine, in turns."""
    with ExitStack() as stack:
        url, _ = stack.enter_context(null_server("null", CONTEXT))
        router, pid = stack.enter_context(_router(folder, url))
        targets = {"direct": Target.parse(url, model="null"), "router": Target.parse(router, model="null")}
        if not args.no_litellm:
            from tests.clients.support import litellm

            proxy = litellm.running(litellm.installed(), folder, url.removesuffix("/v1"), "null", "none", "null")
            address, key = stack.enter_context(proxy)
            targets["LiteLLM"] = Target.parse(address, model="null", key=key)
        for target in targets.values():
            runner.run(run_sequential(target, num_requests=NUM_WARM))
        values: dict[str, dict[str, list[float]]] = {name: {} for name in targets}
        for _ in range(args.repeats):
            found = {n: runner.run(run_sequential(t, num_requests=args.requests)) for n, t in targets.items()}
            for name, singles in found.items():
                _add(values[name], _ttft_figures(singles, found["direct"]))
        _add(values["router"], {"rss_mib": _rss_mib(pid)})
    return {name: {key: Spread(tuple(group)) for key, group in found.items()} for name, found in values.items()}


def _ttft_figures(singles: Singles, direct: Singles) -> dict[str, float]:
    base = median(direct.ttft_ms)
    added = [one - base for one in singles.ttft_ms]
    figures = {f"ttft_ms_p{percent}": percentile(singles.ttft_ms, percent) for percent in PERCENTS}
    return figures | {f"added_ms_p{percent}": percentile(added, percent) for percent in PERCENTS}


def _measure_streams(args: argparse.Namespace, runner: asyncio.Runner, folder: Path, model: str) -> Figures:
    values: dict[str, list[float]] = {}
    with null_server(model, CONTEXT) as (url, _), _router(folder, url) as (router, pid):
        target = Target.parse(router, model="null")
        runner.run(run_sequential(target, num_requests=NUM_WARM))
        for _ in range(args.repeats):
            done = runner.run(
                run_streams(
                    target,
                    num_streams=args.streams,
                    max_tokens=STREAM_TOKENS,
                    warm_s=WARM_S,
                    seconds=args.seconds,
                    pid=pid,
                )
            )
            assert done.cpu_s is not None, "the process is ours"
            figures = {
                "cpu_us_per_chunk": 1e6 * done.cpu_s / done.num_events,
                "cpu_share": done.cpu_s / done.seconds,
                "chunks_per_s": done.num_events / done.seconds,
                "client_us_per_chunk": 1e6 * done.client_cpu_s / done.num_events,
                "lag_ms_p99": percentile(done.lags_ms, 99),
                "rss_mib": _rss_mib(pid),
            }
            _add(values, figures)
    return {key: Spread(tuple(group)) for key, group in values.items()}


def _measure_classifier(repeats: int) -> Figures:
    """Measure the classifier over the 300 prompts, in ms a prompt."""
    lines = PROMPTS.read_text(encoding="utf-8").splitlines()
    classifier, prompts = Classifier.shipped(), [json.loads(line)["text"] for line in lines]
    _seconds(classifier.route, prompts)  # warm
    return {"ms_per_prompt": Spread(tuple(_seconds(classifier.route, prompts) for _ in range(repeats)))}


def _seconds(call: Callable[[str], object], prompts: Sequence[str]) -> float:
    start = time.perf_counter()
    for prompt in prompts:
        call(prompt)
    return 1e3 * (time.perf_counter() - start) / len(prompts)


def _values(ttft: Mapping[str, Figures], streams: Mapping[str, Figures], classifier: Figures) -> dict[str, float]:
    """Return what the bars are about: medians over the repeats."""
    router = ttft["router"]
    values = {name: router[name].median for name in ("added_ms_p50", "added_ms_p99")}
    if "LiteLLM" in ttft:
        values["share_of_litellm"] = router["added_ms_p50"].median / ttft["LiteLLM"]["added_ms_p50"].median
    values["flat_cpu_us"] = streams["flat out"]["cpu_us_per_chunk"].median
    values["paced_cpu_us"] = streams["paced"]["cpu_us_per_chunk"].median
    values["classifier_ms"] = classifier["ms_per_prompt"].median
    return {name: round(value, 4) for name, value in values.items()}


def _tables(ttft: Mapping[str, Figures], streams: Mapping[str, Figures], classifier: Figures) -> list[str]:
    columns = (("CPU us/chunk", "cpu_us_per_chunk", 1), ("CPU cores", "cpu_share", 2), ("chunks/s", "chunks_per_s", 0),
               ("RSS MiB", "rss_mib", 0), ("client us/chunk", "client_us_per_chunk", 1),
               ("lag p99 ms", "lag_ms_p99", 2))  # fmt: skip
    rows = []
    for title, key in (("TTFT", "ttft_ms"), ("added", "added_ms")):
        for name, group in ttft.items():
            if (key, name) != ("added_ms", "direct"):
                rows.append([f"{title}, {name}", *(group[f"{key}_p{percent}"].text(2) for percent in PERCENTS)])
    return [
        *table(["ms", *(f"p{percent}" for percent in PERCENTS)], rows),
        "",
        *table(
            ["router, streams", *(title for title, _, _ in columns)],
            [[name, *(group[key].text(digits) for _, key, digits in columns)] for name, group in streams.items()],
        ),
        "",
        f"classifier  {classifier['ms_per_prompt'].text(3)} ms a prompt; "
        f"RSS of the router after the single requests {ttft['router']['rss_mib'].text(0)} MiB",
    ]


def _verdicts(values: Mapping[str, float]) -> list[str]:
    rows = [
        [name, f"{value:.3f}", f"{BARS[name]:g}", "met" if value <= BARS[name] else "MISSED"]
        for name, value in values.items()
    ]
    return table(["bar", "median", "at most", ""], rows)


def _add(values: dict[str, list[float]], figures: Mapping[str, float]) -> None:
    for name, value in figures.items():
        values.setdefault(name, []).append(value)


def _rss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def _litellm_version() -> str:
    from tests.clients.support import litellm

    python = litellm.installed().with_name("python")
    code = "from importlib.metadata import version; print(version('litellm'))"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())

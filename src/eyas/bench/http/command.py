"""`eyas bench http`: measures the overhead of the HTTP side, by default with servers whose engine computes nothing.

Time to first token is from sending a request on an open connection to the first event with text; cost is the CPU time
of the server's process per streamed event. The client's own lag is printed with both.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from typing import Any

from eyas.base.settings.config import argument, key_from
from eyas.bench.http.client import APIS, Target
from eyas.bench.http.load import HistoryRun, Singles, StreamRun, run_history, run_sequential, run_streams
from eyas.bench.http.servers import null_server
from eyas.bench.machine import machine
from eyas.bench.report import positive_int, print_json, provenance, table
from eyas.bench.stats import Spread, percentile

__all__ = ["add_arguments", "run"]

PERCENTS = (50, 95, 99)
WARM_S = 1.0
NULL_CONTEXT = 32 << 10
DEFINITIONS = """\
TTFT      request sent (connection open) to first event with text, at the client; percentiles by nearest rank
added     TTFT less `timings.prompt_ms`, the server's own word for submitting to the engine until its first token, and
          for the paced null engine, whose first token is no text, less one round (streams over chunks per second);
          `/v1/messages` does not say it: there it is less the median of the chat requests of the same repeat
chunk     one server-sent event with text; the others count for the CPU, as they have to be sent
CPU       user and system time of the server's process, all its threads, over chunks; the engine is another process
history   TTFT of a conversation that the server sees for the first time, and of the same one a turn later
lag       how late timers of the client's own loop are: what it adds to TTFT
paced     the null engine pauses before each round, as one that computes; flat out: it does not"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("url", nargs="?", metavar="URL", help="server to measure; without one, 'eyas serve null' is started")
    add(
        "--api",
        choices=tuple(APIS),
        default="chat",
        help="API to measure: 'chat', OpenAI's /v1/chat/completions, or 'messages', Anthropic's /v1/messages, in "
        "turns with chat (default: chat)",
    )
    add("--model", default="null", metavar="NAME", help="name of the model in requests (default: null)")
    add(
        "--api-key", type=argument(key_from), default=os.environ.get("OPENAI_API_KEY"), metavar="KEY",
        help="API key, or env:NAME for one in an environment variable (default: that in OPENAI_API_KEY)",
    )  # fmt: skip
    add("--pid", type=positive_int, metavar="PID", help="process id of the server, to measure its CPU time")
    add("--streams", type=positive_int, default=64, metavar="N", help="answers streamed at once (default: 64)")
    add(
        "--requests",
        type=positive_int,
        default=200,
        metavar="N",
        help="requests sent one by one per repeat (default: 200)",
    )
    add(
        "--max-tokens",
        type=positive_int,
        default=256,
        metavar="N",
        help="tokens of each streamed answer (default: 256)",
    )
    add("--seconds", type=positive_int, default=5, metavar="S", help="seconds of streaming per repeat (default: 5)")
    add("--repeats", type=positive_int, default=5, metavar="N", help="how often to repeat the measurement (default: 5)")
    add(
        "--history",
        type=positive_int,
        metavar="N",
        help="also measure requests with a history of N tokens, new to the server and known to it",
    )
    add(
        "--pause",
        type=positive_int,
        default=20,
        metavar="MS",
        help="pause of the paced null engine before each round (default: 20)",
    )


def run(args: argparse.Namespace) -> int:
    import uvloop

    lines, origin = provenance(machine(), libraries=("uvicorn", "uvloop"))
    print("\n".join(["eyas bench http", *lines, _method(args)]), flush=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if args.url is not None:
            figures = _measure(args, runner, "server", args.url, args.pid, is_paced=False)
        else:
            context = (args.history or 0) + NULL_CONTEXT
            with null_server("null", context) as (url, pid):
                figures = _measure(args, runner, "flat out", url, pid, is_paced=False)
            with null_server(f"null:{args.pause}", context) as (url, pid):
                figures |= _measure(args, runner, "paced", url, pid, is_paced=True)
    print(
        "\n".join(
            ["", *_single_table(figures), "", *_stream_table(figures), *_history_table(figures), "", DEFINITIONS, ""]
        )
    )
    print_json(
        {
            "bench": "http",
            "url": args.url,
            "api": args.api,
            **origin,
            "streams": args.streams,
            "requests": args.requests,
            "max_tokens": args.max_tokens,
            "seconds": args.seconds,
            "repeats": args.repeats,
            "figures": {name: {key: one.json() for key, one in group.items()} for name, group in figures.items()},
        }
    )
    return 0


def _method(args: argparse.Namespace) -> str:
    server = args.url or f"'eyas serve null' and 'eyas serve null:{args.pause}', client on the same machine"
    return (
        f"method    {server}\n          {args.repeats} repeats, median (min..max); in each {args.requests} requests "
        f"on one connection,\n          then {args.streams} streams of {args.max_tokens} tokens for {args.seconds} s"
    )


def _measure(
    args: argparse.Namespace, runner: asyncio.Runner, name: str, url: str, pid: int | None, *, is_paced: bool
) -> dict[str, dict[str, Spread]]:
    """Measure each figure of one server, a value per repeat; several APIs in turns, chat first."""
    apis = list(dict.fromkeys(("chat", args.api)))
    targets = {api: Target.parse(url, model=args.model, key=args.api_key, api=APIS[api]) for api in apis}
    values: dict[str, dict[str, list[float]]] = {api: {} for api in apis}
    for target in targets.values():
        runner.run(run_sequential(target, num_requests=min(args.requests, 50)))  # warm
    for repeat in range(args.repeats):
        if not is_paced:
            singles = {
                api: runner.run(run_sequential(target, num_requests=args.requests)) for api, target in targets.items()
            }
            for api, found in singles.items():
                _add_percentiles(values[api], "ttft_ms", found.ttft_ms)
                _add_percentiles(values[api], "added_ms", found.added_ms(singles["chat"]))
            if args.history is not None:
                for number, (api, target) in enumerate(targets.items()):
                    seed = len(targets) * repeat + number  # no API finds the texts of another
                    _add_history(values[api], runner.run(run_history(target, num_tokens=args.history, seed=seed)))
        runs = {
            api: runner.run(
                run_streams(
                    target,
                    num_streams=args.streams,
                    max_tokens=args.max_tokens,
                    warm_s=WARM_S,
                    seconds=args.seconds,
                    pid=pid,
                )
            )
            for api, target in targets.items()
        }
        for api, done in runs.items():
            _add_streams(values[api], done, runs["chat"].probes, num_paced=args.streams if is_paced else None)
    return {
        name if len(apis) == 1 else f"{name}, {api}": {key: Spread(tuple(group)) for key, group in found.items()}
        for api, found in values.items()
    }


def _add_percentiles(values: dict[str, list[float]], name: str, found: Sequence[float]) -> None:
    for percent in PERCENTS:
        values.setdefault(f"{name}_p{percent}", []).append(percentile(found, percent))


def _add_history(values: dict[str, list[float]], done: HistoryRun) -> None:
    found = {"history_tokens": float(done.num_prompt), "history_new_ms": done.new_ms, "history_known_ms": done.known_ms}
    for name, value in (found | {"history_ratio": done.new_ms / done.known_ms}).items():
        values.setdefault(name, []).append(value)


def _add_streams(values: dict[str, list[float]], done: StreamRun, engine: Singles, *, num_paced: int | None) -> None:
    """Add the figures of streams; `num_paced` streams of the null engine get a chunk in each round."""
    round_ms = 1e3 * num_paced * done.seconds / done.num_events if num_paced else 0.0
    _add_percentiles(values, "probe_ms", done.probes.ttft_ms)
    _add_percentiles(values, "probe_added_ms", [one - round_ms for one in done.probes.added_ms(engine)])
    found = {
        "chunks_per_s": done.num_events / done.seconds,
        "tokens_per_chunk": done.num_tokens_per_event,
        "lag_ms_p99": percentile(done.lags_ms, 99),
        "client_us_per_chunk": 1e6 * done.client_cpu_s / done.num_events,
    }
    if done.cpu_s is not None:
        found |= {"cpu_us_per_chunk": 1e6 * done.cpu_s / done.num_events, "cpu_share": done.cpu_s / done.seconds}
    for name, value in found.items():
        values.setdefault(name, []).append(value)


def _single_table(figures: dict[str, dict[str, Spread]]) -> list[str]:
    rows = []
    for name, group in figures.items():
        is_flat = name.startswith("flat out")  # with an engine that is never idle, a request waits for the streams
        for title, key in (("alone", "ttft_ms"), ("alone, added", "added_ms"), ("with the streams", "probe_ms"),
                           ("with, added", "probe_added_ms")):  # fmt: skip
            if f"{key}_p50" in group and not (is_flat and key.startswith("probe")):
                rows.append([f"{name}, {title}", *(group[f"{key}_p{percent}"].text(2) for percent in PERCENTS)])
    return table(["TTFT in ms", *(f"p{percent}" for percent in PERCENTS)], rows)


def _history_table(figures: dict[str, dict[str, Spread]]) -> list[str]:
    columns = (("tokens", "history_tokens", 0), ("new, ms", "history_new_ms", 1), ("known, ms", "history_known_ms", 1),
               ("new / known", "history_ratio", 2))  # fmt: skip
    rows = [
        [name, *(group[key].text(digits) for _, key, digits in columns)]
        for name, group in figures.items()
        if "history_ratio" in group
    ]
    return ["", *table(["TTFT with a history", *(title for title, _, _ in columns)], rows)] if rows else []


def _stream_table(figures: dict[str, dict[str, Spread]]) -> list[str]:
    columns: Sequence[tuple[str, str, int]] = (
        ("CPU us/chunk", "cpu_us_per_chunk", 1), ("CPU cores", "cpu_share", 2), ("chunks/s", "chunks_per_s", 0),
        ("tokens/chunk", "tokens_per_chunk", 2), ("client us/chunk", "client_us_per_chunk", 1),
        ("lag p99 ms", "lag_ms_p99", 2),
    )  # fmt: skip
    rows: list[list[Any]] = [
        [name, *(group[key].text(digits) if key in group else "-" for _, key, digits in columns)]
        for name, group in figures.items()
    ]
    return table(["streams", *(title for title, _, _ in columns)], rows)

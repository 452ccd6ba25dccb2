"""Compares what `eyas bench endpoint` finds with guidellm and `vllm bench serve`, on one paced server.

    python tools/bench_endpoint.py [--guidellm PROGRAM] [--vllm COMMAND] [--rounds 5]

All measure `eyas serve null:20`, which pauses 20 ms before each round, in turns: the same number of requests at once,
all of one length, without a warm-up. PROGRAM is guidellm of an environment of its own, COMMAND is what runs vLLM's
`vllm bench serve`. The exit code is 1 if a figure is more than 5 % off.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from eyas.base.bundled import DEMO
from eyas.base.errors import UserError
from eyas.bench.endpoint.figures import figures_of
from eyas.bench.endpoint.journal import read_run
from eyas.bench.endpoint.prompts.builtin import builtin
from eyas.bench.http.servers import null_server
from eyas.bench.machine import machine
from eyas.bench.report import positive_int, print_json, provenance, table
from eyas.bench.stats import Spread, paired_ratio

__all__ = ["main"]

BAR = 0.05
PAUSE_MS = 20
CONTEXT = 32 << 10
MODEL = "claude-null"  # the server's other name: guidellm reads `null` as no name
FIGURES = ("tokens_per_s", "ttft_ms", "tpot_ms")
DEFINITIONS = """\
tokens_per_s  ours: tokens that arrived in the steady part over its length; guidellm: mean over the time that it
              measured; vLLM: all tokens over the time from the first request to the end of the last
ttft_ms       median from when the client comes to a request to the first chunk with text. vLLM: from before it sends;
              guidellm: from the start of its backend's work. guidellm's own TTFT begins when the first bytes of the
              request leave, after 2 ms of that work: its own clock
tpot_ms       median over requests. ours: (tn - t1) / (N - n1) with n1, the tokens of the first chunk, by the server's
              own count; guidellm's ITL and vLLM's TPOT: (tn - t1) / (N - 1). n1 = 1: ours by their formula. guidellm's
              TPOT is the whole latency over N, another figure
ratio         of two measurements of one round"""

Measured = dict[str, float]
Client = Callable[[str, Path], Measured]  # from the server's address and a folder for its files


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    lines, origin = provenance(machine(), libraries=("aiohttp", "uvloop"))
    print("\n".join(["bench endpoint", *lines, _method(args)]), flush=True)
    clients: dict[str, Client] = {"eyas": lambda url, folder: _eyas(args, url, folder)}
    if args.guidellm:
        clients["guidellm"] = lambda url, folder: _guidellm(args, url, folder)
    if args.vllm:
        clients["vllm"] = lambda url, folder: _vllm(args, url, folder)
    found: dict[str, list[Measured]] = {name: [] for name in clients}
    with null_server(f"null:{PAUSE_MS}", CONTEXT) as (url, _):
        for number in range(args.rounds):
            for name, client in clients.items():
                with tempfile.TemporaryDirectory() as folder:
                    measured = client(url.removesuffix("/v1"), Path(folder))
                found[name].append(measured)
                shown = ", ".join(f"{key} {value:,.2f}" for key, value in measured.items())
                print(f"round {number + 1}, {name}: {shown}", file=sys.stderr, flush=True)
    spreads = {
        name: {key: Spread(tuple(one[key] for one in rounds)) for key in rounds[0]} for name, rounds in found.items()
    }
    rows, is_met = _compare(spreads)
    print("\n".join(["", *table(["", *FIGURES], rows), "", DEFINITIONS, ""]))
    values = {name: {key: spread.json() for key, spread in group.items()} for name, group in spreads.items()}
    print_json({"bench": "endpoint clients", **origin, **vars(args), "bar": BAR, "figures": values, "met": is_met})
    return int(not is_met)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--guidellm", metavar="PROGRAM", help="guidellm, from an environment of its own")
    add("--vllm", metavar="COMMAND", help="command of `vllm bench serve`")
    add("--rounds", type=positive_int, default=5, metavar="N", help="rounds, clients in turns (default: 5)")
    add("--streams", type=positive_int, default=8, metavar="N", help="requests at once (default: 8)")
    add("--requests", type=positive_int, default=64, metavar="N", help="requests of each client a round (default: 64)")
    add("--tokens", type=positive_int, default=128, metavar="N", help="tokens of each answer (default: 128)")
    return parser


def _method(args: argparse.Namespace) -> str:
    return (
        f"method    'eyas serve null:{PAUSE_MS}' on the same machine; {args.rounds} rounds in turns, median (range);\n"
        f"          in each {args.requests} requests of {args.tokens} tokens, {args.streams} at once"
    )


def _prompts(folder: Path, count: int, tokens: int) -> Path:
    """Write as many chats as there are requests, each of them another one."""
    path, chats = folder / "prompts.jsonl", builtin("chat")
    texts = [f"{number}: {chats[number % len(chats)].messages[0]['content']}" for number in range(count)]
    path.write_text("".join(json.dumps({"prompt": text, "output_tokens_count": tokens}) + "\n" for text in texts))
    return path


def _run(command: Sequence[str], **environment: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    if done.returncode:
        raise UserError(f"'{shlex.join(command)}' failed: {(done.stderr or done.stdout).strip()[-600:]}")


def _eyas(args: argparse.Namespace, url: str, folder: Path) -> Measured:
    out = folder / "run.jsonl"
    load = ("--concurrency", args.streams, "--requests", args.requests, "--mode", "fixed", "--max-tokens", args.tokens)
    prompts = _prompts(folder, args.requests, args.tokens)
    words = ("bench", "endpoint", url, "--model", MODEL, *load, "--turns", 1, "--warm-up", 0, "--prompts", prompts)
    _run([sys.executable, "-m", "eyas", *map(str, words), "--out", str(out)])
    (window,) = read_run(out).windows
    figures = figures_of(window)
    assert figures.tokens_per_s is not None and figures.is_exact
    by_one = [
        (record.chunks[-1].at_s - record.chunks[0].at_s) / (record.output_tokens - 1)
        for record in window.records
        if record.is_measured and record.output_tokens is not None
    ]
    return {
        "tokens_per_s": figures.tokens_per_s,
        "ttft_ms": 1e3 * median(figures.first_text_s),
        "tpot_ms": 1e3 * median(figures.tpot_s),
        "tpot_ms, n1 = 1": 1e3 * median(by_one),
    }


def _guidellm(args: argparse.Namespace, url: str, folder: Path) -> Measured:
    out, prompts = folder / "report.json", _prompts(folder, args.requests, args.tokens)
    words = ("--backend", f"kind=openai_http,target={url},model={MODEL}", "--data", f"kind=json_file,path={prompts}")
    load = (
        "--profile",
        f"kind=concurrent,streams={args.streams}",
        "--constraint",
        f"kind=max_requests,count={args.requests}",
    )
    output = ("--disable-console", "--output", f"kind=json,path={out}")
    _run([args.guidellm, "run", *words, *load, *output], HF_HUB_OFFLINE="1", PYTHONPATH="")
    (found,) = json.loads(out.read_text())["benchmarks"]
    metrics, timings = found["metrics"], [one["info"]["timings"] for one in found["requests"]["successful"]]
    if (number := metrics["request_totals"]["successful"]) != args.requests:
        raise UserError(f"guidellm measured {number} requests of {args.requests}")
    return {
        "tokens_per_s": metrics["output_tokens_per_second"]["successful"]["mean"],
        "ttft_ms": 1e3 * median(one["first_token_iteration"] - one["resolve_start"] for one in timings),
        "ttft_ms, its own clock": metrics["time_to_first_token_ms"]["successful"]["median"],
        "tpot_ms": metrics["inter_token_latency_ms"]["successful"]["median"],
    }


def _vllm(args: argparse.Namespace, url: str, folder: Path) -> Measured:
    prompts = _prompts(folder, args.requests, args.tokens)
    words = ("--backend", "openai-chat", "--base-url", url, "--endpoint", "/v1/chat/completions", "--model", MODEL)
    data = ("--dataset-name", "custom", "--dataset-path", prompts, "--custom-output-len", args.tokens)
    load = ("--max-concurrency", args.streams, "--num-prompts", args.requests, "--ignore-eos", "--disable-shuffle")
    output = ("--save-result", "--result-dir", folder, "--result-filename", "result.json", "--disable-tqdm")
    # Its length of a custom prompt's answer is 1 without a tokenizer; it counts by the server's usage all the same.
    plain = ("--tokenizer", DEMO, "--skip-chat-template", "--num-warmups", 0)
    _run([*shlex.split(args.vllm), *map(str, (*words, *data, *load, *output, *plain))])
    found = json.loads((folder / "result.json").read_text())
    if found["completed"] != args.requests:
        raise UserError(f"vllm measured {found['completed']} requests of {args.requests}")
    return {
        "tokens_per_s": found["output_throughput"],
        "ttft_ms": found["median_ttft_ms"],
        "tpot_ms": found["median_tpot_ms"],
    }


def _compare(spreads: Mapping[str, Mapping[str, Spread]]) -> tuple[list[list[str]], bool]:
    """Return a row for each client and each ratio, and whether all medians of ratios are within the bar."""
    ours = spreads["eyas"]
    rows = [[name, *(group[key].text(2) for key in FIGURES)] for name, group in spreads.items()]
    rows.append(["eyas, n1 = 1", "", "", ours["tpot_ms, n1 = 1"].text(2)])
    if "guidellm" in spreads:
        rows.append(["guidellm, its own clock", "", spreads["guidellm"]["ttft_ms, its own clock"].text(2), ""])
    is_met = True
    for name, group in spreads.items():
        if name != "eyas":
            ratios = [paired_ratio(ours[key], group[key]) for key in FIGURES]
            is_met = is_met and all(abs(ratio.median - 1) <= BAR for ratio in ratios)
            rows.append([f"eyas / {name}", *(ratio.text(3) for ratio in ratios)])
    return rows, is_met


if __name__ == "__main__":
    sys.exit(main())

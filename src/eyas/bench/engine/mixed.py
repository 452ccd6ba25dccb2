"""`eyas bench mixed`: measures latency under mixed prefill and decode, in a closed loop and during a long prompt.

The engine runs in this process, as it does for a server, without HTTP. Definitions are printed under the figures.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import TYPE_CHECKING, Any

from eyas.base.errors import UserError
from eyas.base.settings import config as settings
from eyas.base.settings.config import EngineConfig
from eyas.base.types import Request, SamplingParams
from eyas.bench.engine.closed_loop import JITTER_ROUNDS, Jitter, Loop, random_requests, run_closed_loop, run_jitter
from eyas.bench.engine.drive import prefill_s, run_requests
from eyas.bench.gpu_meter import GpuMeter
from eyas.bench.report import SIMULATED, listed, positive_int, print_json, provenance, table
from eyas.bench.stats import Spread, percentile

if TYPE_CHECKING:
    from eyas.bench.engine.parts import EngineCore, LoadedModel

__all__ = ["add_arguments", "run"]

RUNNING = 4  # answers that decode during the prefill of a long prompt
EXPERT_ROUNDS = 8

DEFINITIONS = """\
closed loop  each client sends its next request when its answer ends. The first answer of each is not
             measured, and of different length, so that prompts do not come all at once. No prompt is in the cache
chunk        prompt tokens that a step reads at most while any answer is under way (--busy-chunk-tokens)
token        inter-token latency: time from an answer's first token to its last, over the tokens after the first; p50
             and p99 of answers
gap          time between two deliveries of one answer; a delivery is what a round commits
first        time to first token, from submitting the request
tok/s        tokens of all answers over time, while measured requests ran
experts      distinct experts that a round reads in a layer, mean of rounds before the loop
percentiles  by nearest rank; times in ms; of the repeats' figures the median (min..max)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("benchmark").add_argument
    add("--shape", metavar="NAME", help="random weights of a shape, made on the GPU: gpt-oss-120b or gpt-oss-20b")
    add(
        "--clients", type=listed(positive_int), default=(4, 8, 16, 32), metavar="LIST",
        help="numbers of clients, each with one answer at a time (default: 4,8,16,32)",
    )  # fmt: skip
    add("--prompt-tokens", type=positive_int, default=1024, metavar="N", help="tokens of each prompt (default: 1024)")
    add("--max-tokens", type=positive_int, default=1024, metavar="N", help="tokens of each answer (default: 1024)")
    add("--rounds", type=positive_int, default=2, metavar="N", help="measured answers of each client (default: 2)")
    add(
        "--chunks",
        type=listed(positive_int),
        metavar="LIST",
        help="values of --busy-chunk-tokens to compare (default: that flag's)",
    )
    add(
        "--long-prompt",
        type=positive_int,
        metavar="N",
        help=f"also measure {RUNNING} answers during the prefill of a prompt of N tokens",
    )
    add("--repeats", type=positive_int, default=3, metavar="N", help="how often to repeat the measurement (default: 3)")
    add("--temperature", type=float, default=1.0, metavar="T", help="sampling temperature (default: 1)")
    settings.add_arguments(parser, EngineConfig, positional="model")


@dataclass(kw_only=True, slots=True)
class Bench:
    """An engine and the load to run on it."""

    core: EngineCore
    args: argparse.Namespace
    chunks: Sequence[int]
    vocab_size: int
    num_runs: int = 0

    def requests(self, *, num_tokens: int | None = None, max_tokens: int | None = None) -> Iterator[Request]:
        """Return new requests at each call."""
        self.num_runs += 1
        params = SamplingParams(
            temperature=self.args.temperature, ignore_eos=True, max_tokens=max_tokens or self.args.max_tokens
        )
        return random_requests(
            self.vocab_size,
            num_tokens=num_tokens or self.args.prompt_tokens,
            params=params,
            name=f"mixed-{self.num_runs}",
        )

    def set_chunk(self, chunk: int) -> None:
        scheduler = self.core.scheduler
        scheduler.config = replace(scheduler.config, busy_chunk_tokens=min(chunk, scheduler.config.chunk_tokens))


@dataclass(slots=True)
class Figures:
    """Figures by name, one value a repeat."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, values: Sequence[float], percents: Sequence[float] = (50, 99)) -> None:
        """Add percentiles in ms of values in seconds; 100 is the largest."""
        for percent in percents:
            self.values.setdefault(f"{name}_ms_p{percent:g}", []).append(1e3 * percentile(values, percent))

    def median(self, name: str) -> str:
        return f"{Spread(tuple(self.values[name])).median:,.2f}"

    def spread(self, name: str) -> str:
        return Spread(tuple(self.values[name])).text(2 if name.endswith("ms_p50") else 0)

    def json(self) -> dict[str, Any]:
        return {name: Spread(tuple(values)).json() for name, values in self.values.items()}


def run(args: argparse.Namespace) -> int:
    from eyas.bench.engine.parts import hardware
    from eyas.local import load_model, load_shape, progress_line

    config = settings.load(EngineConfig, args, os.environ)
    if args.max_tokens < 2:
        raise UserError("an answer of one token has no time between tokens; ask for a longer --max-tokens")
    model = load_shape(args.shape, config) if args.shape else load_model(config)
    bench = _bench(args, config, model)
    device = model.weights.embed_VH.device
    lines, origin = provenance(hardware(device))
    print("\n".join(_header(args, config, model, lines)))
    loops, jitter = [], {}
    with progress_line() as show, GpuMeter(device.index or 0 if device.type == "cuda" else None) as meter:
        for clients in args.clients:
            rows = _closed_loops(bench, clients, show)
            print("\n".join(["", *_loop_table(rows)]), flush=True)
            loops += rows
        if args.long_prompt:
            jitter = _jitter(bench, show)
            print("\n".join(["", *_jitter_lines(jitter, args.long_prompt)]))
    print("\n".join(["", *([f"GPU: {meter.text()}", ""] if meter.text() else []), DEFINITIONS, ""]))
    print_json(
        {
            "bench": "mixed",
            "simulated": model.simulated,
            "model": args.shape or config.model,
            "drafter": model.options.drafter,
            "gpu": meter.json(),
            **origin,
            **{name: getattr(args, name) for name in ("prompt_tokens", "max_tokens", "rounds", "repeats")},
            "temperature": args.temperature,
            "closed_loop": [fixed | figures.json() for fixed, figures in loops],
            "long_prompt": {
                "tokens": args.long_prompt,
                "by_chunk": [{"chunk": chunk} | figures.json() for chunk, figures in jitter.items()],
            }
            if jitter
            else None,
        }
    )
    return 0


def _bench(args: argparse.Namespace, config: EngineConfig, model: LoadedModel) -> Bench:
    from eyas.bench.engine.parts import MAX_AUTO_DRAFTS, warm_up

    changes: dict[str, Any] = {"concurrency": max(*args.clients, RUNNING + 1 if args.long_prompt else 1)}
    if config.context == "auto":
        context = args.prompt_tokens + max(args.max_tokens, EXPERT_ROUNDS)
        if args.long_prompt:
            shortest = args.prompt_tokens + 2 * JITTER_ROUNDS * (MAX_AUTO_DRAFTS + 1)
            context = max(context, args.long_prompt + 1, min(shortest, model.config.max_context))
        changes["context"] = context
    core = model.build(**changes).core
    warm_up(core)  # learns what rounds cost, as a server's engine does
    return Bench(
        core=core,
        args=args,
        chunks=args.chunks or (config.busy_chunk_tokens,),
        vocab_size=model.config.vocab_size,
    )


def _closed_loops(bench: Bench, clients: int, show: Callable[[str], None]) -> list[tuple[dict[str, Any], Figures]]:
    """Return one row a chunk size; in each repeat the chunk sizes run in turn."""
    show(f"{clients} clients: experts")
    experts, rows = _experts(bench, clients), {chunk: Figures() for chunk in bench.chunks}
    for repeat in range(bench.args.repeats):
        for chunk, figures in rows.items():
            show(f"{clients} clients, chunks of {chunk}: run {repeat + 1} of {bench.args.repeats}")
            bench.set_chunk(chunk)
            count = clients * bench.args.rounds
            done = run_closed_loop(bench.core, bench.requests(), concurrency=clients, num_measured=count)
            _note_loop(figures, done)
    fixed = {"clients": clients, "answers": clients * bench.args.rounds, "experts_per_layer_and_round": experts}
    return [(fixed | {"chunk": chunk}, figures) for chunk, figures in rows.items()]


def _experts(bench: Bench, clients: int) -> float | None:
    """Count distinct experts in rounds of their own, as counting takes time. None where there were too few rounds."""
    requests = bench.requests(max_tokens=EXPERT_ROUNDS)
    bench.core.expert_counts = []
    done = run_requests(bench.core, [next(requests) for _ in range(clients)], batch=clients)
    bench.core.expert_counts = None
    return round(mean(done.steady_experts), 2) if done.steady_experts else None


def _note_loop(figures: Figures, done: Loop) -> None:
    figures.add("token", [seconds for answer in done.answers if (seconds := answer.token_s) is not None])
    figures.add("gap", [gap for answer in done.answers for gap in answer.gaps_s], (50, 99, 100))
    figures.add("first", [answer.first_s for answer in done.answers])
    figures.values.setdefault("tok_s", []).append(done.tokens_per_s)


def _jitter(bench: Bench, show: Callable[[str], None]) -> dict[int, Figures]:
    """Measure gaps during the prefill of a long prompt, by chunk size."""
    long = bench.requests(num_tokens=bench.args.long_prompt, max_tokens=1)
    room = bench.core.context - bench.args.prompt_tokens
    show("long prompt: warming up")
    prefill_s(bench.core, [next(long)])
    rows = {chunk: Figures() for chunk in bench.chunks}
    for repeat in range(bench.args.repeats):
        alone = prefill_s(bench.core, [next(long)])
        for chunk, figures in rows.items():
            show(f"long prompt, chunks of {chunk}: run {repeat + 1} of {bench.args.repeats}")
            bench.set_chunk(chunk)
            done = run_jitter(bench.core, bench.requests(max_tokens=room), next(long), concurrency=RUNNING)
            _note_jitter(figures, done, alone)
    return rows


def _note_jitter(figures: Figures, done: Jitter, alone: float) -> None:
    figures.add("quiet", done.quiet_s, (50, 99, 100))
    figures.add("mixed", done.mixed_s, (50, 99, 100))
    figures.add("first_alone", [alone], (50,))
    figures.add("first_mixed", [done.first_s], (50,))


def _header(args: argparse.Namespace, config: EngineConfig, model: LoadedModel, origin: list[str]) -> list[str]:
    return [
        f"eyas bench mixed {args.shape or config.model}",
        *([SIMULATED] if model.simulated else []),
        *origin,
        f"model     {model.config.num_layers} layers of {model.config.num_experts} experts, "
        f"{model.config.experts_per_token} a token; drafter {model.options.drafter}",
        f"method    random prompts of {args.prompt_tokens} tokens, answers of {args.max_tokens}, temperature "
        f"{args.temperature:g}; {args.rounds} measured answers a client, {args.repeats} repeats",
    ]


def _loop_table(loops: Sequence[tuple[dict[str, Any], Figures]]) -> list[str]:
    names = ("token_ms_p99", "gap_ms_p50", "gap_ms_p99", "gap_ms_p100", "first_ms_p50", "first_ms_p99")
    head = ["clients", "chunk", "token p50", "p99", "gap p50", "p99", "max", "first p50", "p99", "tok/s", "experts"]
    rows = []
    for fixed, figures in loops:
        experts = fixed["experts_per_layer_and_round"]
        cells = [figures.spread("token_ms_p50"), *(figures.median(name) for name in names), figures.spread("tok_s")]
        rows.append([str(fixed["clients"]), str(fixed["chunk"]), *cells, "-" if experts is None else f"{experts:.1f}"])
    return table(head, rows)


def _jitter_lines(jitter: dict[int, Figures], tokens: int) -> list[str]:
    head = ["chunk", "gap p50", "p99", "max", "without p50", "p99", "max", "first", "alone"]
    names = [f"{kind}_ms_p{percent}" for kind in ("mixed", "quiet") for percent in (50, 99, 100)]
    names += ["first_mixed_ms_p50", "first_alone_ms_p50"]
    rows = [[str(chunk), *(figures.median(name) for name in names)] for chunk, figures in jitter.items()]
    title = f"{RUNNING} answers during the prefill of {tokens} tokens, and without; its first token then, and alone"
    return [title, *table(head, rows)]

"""`eyas bench mixed`: measures latency under mixed prefill and decode, in a closed loop and during a long prompt.

The engine runs in this process, as it does for a server, without HTTP. Definitions are printed under the figures.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import mean
from typing import TYPE_CHECKING, Any

from eyas.base.errors import UserError
from eyas.base.settings import config as settings
from eyas.base.settings.config import MAX_AUTO_DRAFTS, EngineConfig
from eyas.base.synthetic import SimulatedAcceptance, parse_acceptance
from eyas.base.types import Request, SamplingParams
from eyas.bench.engine.arms import Arm, build_arms, forget, parse_drafts, simulate
from eyas.bench.engine.closed_loop import JITTER_ROUNDS, Jitter, Loop, random_requests, run_closed_loop, run_jitter
from eyas.bench.engine.drive import prefill_s, run_requests
from eyas.bench.engine.mixed_report import Figures, LoopRow, burst_lines, jitter_lines, loop_lines
from eyas.bench.gpu_meter import GpuMeter
from eyas.bench.report import SIMULATED, SIMULATED_ACCEPTANCE, listed, positive_int, print_json, provenance

if TYPE_CHECKING:
    from eyas.bench.engine.parts import EngineCore, LoadedModel

__all__ = ["add_arguments", "run"]

RUNNING = 4  # answers that decode during the prefill of a long prompt
EXPERT_ROUNDS = 8

DEFINITIONS = """\
closed loop  each client sends its next request when its answer ends. The first answers are of different length, so
             that prompts do not come all at once, and not measured, nor what comes before all of them have ended. No
             prompt is in the cache
burst        prompts that come at once while nothing else runs; the time to the last of their first tokens
chunk        prompt tokens that a step reads at most while any answer is under way (--busy-chunk-tokens)
token        inter-token latency: time from an answer's first token to its last, over the tokens after the first;
             percentiles of answers
gap          time between two deliveries of one answer; a delivery is what a round commits
first        time to first token, from submitting the request
tok/s        tokens of all answers over time, while measured requests ran
drafts       draft tokens a round; rows of one number of clients run in turn in each repeat, on one engine without a
             head and one with it for all others
of none      paired ratio to the row without drafts: of tok/s, and of the p95 of token
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
        "--drafts", type=listed(parse_drafts), metavar="LIST",
        help="draft lengths to compare with no drafting in the closed loop (default: only what --draft-tokens says)",
    )  # fmt: skip
    add(
        "--simulate-acceptance", type=listed(parse_acceptance), metavar="LIST",
        help="synthetic acceptance of --drafts: random drafts accepted at a set rate, such as 0.6, or a length",
    )  # fmt: skip
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
    add(
        "--bursts",
        type=listed(positive_int),
        default=(),
        metavar="LIST",
        help="also measure the last first token of as many prompts at once, of --burst-tokens each",
    )
    add("--burst-tokens", type=positive_int, default=128, metavar="N", help="tokens of those prompts (default: 128)")
    add("--repeats", type=positive_int, default=3, metavar="N", help="how often to repeat the measurement (default: 3)")
    add("--temperature", type=float, default=1.0, metavar="T", help="sampling temperature (default: 1)")
    settings.add_arguments(parser, EngineConfig, positional="model")


@dataclass(kw_only=True, slots=True)
class Bench:
    """An engine and the load to run on it."""

    arms: Sequence[Arm]
    args: argparse.Namespace
    chunks: Sequence[int]
    vocab_size: int
    num_runs: int = 0

    @property
    def core(self) -> EngineCore:
        """Return the engine of what is measured once, not for each arm."""
        return self.arms[0].core

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
        for arm in self.arms:
            scheduler = arm.core.scheduler
            scheduler.config = replace(scheduler.config, busy_chunk_tokens=min(chunk, scheduler.config.chunk_tokens))


def run(args: argparse.Namespace) -> int:
    from eyas.bench.engine.parts import hardware
    from eyas.local import load_model, load_shape, progress_line

    config = settings.load(EngineConfig, args, os.environ)
    if args.max_tokens < 2:
        raise UserError("an answer of one token has no time between tokens; ask for a longer --max-tokens")
    model = load_shape(args.shape, config) if args.shape else load_model(config)
    bench = _bench(args, config, model)
    machine = hardware(model.weights.embed_VH.device)
    lines, origin = provenance(machine)
    print("\n".join(_header(args, config, model, lines)))
    loops, jitter = [], {}
    with progress_line() as show, GpuMeter(machine.gpu_id) as meter:
        for acceptance in args.simulate_acceptance or (None,):
            for clients in args.clients:
                rows = _closed_loops(bench, acceptance, clients, show)
                print("\n".join(["", *loop_lines(rows)]), flush=True)
                loops += rows
        if args.long_prompt:
            jitter = _jitter(bench, show)
            print("\n".join(["", *jitter_lines(jitter, args.long_prompt, RUNNING)]))
        bursts = _bursts(bench, show)
        if bursts:
            print("\n".join(["", *burst_lines(bursts, args.burst_tokens)]))
    print("\n".join(["", *([f"GPU: {meter.text()}", ""] if meter.text() else []), DEFINITIONS, ""]))
    print_json(
        {
            "bench": "mixed",
            "simulated": model.simulated or args.simulate_acceptance is not None,
            "model": args.shape or config.model,
            "drafter": model.options.drafter,
            "kv_dtype": model.options.kv_dtype,
            "gpu": meter.json(),
            **origin,
            **{name: getattr(args, name) for name in ("prompt_tokens", "max_tokens", "rounds", "repeats")},
            "temperature": args.temperature,
            "closed_loop": [row.json() for row in loops],
            "long_prompt": {
                "tokens": args.long_prompt,
                "by_chunk": [{"chunk": chunk} | figures.json() for chunk, figures in jitter.items()],
            }
            if jitter
            else None,
            "bursts": {
                "tokens": args.burst_tokens,
                "by_prompts": [{"prompts": count} | figures.json() for count, figures in bursts.items()],
            }
            if bursts
            else None,
        }
    )
    return 0


def _bench(args: argparse.Namespace, config: EngineConfig, model: LoadedModel) -> Bench:
    from eyas.bench.engine.parts import warm_up

    most = max(*args.clients, *args.bursts, RUNNING + 1 if args.long_prompt else 1)
    changes: dict[str, Any] = {"concurrency": most}
    if config.context == "auto":
        context = args.prompt_tokens + max(args.max_tokens, EXPERT_ROUNDS)
        if args.bursts:
            context = max(context, args.burst_tokens + 1)
        if args.long_prompt:
            shortest = args.prompt_tokens + 2 * JITTER_ROUNDS * (MAX_AUTO_DRAFTS + 1)
            context = max(context, args.long_prompt + 1, min(shortest, model.config.max_context))
        changes["context"] = context
    if args.drafts:
        arms = build_arms(model, args.drafts, acceptances=args.simulate_acceptance, **changes)
    elif args.simulate_acceptance:
        raise UserError("--simulate-acceptance is of --drafts: name the draft lengths to compare")
    else:
        core = model.build(**changes).core
        arms = [Arm(tiles="tiled", drafts=config.draft_tokens, core=core, draft_length=core.draft_length)]
    for arm in arms:
        if len(arms) == 1 or arm.drafts == "auto":  # else `build_arms` has captured what there is
            arm.core.draft_length = arm.draft_length
            warm_up(arm.core)  # learns what rounds cost, as a server's engine does
    return Bench(
        arms=arms,
        args=args,
        chunks=args.chunks or (config.busy_chunk_tokens,),
        vocab_size=model.config.vocab_size,
    )


def _closed_loops(
    bench: Bench, acceptance: SimulatedAcceptance | None, clients: int, show: Callable[[str], None]
) -> list[LoopRow]:
    """Return one row a chunk size and arm; in each repeat they run in turn."""
    show(f"{clients} clients: experts")
    experts, count = _experts(bench, clients), clients * bench.args.rounds
    text = None if acceptance is None else acceptance.text
    forget(bench.arms)
    rows = [
        (arm, LoopRow(clients, count, chunk, arm.drafts, text, experts)) for chunk in bench.chunks for arm in bench.arms
    ]
    for repeat in range(1, bench.args.repeats + 1):
        simulate(bench.arms, acceptance, repeat)
        # Forwards, then backwards: a machine that slows down slows no row more than the others.
        for arm, row in rows if repeat % 2 else reversed(rows):
            show(f"{clients} clients, {row.name}: run {repeat} of {bench.args.repeats}")
            bench.set_chunk(row.chunk)
            arm.core.draft_length = arm.draft_length
            done = run_closed_loop(arm.core, bench.requests(), concurrency=clients, num_measured=count)
            _note_loop(row.figures, done)
    return [row for _, row in rows]


def _experts(bench: Bench, clients: int) -> float | None:
    """Count distinct experts in rounds of their own, as counting takes time. None where there were too few rounds."""
    requests = bench.requests(max_tokens=EXPERT_ROUNDS)
    bench.core.expert_counts = []
    done = run_requests(bench.core, [next(requests) for _ in range(clients)], batch=clients)
    bench.core.expert_counts = None
    return round(mean(done.steady_experts), 2) if done.steady_experts else None


def _note_loop(figures: Figures, done: Loop) -> None:
    figures.add("token", [seconds for answer in done.answers if (seconds := answer.token_s) is not None], (50, 95, 99))
    figures.add("gap", [gap for answer in done.answers for gap in answer.gaps_s], (50, 95, 99, 100))
    figures.add("first", [answer.first_s for answer in done.answers], (50, 95, 99))
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


def _bursts(bench: Bench, show: Callable[[str], None]) -> dict[int, Figures]:
    """Measure prompts that come at once, by their number."""
    rows = {count: Figures() for count in bench.args.bursts}
    for repeat in range(bench.args.repeats):
        for count, figures in rows.items():
            show(f"bursts of {count}: run {repeat + 1} of {bench.args.repeats}")
            requests = bench.requests(num_tokens=bench.args.burst_tokens, max_tokens=1)
            figures.add("last_first", [prefill_s(bench.core, list(islice(requests, count)))], (50,))
    return rows


def _header(args: argparse.Namespace, config: EngineConfig, model: LoadedModel, origin: list[str]) -> list[str]:
    return [
        f"eyas bench mixed {args.shape or config.model}",
        *([SIMULATED_ACCEPTANCE] if args.simulate_acceptance else [SIMULATED] if model.simulated else []),
        *origin,
        f"model     {model.config.num_layers} layers of {model.config.num_experts} experts, "
        f"{model.config.experts_per_token} a token; drafter {model.options.drafter}",
        f"method    random prompts of {args.prompt_tokens} tokens, answers of {args.max_tokens}, temperature "
        f"{args.temperature:g}; {args.rounds} measured answers a client, {args.repeats} repeats",
    ]

"""`eyas bench acceptance`: measures the acceptance length on real prompts, over content only.

What counts as content, and which rounds count, is defined in `bench.engine.rounds`. The engine is imported when the
command runs.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyas.base.errors import InvalidRequest, UserError
from eyas.base.settings import config as settings
from eyas.base.settings.config import EngineConfig
from eyas.base.tokens.tokenizer import TextCodec
from eyas.base.types import FinishReason, Request, SamplingParams
from eyas.bench.engine.drive import Run, run_requests
from eyas.bench.engine.rounds import Acceptance, count_content, count_rounds
from eyas.bench.prompts import read_prompts
from eyas.bench.report import SIMULATED, existing_file, listed, positive_int, print_json, provenance, table
from eyas.bench.stats import bootstrap_ratio

if TYPE_CHECKING:
    from eyas.bench.engine.parts import EngineCore, LoadedModel

__all__ = ["add_arguments", "measure", "run"]

DRAFT_TOKENS = 4  # where --draft-tokens is auto: positions compare only if the draft length does not change
BAR = 40  # characters of the longest bar

DEFINITIONS = """\
content    text of messages; headers and the tokens that end a message are left out
rounds     those whose first token is content, cut at the first token that is none: a message's end makes them shorter
AL         acceptance length: tokens of these rounds over their number, bonus token included
if reached share of drafts that were accepted where all drafts before them were
of rounds  share of all rounds that accepted a draft at this place"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("benchmark", "--draft-tokens, below, is 4 by default here").add_argument
    add(
        "--prompts", type=existing_file, required=True, metavar="FILE",
        help='JSONL file, a prompt a line: {"messages": [...]}, or {"prompt": "..."} for a user\'s first message',
    )  # fmt: skip
    add(
        "--temperature",
        type=listed(float),
        default=(0.0, 1.0),
        metavar="LIST",
        help="sampling temperatures to measure (default: 0,1)",
    )
    add("--max-tokens", type=positive_int, default=256, metavar="N", help="tokens of the longest answer (default: 256)")
    add("--limit", type=positive_int, metavar="N", help="use the first N prompts only")
    settings.add_arguments(parser, EngineConfig, positional="model")


def run(args: argparse.Namespace) -> int:
    from eyas.bench.engine.parts import hardware, load_tokenizer
    from eyas.local import load_model

    config = settings.load(EngineConfig, args, os.environ)
    if config.draft_tokens == "auto":
        config = replace(config, draft_tokens=DRAFT_TOKENS)
    if config.draft_tokens == 0:
        raise UserError("no draft tokens, nothing to accept; give --draft-tokens 1 or more")
    model = load_model(config)
    if model.options.drafter == "none":
        raise UserError("there is no drafter; name a head with --draft, or try --draft ngram")
    codec = load_tokenizer(model)
    prompts, num_left_out = read_prompts(args.prompts, codec, limit=args.limit)
    core = model.build().core
    _check_prompts(core, prompts, args.prompts)
    lines, origin = provenance(hardware(model.weights.embed_VH.device))
    print("\n".join([*_title(args, config, model), *lines]))
    print(f"prompts   {len(prompts)}, answers of at most {args.max_tokens} tokens", end="")
    print(f" ({num_left_out} lines without messages or prompt left out)" if num_left_out else "", flush=True)
    results = []
    for params in _sampling(args.temperature, config.seed, args.max_tokens):
        done = _answer(core, prompts, params, config.concurrency)
        result, text = _result(done, params, codec)
        results.append(result)
        print("\n".join(["", *text]), flush=True)
    print(f"\n{DEFINITIONS}\n")
    print_json(
        {
            "bench": "acceptance",
            "simulated": model.simulated,
            "model": config.model,
            "drafter": model.options.drafter,
            "kv_dtype": model.options.kv_dtype,
            "draft_tokens": config.draft_tokens,
            **origin,
            "file": str(args.prompts),
            "prompts": len(prompts),
            "max_tokens": args.max_tokens,
            "results": results,
        }
    )
    return 0


def measure(
    config: EngineConfig, path: Path, *, temperatures: Sequence[float], max_tokens: int, limit: int | None = None
) -> list[dict[str, Any]]:
    """Return the figures of each temperature, as in the command's JSON. Raises UserError."""
    from eyas.bench.engine.parts import load_tokenizer
    from eyas.local import load_model

    model = load_model(config)
    codec = load_tokenizer(model)
    prompts, _ = read_prompts(path, codec, limit=limit)
    core = model.build().core
    _check_prompts(core, prompts, path)
    sampling = _sampling(temperatures, config.seed, max_tokens)
    return [_result(_answer(core, prompts, params, config.concurrency), params, codec)[0] for params in sampling]


def _sampling(temperatures: Sequence[float], seed: int | None, max_tokens: int) -> list[SamplingParams]:
    return [SamplingParams(temperature=t, seed=seed or 0, max_tokens=max_tokens) for t in temperatures]


def _check_prompts(core: EngineCore, prompts: Sequence[tuple[int, ...]], path: Path) -> None:
    for number, prompt in enumerate(prompts, 1):
        try:
            core.check(Request(request_id="", prompt_ids=prompt))
        except InvalidRequest as error:
            raise UserError(f"{path}, prompt {number}: {error}") from error


def _title(args: argparse.Namespace, config: EngineConfig, model: LoadedModel) -> list[str]:
    lines = [f"eyas bench acceptance {config.model} on {args.prompts}"] + ([SIMULATED] if model.simulated else [])
    return [*lines, f"drafter   {model.options.drafter}, {config.draft_tokens} draft tokens a round"]


def _answer(core: EngineCore, prompts: Sequence[tuple[int, ...]], params: SamplingParams, batch: int) -> Run:
    from eyas.local import progress_line

    requests = [
        Request(request_id=f"acceptance-{params.temperature}-{i}", prompt_ids=prompt, params=params)
        for i, prompt in enumerate(prompts)
    ]
    num_done = 0
    with progress_line() as show:

        def count() -> None:
            nonlocal num_done
            num_done += 1
            show(f"temperature {params.temperature:g}: {num_done} of {len(prompts)} answers")

        return run_requests(core, requests, batch=batch, on_finish=count)


def _result(done: Run, params: SamplingParams, codec: TextCodec) -> tuple[dict[str, Any], list[str]]:
    """Return figures of one temperature for the JSON, and lines for people."""
    answers = list(done.events.values())
    by_answer = [count_content(events, codec) for events in answers]
    content, everything = Acceptance(), Acceptance()
    for counts, events in zip(by_answer, answers, strict=True):
        content.merge(counts)
        everything.merge(count_rounds(events))
    num_cut = sum(events[-1].finish is FinishReason.LENGTH for events in answers)
    result: dict[str, Any] = {"temperature": params.temperature, "answers_cut_at_max_tokens": num_cut}
    title = f"temperature {params.temperature:g}"
    if everything.num_rounds:
        result["all_tokens"] = everything.json()
    if not content.num_rounds:
        overall = f"; over all tokens {everything.length:.2f}" if everything.num_rounds else ""
        return result | {"content": None}, [f"{title}: no round began with content, nothing to count{overall}"]
    counted = [counts for counts in by_answer if counts.num_rounds]
    low, high = bootstrap_ratio([c.num_tokens for c in counted], [c.num_rounds for c in counted])
    by_answer_mean = sum(counts.length for counts in counted) / len(counted)
    result |= {
        "content": content.json()
        | {"ci95": [round(low, 4), round(high, 4)], "mean_by_answer": round(by_answer_mean, 4)}
    }
    lines = [
        f"{title}: acceptance length {content.length:.2f} over content "
        f"(95 % {low:.2f}..{high:.2f}, bootstrap over {len(counted)} answers)",
        f"  mean of the answers' own {by_answer_mean:.2f}; over all tokens, headers included, {everything.length:.2f}; "
        f"{num_cut} answers were cut at the token limit",
        *_histogram(content),
        *_positions(content),
    ]
    return result, lines


def _histogram(counts: Acceptance) -> list[str]:
    top = max(counts.histogram.values())
    lines = []
    for size in range(1, max(counts.histogram) + 1):
        number = counts.histogram[size]
        share = f"{100 * number / counts.num_rounds:5.1f} %"
        lines.append(f"  rounds of {size}: {share} {'#' * round(BAR * number / top)}".rstrip())
    return lines


def _positions(counts: Acceptance) -> list[str]:
    positions = sorted(counts.reached)
    reached = [f"{100 * counts.accepted[i] / counts.reached[i]:.1f} %" for i in positions]
    rounds = [f"{100 * counts.accepted[i] / counts.num_rounds:.1f} %" for i in positions]
    rows = [["accepted if reached", *reached], ["accepted of rounds", *rounds]]
    return [f"  {line}" for line in table(["draft", *map(str, positions)], rows)]

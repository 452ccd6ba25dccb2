"""`eyas bench engine`: prefill and decode speed by batch size and draft tokens, paired in one process.

All engines are built from the same weights and run in turn, so that disturbances of the machine affect all of them.
Definitions are printed under the figures. The engine is imported when the command runs.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from eyas.base.errors import UserError
from eyas.base.settings import config as settings
from eyas.base.settings.config import EngineConfig
from eyas.base.synthetic import parse_acceptance
from eyas.base.types import SamplingParams
from eyas.bench.engine.arms import Arm, Drafts, Tiles, Workload, build_arms, forget, measure, parse_drafts, simulate
from eyas.bench.engine.limit import read_limit, round_limit
from eyas.bench.engine.report import DEFINITIONS, Setting, batch_lines, figures_of, summary_lines
from eyas.bench.gpu_meter import GpuMeter
from eyas.bench.prompts import question_prompts, random_prompts, read_prompts, unseen_prompts
from eyas.bench.report import (
    SIMULATED,
    SIMULATED_ACCEPTANCE,
    existing_file,
    listed,
    positive_int,
    print_json,
    provenance,
)

if TYPE_CHECKING:
    from eyas.bench.engine.parts import EngineCore, LoadedModel

__all__ = ["add_arguments", "run"]

DRAFTS: tuple[Drafts, ...] = (0, 1, 2, 3, 4, "auto")
RANDOM_PROMPT_TOKENS = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("benchmark").add_argument
    add(
        "--batch",
        type=listed(positive_int),
        default=(1, 4),
        metavar="LIST",
        help="batch sizes to measure (default: 1,4)",
    )
    add(
        "--drafts", type=listed(parse_drafts), metavar="LIST",
        help="draft lengths to compare with no drafting (default: 1,2,3,4,auto, or what --draft-tokens says)",
    )  # fmt: skip
    add("--shape", metavar="NAME", help="random weights of a shape, made on the GPU: gpt-oss-120b or gpt-oss-20b")
    add("--plain", action="store_true", help="compare with plain F.linear too, which is not row-invariant")
    add(
        "--both-lm-heads", action="store_true",
        help="compare with reading the whole lm_head too, as --whole-lm-head does",
    )  # fmt: skip
    add("--bf16", action="store_true", help="compare with weights as published: without --decode-weights' copies")
    add("--repeats", type=positive_int, default=5, metavar="N", help="how often to repeat the measurement (default: 5)")
    add("--prompts", type=existing_file, metavar="FILE", help="JSONL file of prompts (default: a few questions)")
    add(
        "--prompt-tokens", type=listed(positive_int), default=(256,), metavar="LIST",
        help="prompt lengths for prefill, with --shape for all prompts (default: 256)",
    )  # fmt: skip
    add("--max-tokens", type=positive_int, default=64, metavar="N", help="tokens of the longest answer (default: 64)")
    add("--ignore-eos", action="store_true", help="make all answers --max-tokens long; always on for random weights")
    add("--answers", type=positive_int, metavar="N", help="answers per run (default: twice the batch, at least 4)")
    add(
        "--simulate-acceptance", type=listed(parse_acceptance), metavar="LIST",
        help="synthetic acceptance: random drafts accepted at a set rate. 2.6 is an acceptance length (at the longest "
        "draft length of --drafts, 7 for auto alone), 0.7 the rate of each draft, 0.9/0.1 alternating rates",
    )  # fmt: skip
    add("--budget", action="store_true", help="break down the time of a round by stage")
    add("--temperature", type=float, default=0.0, metavar="T", help="sampling temperature (default: 0)")
    settings.add_arguments(parser, EngineConfig, positional="model")


def run(args: argparse.Namespace) -> int:
    from eyas.bench.engine.parts import hardware, num_copies
    from eyas.local import load_model, load_shape

    config = settings.load(EngineConfig, args, os.environ)
    if args.shape and args.plain:
        raise UserError("--plain computes with plain weights, --shape makes those of the kernels; leave one out")
    model = load_shape(args.shape, config) if args.shape else load_model(config)
    if args.bf16 and not num_copies(model.weights):
        raise UserError("--bf16 compares with copies of weights, and there are none; see --decode-weights")
    limit = read_limit(model)
    numbers = itertools.count()
    works = {num_tokens: _workload(args, model, num_tokens, numbers) for num_tokens in args.prompt_tokens}
    arms = _arms(args, config, model, list(works.values()))
    machine = hardware(model.weights.embed_VH.device)
    lines, origin = provenance(machine)
    print("\n".join(_header(args, config, model, list(works.values()), lines)))
    figures = []
    with GpuMeter(machine.gpu_id) as meter:
        for setting in _settings(args):
            forget(arms)
            measure(
                arms,
                works[setting.prompt_tokens],
                setting.batch,
                args.repeats,
                prepare=partial(simulate, arms, setting.acceptance),
                with_budget=args.budget,
            )
            if limit is not None:
                context = works[setting.prompt_tokens].mean_context
                for arm in (arm for arm in arms if arm.drafts != "auto"):  # whose rounds differ
                    arm.limit = round_limit(model, arm, context=context, batch=setting.batch, bandwidth=limit)
            figures += [figures_of(arm, arms, setting) for arm in arms]
            print("\n".join(["", *batch_lines(arms, setting)]), flush=True)
    print("\n".join(["", *summary_lines(figures), *([f"GPU: {meter.text()}"] if meter.text() else [])]))
    print(f"\n{DEFINITIONS}\n")
    print_json(
        {
            "bench": "engine",
            "simulated": model.simulated or args.simulate_acceptance is not None,
            "model": args.shape or config.model,
            "read_limit": limit,
            "gpu": meter.json(),
            "drafter": model.options.drafter,
            "kv_dtype": model.options.kv_dtype,
            **origin,
            "repeats": args.repeats,
            "prompts": str(args.prompts) if args.prompts else "built in",
            "max_tokens": args.max_tokens,
            "ignore_eos": args.ignore_eos or model.simulated,
            "temperature": args.temperature,
            "figures": figures,
        }
    )
    return 0


def _settings(args: argparse.Namespace) -> list[Setting]:
    return [
        Setting(acceptance, prompt_tokens, batch)
        for acceptance in args.simulate_acceptance or (None,)
        for prompt_tokens in args.prompt_tokens
        for batch in args.batch
    ]


def _workload(args: argparse.Namespace, model: LoadedModel, prompt_tokens: int, numbers: Iterator[int]) -> Workload:
    from eyas.bench.engine.parts import load_tokenizer

    has_tokenizer = (model.folder / "tokenizer.json").exists()
    vocab_size = model.config.vocab_size
    if args.prompts is not None:
        prompts, _ = read_prompts(args.prompts, load_tokenizer(model))
    elif has_tokenizer:
        prompts = question_prompts(load_tokenizer(model))
    else:
        num_tokens = prompt_tokens if args.shape else RANDOM_PROMPT_TOKENS
        prompts = random_prompts(vocab_size, num_tokens=num_tokens, count=max(4, 2 * max(args.batch)))
    return Workload(
        is_text=args.prompts is not None or has_tokenizer,
        prompts=prompts,
        unseen=unseen_prompts(prompts, vocab_size=vocab_size, num_tokens=prompt_tokens, numbers=numbers),
        prompt_tokens=prompt_tokens,
        num_answers=args.answers,
        params=SamplingParams(
            temperature=args.temperature,
            max_tokens=args.max_tokens,
            ignore_eos=args.ignore_eos or model.simulated,
        ),
    )


def _arms(args: argparse.Namespace, config: EngineConfig, model: LoadedModel, works: Sequence[Workload]) -> list[Arm]:
    from eyas.bench.engine.parts import PLAIN_OPS, capture, remove_copies

    drafts: tuple[Drafts, ...] = args.drafts or ((config.draft_tokens,) if "draft_tokens" in args else DRAFTS)
    options: dict[str, Any] = {"concurrency": max(args.batch)}
    if config.context == "auto":
        options["context"] = max(work.longest_prompt + args.max_tokens for work in works)
    others: list[Arm] = []

    def add(kind: Tiles, core: EngineCore) -> None:
        capture(core)
        others.append(Arm(tiles=kind, drafts=0, core=core, draft_length=core.draft_length))

    if args.plain:
        add("plain", model.build(drafter="none", row_ops=PLAIN_OPS, prompt_ops=PLAIN_OPS, **options).core)
    if args.both_lm_heads:
        add("whole", model.build(drafter="none", whole_lm_head=True, **options).core)
    if args.bf16:
        published = replace(model, weights=remove_copies(model.weights))
        add("bf16", published.build(drafter="none", **options).core)
    arms = build_arms(model, drafts, acceptances=args.simulate_acceptance, **options)
    if args.both_lm_heads and arms[0].core.runner.screen is None:
        raise UserError("--both-lm-heads compares with a screened lm_head, and this is none; see --whole-lm-head")
    return others + arms


def _header(
    args: argparse.Namespace, config: EngineConfig, model: LoadedModel, works: Sequence[Workload], origin: list[str]
) -> list[str]:
    size, first = model.config, works[0]
    sampling = "greedy" if args.temperature == 0 else f"temperature {args.temperature:g}"
    lengths = [len(prompt) for work in works for prompt in work.prompts]
    source = f"{'questions' if first.is_text else 'random ids'} of {min(lengths)} to {max(lengths)} tokens"
    simulated = [SIMULATED_ACCEPTANCE] if args.simulate_acceptance else [SIMULATED] if model.simulated else []
    lines = [f"eyas bench engine {args.shape or config.model}", *simulated, *origin] + [
        f"model     {size.num_layers} layers of {size.num_experts} experts, {size.experts_per_token} a token; "
        f"drafter {model.options.drafter}",
        f"method    {args.repeats} repeats in one process; in each, all rows run in turn; median (min..max)",
        f"answers   to {args.prompts or source}; {'always' if first.params.ignore_eos else 'at most'} "
        f"{args.max_tokens} tokens, {sampling}",
    ]
    if model.options.drafter == "none":
        lines.append("note      no drafter; name a head with --draft, or try --draft ngram")
    return lines

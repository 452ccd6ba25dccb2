"""`eyas bench engine`: prefill and decode speed by batch size and draft tokens, paired in one process.

All engines are built from the same weights and run in turn, so that disturbances of the machine affect all of them.
Definitions are printed under the figures. The engine is imported when the command runs.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from eyas.base.errors import UserError
from eyas.base.settings import config as settings
from eyas.base.settings.config import EngineConfig
from eyas.base.types import SamplingParams
from eyas.bench.engine.arms import Arm, Drafts, Workload, measure
from eyas.bench.engine.limit import read_limit, round_limit
from eyas.bench.engine.report import DEFINITIONS, Setting, batch_lines, figures_of, summary_lines
from eyas.bench.engine.simulate import SimulatedAcceptance, parse_acceptance
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
    from eyas.bench.engine.parts import LoadedModel

__all__ = ["add_arguments", "run"]

DRAFTS: tuple[Drafts, ...] = (0, 1, 2, 3, 4, "auto")
MAX_DRAFTS = 16
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
        "--drafts", type=listed(_drafts), metavar="LIST",
        help="draft lengths to compare with no drafting (default: 1,2,3,4,auto, or what --draft-tokens says)",
    )  # fmt: skip
    add("--shape", metavar="NAME", help="random weights of a shape, made on the GPU: gpt-oss-120b or gpt-oss-20b")
    add("--plain", action="store_true", help="compare with plain F.linear too, which is not row-invariant")
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


def _drafts(text: str) -> Drafts:
    if text == "auto":
        return "auto"
    if not text.isdecimal() or int(text) > MAX_DRAFTS:
        raise argparse.ArgumentTypeError(f"wants numbers from 0 to {MAX_DRAFTS} or 'auto', got '{text}'")
    return int(text)


def run(args: argparse.Namespace) -> int:
    from eyas.bench.engine.parts import hardware
    from eyas.local import load_model, load_shape

    config = settings.load(EngineConfig, args, os.environ)
    if args.shape and args.plain:
        raise UserError("--plain computes with plain weights, --shape makes those of the kernels; leave one out")
    model = load_shape(args.shape, config) if args.shape else load_model(config)
    device = model.weights.embed_VH.device
    limit = read_limit(model)
    numbers = itertools.count()
    works = {num_tokens: _workload(args, model, num_tokens, numbers) for num_tokens in args.prompt_tokens}
    arms = _arms(args, config, model, list(works.values()))
    lines, origin = provenance(hardware(device))
    print("\n".join(_header(args, config, model, list(works.values()), lines)))
    figures = []
    with GpuMeter(device.index or 0 if device.type == "cuda" else None) as meter:
        for setting in _settings(args):
            _forget(arms)
            measure(
                arms,
                works[setting.prompt_tokens],
                setting.batch,
                args.repeats,
                prepare=partial(_simulate, arms, setting),
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


def _forget(arms: Sequence[Arm]) -> None:
    """Reset `auto` between settings: it keeps the cost of rounds and forgets acceptance."""
    from eyas.bench.engine.parts import AutoDraftLength

    for arm in arms:
        if isinstance(arm.draft_length, AutoDraftLength):
            arm.draft_length = arm.draft_length.fresh()


def _simulate(arms: Sequence[Arm], setting: Setting, turn: int) -> None:
    """Set synthetic acceptance: the same accepted drafts for all arms of a turn, others in the next."""
    if setting.acceptance is None:
        return
    from eyas.bench.engine.parts import SimulatedSampler

    chances = setting.acceptance.chances(_most_drafts([arm.drafts for arm in arms]))
    for core in {id(arm.core): arm.core for arm in arms}.values():  # arms with drafts share one
        if isinstance(core.runner.sampler, SimulatedSampler):
            core.runner.sampler.simulate(chances, seed=turn)


def _most_drafts(drafts: Sequence[Drafts]) -> int:
    """Return the draft length that an acceptance length refers to: the most that `auto` may take if alone."""
    from eyas.bench.engine.parts import MAX_AUTO_DRAFTS

    numbers = [number for number in drafts if isinstance(number, int)]
    return max(numbers, default=0) or MAX_AUTO_DRAFTS


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
    """Build the arms: without a drafter first, the others in the order given. One engine serves all draft lengths."""
    from eyas.bench.engine.parts import MAX_AUTO_DRAFTS, PLAIN_OPS, FixedDraftLength, auto_draft_length

    asked: tuple[Drafts, ...] = args.drafts or ((config.draft_tokens,) if "draft_tokens" in args else DRAFTS)
    drafts = [number for number in asked if number != 0] if model.options.drafter != "none" else []
    common: dict[str, Any] = {"concurrency": max(args.batch)}
    if config.context == "auto":
        common["context"] = max(work.longest_prompt + args.max_tokens for work in works)
    arms: list[Arm] = []
    if args.plain:
        plain = model.build(drafter="none", row_ops=PLAIN_OPS, prompt_ops=PLAIN_OPS, **common).core
        arms.append(Arm(tiles="plain", drafts=0, core=plain, draft_length=FixedDraftLength(0)))
    without = model.build(drafter="none", **common).core
    arms.append(Arm(tiles="tiled", drafts=0, core=without, draft_length=FixedDraftLength(0)))
    if args.simulate_acceptance:
        common["simulated_acceptance"] = _check_acceptance(args.simulate_acceptance, drafts)
    if drafts:
        most = max(MAX_AUTO_DRAFTS if number == "auto" else number for number in drafts)
        core = model.build(draft_tokens=most, **common).core
        for number in drafts:
            length = (
                FixedDraftLength(number)
                if number != "auto"
                else auto_draft_length(model.options, model.config, model.weights)
            )
            arms.append(Arm(tiles="tiled", drafts=number, core=core, draft_length=length))
    return arms


def _check_acceptance(wanted: Sequence[SimulatedAcceptance], drafts: Sequence[Drafts]) -> tuple[float, ...]:
    """Return the first acceptance rates; raises UserError for what cannot be simulated."""
    if not drafts:
        raise UserError("--simulate-acceptance needs drafts; add --draft eagle3, and --drafts with more than 0")
    chances = [acceptance.chances(_most_drafts(drafts)) for acceptance in wanted]
    return chances[0]


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

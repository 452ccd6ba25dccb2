"""`eyas bench engine`: prefill and decode speed by batch size and draft tokens, paired in one process.

All engines are built from the same weights and run in turn, so that whatever slows the machine slows all of them.
Definitions are printed under the figures. The engine is imported when the command runs.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from eyas.base import config as settings
from eyas.base.config import EngineConfig
from eyas.base.errors import UserError
from eyas.base.types import SamplingParams
from eyas.bench.arms import Arm, Drafts, Workload, measure
from eyas.bench.limit import read_limit, round_bytes
from eyas.bench.prompts import question_prompts, random_prompts, read_prompts, unseen_prompts
from eyas.bench.report import SIMULATED, existing_file, listed, positive_int, print_json, provenance, table
from eyas.bench.stats import Spread, paired_ratio

if TYPE_CHECKING:
    from eyas.engine.load import LoadedModel

__all__ = ["add_arguments", "run"]

DRAFTS: tuple[Drafts, ...] = (0, 1, 2, 3, 4, "auto")
MAX_DRAFTS = 16
RANDOM_PROMPT_TOKENS = 64

DEFINITIONS = """\
prefill   prompt tokens over the time until each prompt of the batch has its first token; nothing was cached
decode    tokens committed over time, in rounds in which the whole batch decodes and no prompt is read
drafts    per round; 0 is without a drafter; plain F.linear has no row tiles and is not exact
against   ratios of runs of the same repeat; above 1 is faster
AL        acceptance length: tokens committed per round and answer, bonus token and Harmony headers included
          (`eyas bench acceptance` leaves headers out)
rounds    share that committed 1, 2, ... tokens
experts   distinct experts that a round reads in a layer, mean
same      answers with exactly the tokens of those without drafts
limit     weights that a round without drafts reads, over the bandwidth of a streaming read in the same run"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("benchmark").add_argument
    add("--batch", type=listed(positive_int), default=(1, 4), metavar="LIST", help="batch sizes (default: 1,4)")
    add(
        "--drafts", type=listed(_drafts), metavar="LIST",
        help="draft tokens to compare with none (default: 1,2,3,4,auto, or what --draft-tokens says)",
    )  # fmt: skip
    add("--shape", metavar="NAME", help="random weights of a shape, made on the GPU: gpt-oss-120b or gpt-oss-20b")
    add("--plain", action="store_true", help="compare with plain F.linear too, which is not exact")
    add("--repeats", type=positive_int, default=5, metavar="N", help="runs of everything (default: 5)")
    add("--prompts", type=existing_file, metavar="FILE", help="JSONL file of prompts (default: a few questions)")
    add(
        "--prompt-tokens",
        type=positive_int,
        default=256,
        metavar="N",
        help="length for prefill, with --shape of all prompts (default: 256)",
    )
    add("--max-tokens", type=positive_int, default=64, metavar="N", help="longest answer (default: 64)")
    add("--ignore-eos", action="store_true", help="all answers as long as --max-tokens; always so for random weights")
    add("--temperature", type=float, default=0.0, metavar="T", help="of sampling (default: 0)")
    settings.add_arguments(parser, EngineConfig, positional="model")


def _drafts(text: str) -> Drafts:
    if text == "auto":
        return "auto"
    if not text.isdecimal() or int(text) > MAX_DRAFTS:
        raise argparse.ArgumentTypeError(f"wants numbers from 0 to {MAX_DRAFTS} or 'auto', got '{text}'")
    return int(text)


def run(args: argparse.Namespace) -> int:
    from eyas.engine.hardware import hardware
    from eyas.local import load_model, load_shape

    config = settings.load(EngineConfig, args, os.environ)
    if args.shape and args.plain:
        raise UserError("--plain computes with plain weights, --shape makes those of the kernels; leave one out")
    model = load_shape(args.shape, config) if args.shape else load_model(config)
    limit = read_limit(model)
    work = _workload(args, model)
    arms = _arms(args, config, model, work)
    lines, origin = provenance(hardware(model.weights.embed_VH.device))
    print("\n".join(_header(args, config, model, work, lines)))
    figures = []
    for batch in args.batch:
        measure(arms, work, batch, args.repeats)
        figures += [_figures(arm, arms, batch) for arm in arms]
        print("\n".join(["", *_batch_lines(arms, batch), *_limit_lines(arms[0], model, batch, limit)]), flush=True)
    print(f"\n{DEFINITIONS}\n")
    print_json(
        {
            "bench": "engine",
            "simulated": model.simulated,
            "model": args.shape or config.model,
            "read_limit": limit,
            "drafter": model.options.drafter,
            **origin,
            "repeats": args.repeats,
            "prompts": str(args.prompts) if args.prompts else "built in",
            "prompt_tokens": args.prompt_tokens,
            "max_tokens": args.max_tokens,
            "ignore_eos": work.params.ignore_eos,
            "temperature": args.temperature,
            "figures": figures,
        }
    )
    return 0


def _workload(args: argparse.Namespace, model: LoadedModel) -> Workload:
    from eyas.engine.load import load_tokenizer

    has_tokenizer = (model.folder / "tokenizer.json").exists()
    vocab_size = model.config.vocab_size
    if args.prompts is not None:
        prompts, _ = read_prompts(args.prompts, load_tokenizer(model))
    elif has_tokenizer:
        prompts = question_prompts(load_tokenizer(model))
    else:
        num_tokens = args.prompt_tokens if args.shape else RANDOM_PROMPT_TOKENS
        prompts = random_prompts(vocab_size, num_tokens=num_tokens, count=max(4, 2 * max(args.batch)))
    return Workload(
        is_text=args.prompts is not None or has_tokenizer,
        prompts=prompts,
        unseen=unseen_prompts(prompts, vocab_size=vocab_size, num_tokens=args.prompt_tokens),
        prompt_tokens=args.prompt_tokens,
        params=SamplingParams(
            temperature=args.temperature,
            max_tokens=args.max_tokens,
            ignore_eos=args.ignore_eos or model.simulated,
        ),
    )


def _arms(args: argparse.Namespace, config: EngineConfig, model: LoadedModel, work: Workload) -> list[Arm]:
    """Without a drafter first, the others in the order asked for. One engine serves all draft lengths."""
    from eyas.engine.backend import PLAIN_OPS
    from eyas.engine.build import MAX_AUTO_DRAFTS
    from eyas.engine.draft_length import AutoDraftLength, FixedDraftLength

    asked: tuple[Drafts, ...] = args.drafts or ((config.draft_tokens,) if "draft_tokens" in args else DRAFTS)
    drafts = [number for number in asked if number != 0] if model.options.drafter != "none" else []
    longest = max(len(prompt) for prompt in work.prompts) + args.max_tokens
    common: dict[str, Any] = {"concurrency": max(args.batch)}
    if config.context == "auto":
        common["context"] = max(longest, args.prompt_tokens + 1)
    arms: list[Arm] = []
    if args.plain:
        plain = model.build(drafter="none", row_ops=PLAIN_OPS, prompt_ops=PLAIN_OPS, **common).core
        arms.append(Arm(tiles="plain", drafts=0, core=plain, draft_length=FixedDraftLength(0)))
    without = model.build(drafter="none", **common).core
    arms.append(Arm(tiles="tiled", drafts=0, core=without, draft_length=FixedDraftLength(0)))
    if drafts:
        most = max(MAX_AUTO_DRAFTS if number == "auto" else number for number in drafts)
        core = model.build(draft_tokens=most, **common).core
        for number in drafts:
            length = AutoDraftLength(MAX_AUTO_DRAFTS) if number == "auto" else FixedDraftLength(number)
            arms.append(Arm(tiles="tiled", drafts=number, core=core, draft_length=length))
    return arms


def _header(
    args: argparse.Namespace, config: EngineConfig, model: LoadedModel, work: Workload, origin: list[str]
) -> list[str]:
    size = model.config
    sampling = "greedy" if args.temperature == 0 else f"temperature {args.temperature:g}"
    lengths = f"{min(map(len, work.prompts))} to {max(map(len, work.prompts))} tokens"
    source = args.prompts or (f"questions of {lengths}" if work.is_text else f"random ids, {lengths}")
    lines = [f"eyas bench engine {args.shape or config.model}"] + ([SIMULATED] if model.simulated else [])
    lines += origin + [
        f"model     {size.num_layers} layers of {size.num_experts} experts, {size.experts_per_token} a token; "
        f"drafter {model.options.drafter}",
        f"method    {args.repeats} repeats in one process; in each, all rows run in turn; median (min..max)",
        f"answers   to {source}; {'always' if work.params.ignore_eos else 'at most'} {args.max_tokens} tokens, "
        f"{sampling}; prefill of {args.prompt_tokens} tokens a prompt",
    ]
    if model.options.drafter == "none":
        lines.append("note      no drafter; name a head with --draft, or try --draft ngram")
    return lines


def _ratios(arm: Arm, arms: Sequence[Arm]) -> dict[str, Spread]:
    """Against no drafting in tiles and, where that was measured, with plain F.linear."""
    names = {"tiled": "vs_no_draft", "plain": "vs_plain"}
    return {
        names[base.tiles]: paired_ratio(Spread(tuple(arm.decode)), Spread(tuple(base.decode)))
        for base in arms
        if base.drafts == 0 and base is not arm
    }


def _figures(arm: Arm, arms: Sequence[Arm], batch: int) -> dict[str, Any]:
    """One row for the JSON."""
    against = _auto_against_best(arms)
    return {
        "batch": batch,
        "matmul": arm.tiles,
        "draft_tokens": arm.drafts,
        "prefill_tok_s": Spread(tuple(arm.prefill)).json() if arm.prefill else None,
        "decode_tok_s": Spread(tuple(arm.decode)).json(),
        **{name: ratio.json() for name, ratio in _ratios(arm, arms).items()},
        **({"vs_best_fixed": against[1].json()} if arm.drafts == "auto" and against else {}),
        **arm.counts.json(),
        "experts_per_layer_and_round": round(arm.experts, 3),
        "same_answers": _num_same(arm, arms),
        "answers": len(arm.answers),
    }


def _num_same(arm: Arm, arms: Sequence[Arm]) -> int:
    """Answers with the tokens that decoding without drafts gives."""
    base = next(other for other in arms if other.tiles == "tiled" and other.drafts == 0)
    return sum(a == b for a, b in zip(arm.answers, base.answers, strict=True))


def _batch_lines(arms: Sequence[Arm], batch: int) -> list[str]:
    prefill = [f"{_engine_name(arm)} {Spread(tuple(arm.prefill)).text(0)}" for arm in arms if arm.prefill]
    lines = [f"batch {batch}", f"prefill tok/s: {', '.join(prefill)}", *_speed_table(arms), "", *_round_table(arms)]
    against = _auto_against_best(arms)
    if against is not None:
        best, ratio = against
        lines += ["", f"auto against the fastest fixed row here, {_drafts_text(best)} drafts: {ratio.text(2)}"]
    return lines


def _limit_lines(arm: Arm, model: LoadedModel, batch: int, limit: float | None) -> list[str]:
    """Of rounds without drafts."""
    if limit is None or arm.tiles == "plain":
        return []
    needed, seconds = round_bytes(model, arm.experts), batch / Spread(tuple(arm.decode)).median
    return [
        "",
        f"limit: {needed / 1e9:.2f} GB a round at {limit / 1e12:.2f} TB/s is {1e3 * needed / limit:.3f} ms; "
        f"without drafts a round takes {1e3 * seconds:.3f} ms, {100 * needed / limit / seconds:.0f} % of the limit",
    ]


def _speed_table(arms: Sequence[Arm]) -> list[str]:
    has_plain = any(arm.tiles == "plain" for arm in arms)
    names = ("vs_no_draft", "vs_plain")[: 1 + has_plain]
    rows = []
    for arm in arms:
        ratios = _ratios(arm, arms)
        cells = [ratios[name].text(2) if name in ratios else "-" for name in names]
        rows.append([_drafts_text(arm), Spread(tuple(arm.decode)).text(1), *cells])
    return table(["drafts", "decode tok/s", "against 0 drafts", "against plain"][: 2 + len(names)], rows)


def _round_table(arms: Sequence[Arm]) -> list[str]:
    widest = max(max(arm.counts.histogram) for arm in arms)
    head = ["drafts", "AL", "rounds of 1", *(str(size) for size in range(2, widest + 1)), "experts", "same answers"]
    rows = []
    for arm in arms:
        counts = arm.counts
        shares = [f"{100 * counts.histogram[size] / counts.num_rounds:.0f}%" for size in range(1, widest + 1)]
        same = f"{_num_same(arm, arms)} of {len(arm.answers)}"
        rows.append([_drafts_text(arm), f"{counts.length:.2f}", *shares, f"{arm.experts:.1f}", same])
    return table(head, rows)


def _auto_against_best(arms: Sequence[Arm]) -> tuple[Arm, Spread] | None:
    """The fastest of the fixed draft lengths, none included, and the speed of `auto` over its speed."""
    auto = next((arm for arm in arms if arm.drafts == "auto"), None)
    if auto is None:
        return None
    fixed = [arm for arm in arms if arm.tiles == "tiled" and arm is not auto]
    best = max(fixed, key=lambda arm: Spread(tuple(arm.decode)).median)
    return best, paired_ratio(Spread(tuple(auto.decode)), Spread(tuple(best.decode)))


def _drafts_text(arm: Arm) -> str:
    if arm.drafts == "auto":
        return f"auto, mean {arm.counts.num_drafts / arm.counts.num_rounds:.1f}"
    return "0, plain F.linear" if arm.tiles == "plain" else str(arm.drafts)


def _engine_name(arm: Arm) -> str:
    if arm.drafts == 0:
        return "plain F.linear" if arm.tiles == "plain" else "no drafter"
    return "with drafter"

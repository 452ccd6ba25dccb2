"""`eyas train plan`: memory by owner, the longest context that fits and the time of a run; allocates nothing.

Of a settings file on this machine, or with `--shape` of steps of one document on a GPU that need not be here.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from eyas.base.errors import UserError

__all__ = ["add_arguments", "run"]

MIN_CONTEXT = 16  # that data.context can have


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", type=Path, metavar="FILE", help="settings file; `eyas train init` writes one"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="SECTION.KEY=VALUE", help="settings in place of those of the file"
    )

    add = parser.add_argument
    add("--shape", metavar="NAME", help="plan steps of a published shape, without a file: gpt-oss-20b or gpt-oss-120b")
    add("--tokens", type=int, default=131072, metavar="N", help="with --shape: tokens of a document (default: 131072)")
    add(
        "--supervised", type=float, default=1.0, metavar="S",
        help="with --shape: share of its tokens that is supervised (default: 1)",
    )  # fmt: skip
    add("--gpu", default="h200", metavar="NAME", help="with --shape: h200 (default) or h100")
    add("--head-gpu", metavar="NAME", help="with --shape: the head has a GPU of its own (train.device): h200 or h100")
    add("--no-target", action="store_true", help="with --shape: the target's states come from elsewhere")


def run(args: argparse.Namespace) -> int:
    if (args.file is None) == (args.shape is None):
        raise UserError("give a settings file or --shape, and not both")
    return _plan_file(args) if args.shape is None else _plan_shape(args)


def _plan_shape(args: argparse.Namespace) -> int:
    from eyas.base.units import readable
    from eyas.train.loop.shape_plan import plan_shape

    if not 0 < args.supervised <= 1 or args.tokens < MIN_CONTEXT:
        raise UserError(f"--supervised wants a share above 0 and up to 1, --tokens at least {MIN_CONTEXT}")
    plan = plan_shape(
        args.shape, tokens=args.tokens, supervised=args.supervised, gpu=args.gpu, with_target=not args.no_target,
        head_gpu=args.head_gpu,
    )  # fmt: skip
    share = f"{100 * args.supervised:g} % supervised"
    gpus = f"one {args.gpu}" if args.head_gpu is None else f"one {args.head_gpu}, its target on one {args.gpu}"
    print(f"PREDICTED: a head for {args.shape} on {gpus}, a document of {args.tokens:,} tokens, {share}")
    _print_owners(plan.bytes_by_owner)
    in_turn = ", target and head in turn" if args.head_gpu is None else ""
    print(f"  at once {readable(plan.peak)} of {readable(plan.free)}{in_turn}")
    if args.head_gpu is not None:
        print(f"on the head's {args.head_gpu}")
        _print_owners(plan.head_bytes_by_owner)
        print(f"  together {readable(sum(plan.head_bytes_by_owner.values()))} of {readable(plan.head_free)}")
    passes = f"passes of {plan.train.rows_of_pass:,} rows, tiles of {plan.train.rows_of_tile:,}"
    print(f"{passes}: nothing of a pass is computed twice")
    print(f"longest document that fits, in the smallest passes: {plan.longest:,} tokens")
    parts = ", ".join(f"{part} {value / args.tokens / 1e9:.2f}" for part, value in plan.flops.items())
    print(f"GFLOP a token: {parts}")
    print(f"a step: {plan.seconds:.2f} s, {args.tokens / plan.seconds:,.0f} tokens/s")
    if not plan.fits:
        advice = f"give --tokens {plan.longest}" if plan.longest else "give larger GPUs, or the head one of its own"
        raise UserError(f"too little memory: {advice}")
    return 0


def _print_owners(owners: Mapping[str, int]) -> None:
    from eyas.base.units import readable

    width = max(map(len, owners))
    for owner, size in owners.items():
        print(f"  {owner:<{width}}  {readable(size):>10}")


def _plan_file(args: argparse.Namespace) -> int:
    from eyas.base.units import readable
    from eyas.model.devices import available_bytes
    from eyas.train.loop.planning import make_plan
    from eyas.train.loop.prepared import prepare_run
    from eyas.train.records.progress import duration
    from eyas.train.settings.reading import read_settings
    from eyas.train.states.memory import at_once

    settings = read_settings(args.file, args.overrides)
    prepared = prepare_run(settings)
    plan = make_plan(prepared)
    too_large = []
    for device, owners in plan.bytes_by_device.items():
        free, total, width = available_bytes(device), at_once(owners, device), max(map(len, owners))
        print(f"memory of {device}, documents of up to {settings.data.context:,} tokens")
        _print_owners(owners)
        print(f"  {'at once':<{width}}  {readable(total):>10}  of {readable(free)} free")
        too_large += [device] if total > free else []
    everything = ", all that the target can take" if plan.longest == prepared.found.config.max_context else ""
    print(f"passes of {plan.train.rows_of_pass:,} rows, tiles of {plan.train.rows_of_tile:,}")
    print(f"longest context that fits: {plan.longest:,} tokens{everything}")
    print(
        f"{plan.num_documents:,} documents, {plan.num_tokens:,} tokens, {plan.num_taught:,} of them taught; "
        f"{plan.num_steps:,} steps of {plan.tokens_per_step:,.0f} tokens, batches {100 * plan.filled:.1f} % full"
    )
    print(
        f"time: about {duration(plan.seconds)} ({plan.flops:.3g} FLOP; products measured here at "
        f"{plan.flops_per_second / 1e12:.3g} TFLOP/s, of which {100 * plan.utilisation:.0f} % are assumed)"
    )
    if too_large:
        advice = f"data.context={plan.longest}" if plan.longest >= MIN_CONTEXT else "smaller batches"
        where = " and ".join(map(str, too_large))
        raise UserError(f"too little memory of {where}: give {advice}, a smaller head or a larger device")
    return 0

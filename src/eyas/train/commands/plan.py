"""`eyas train plan`: memory by owner, the longest context that fits and the time of a run; allocates nothing."""

from __future__ import annotations

import argparse
from pathlib import Path

from eyas.base.errors import UserError

__all__ = ["add_arguments", "run"]

MIN_CONTEXT = 16  # that data.context can have


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="settings file; `eyas train init` writes one")
    parser.add_argument(
        "overrides", nargs="*", metavar="SECTION.KEY=VALUE", help="settings in place of those of the file"
    )


def run(args: argparse.Namespace) -> int:
    from eyas.base.units import readable
    from eyas.model.devices import available_bytes
    from eyas.train.loop.planning import make_plan
    from eyas.train.loop.prepared import prepare_run
    from eyas.train.records.progress import duration
    from eyas.train.settings.reading import read_settings

    settings = read_settings(args.file, args.overrides)
    prepared = prepare_run(settings)
    plan = make_plan(prepared)
    free = available_bytes(prepared.found.device)
    width = max(map(len, plan.bytes_by_owner))
    print(f"memory of {prepared.found.device}, documents of up to {settings.data.context:,} tokens")
    for owner, size in plan.bytes_by_owner.items():
        print(f"  {owner:<{width}}  {readable(size):>10}")
    total = sum(plan.bytes_by_owner.values())
    print(f"  {'together':<{width}}  {readable(total):>10}  of {readable(free)} free")
    everything = ", all that the target can take" if plan.longest == prepared.found.config.max_context else ""
    print(f"longest context that fits: {plan.longest:,} tokens{everything}")
    print(
        f"{plan.num_documents:,} documents, {plan.num_tokens:,} tokens, {plan.num_taught:,} of them taught; "
        f"{plan.num_steps:,} steps of {plan.tokens_per_step:,.0f} tokens"
    )
    print(
        f"time: about {duration(plan.seconds)} ({plan.flops:.3g} FLOP; products measured here at "
        f"{plan.flops_per_second / 1e12:.3g} TFLOP/s, of which {100 * plan.utilisation:.0f} % are assumed)"
    )
    if total > free:
        advice = f"data.context={plan.longest}" if plan.longest >= MIN_CONTEXT else "smaller batches"
        raise UserError(f"too little memory: give {advice}, a smaller head or a larger device")
    return 0

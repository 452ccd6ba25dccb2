"""`eyas router plan`: says what would be unloaded for what, by what is known of each backend. Does nothing."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", type=Path, help="YAML file of a router (docs/router.md)")


def run(args: argparse.Namespace) -> int:
    """Print a table for each pool. A backend whose footprint was learnt has that one, else what is declared."""
    from eyas.base.settings.home import home
    from eyas.base.units import readable
    from eyas.router.commands.tables import table
    from eyas.router.memory.footprints import Footprints, key_of
    from eyas.router.memory.rehearsal import rehearse
    from eyas.router.settings.reader import examine
    from eyas.router.settings.rest import at_rest

    found = examine(args.config, os.environ)
    for problem in found.problems:
        print(f"eyas: error: {args.config}: {problem}", file=sys.stderr)
    if found.problems:
        return 1
    if not found.settings.pools:
        print(f"{args.config} has no pools: every plan is started with the router, and nothing is unloaded")
        return 0
    learnt = Footprints(home(os.environ))
    for rest in at_rest(found.settings, found.plans):
        members = {one.name: one for one in found.settings.backends if one.pool == rest.pool.name and one.plan}
        footprints = learnt.find({name: key_of(found.plans[name]) for name in members}, members)
        total, fixed = rest.total, sum(num for owner, num in rest.rows if owner not in members)
        if total is None:
            print(f"{rest.pool.name}: its size is known to its driver only; give one: size: 80GiB")
            continue
        print(f"{rest.pool.name}: {readable(total)}, critical at {readable(rest.limit)}, at rest {rest}\n")
        rows = []
        for turn in rehearse(list(members.values()), footprints, found.settings.memory, total, fixed):
            one = footprints[turn.backend]
            known = "learnt" if one.is_learnt else "declared"
            beside = ", ".join(turn.beside) or "nothing"
            rows.append((turn.backend, f"{readable(one.steady)} {known}", readable(one.peak), beside, str(turn)))
        print(table(("load of", "takes", "peak", "beside", "then"), rows) + "\n")
    return 0

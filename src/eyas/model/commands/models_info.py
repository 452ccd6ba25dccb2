"""`eyas models info`: describes a checkpoint without loading its weights.

torch is imported by `run` alone, so that help stays instant.
"""

from __future__ import annotations

import argparse
import json

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="PATH|ID", help="folder, or hub id with an optional @revision")
    parser.add_argument("--target", metavar="PATH|ID", help="for a head: its model, to check that they fit")
    parser.add_argument(
        "--tap-convention",
        choices=("auto", "boundary", "output"),
        default="auto",
        help="for a head: how to read its layer ids (default: auto)",
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")


def run(args: argparse.Namespace) -> int:
    from eyas.model.checkpoints.hub import resolve_headers
    from eyas.model.commands.describe import describe, lines

    target = resolve_headers(args.target) if args.target else None
    description = describe(*resolve_headers(args.model), target=target, tap_convention=args.tap_convention)
    for line in lines(description):
        print(line)
    if args.json:
        print(json.dumps(description))
    return 0

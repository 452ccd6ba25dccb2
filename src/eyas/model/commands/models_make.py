"""`eyas models make`: writes a checkpoint with random weights, and a draft head for it.

torch is imported by `run` alone, so that help stays instant.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from eyas.base.bundled import OWN_HEAD
from eyas.base.errors import UserError

__all__ = ["add_arguments", "run"]

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "shape", nargs="+", metavar="SHAPE", help="gpt-oss-20b, gpt-oss-120b or tiny, then field=value changes"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="new folder for the model")
    parser.add_argument(
        "--draft",
        default="specforge",
        metavar="KIND",
        help=f"kind of EAGLE-3 head to write to DIR/{OWN_HEAD}, or 'none' (default: specforge)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the random weights (default: 0)")
    parser.add_argument("--shard-size", default="5G", metavar="SIZE", help="largest file, such as 500M (default: 5G)")
    parser.add_argument("--names", choices=("hf", "original"), default="hf", help="style of tensor names (default: hf)")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")


def run(args: argparse.Namespace) -> int:
    from eyas.model.making.make import make_head, make_target
    from eyas.model.making.presets import head_of_kind, parse_shape

    shard_bytes = _size(args.shard_size)
    target = parse_shape(args.shape)
    head = None if args.draft == "none" else head_of_kind(args.draft, target)  # a wrong kind fails before any work
    if args.seed < 0:
        raise UserError(f"--seed is {args.seed}; give 0 or more")
    made = make_target(
        target, args.out, seed=args.seed, shard_bytes=shard_bytes, style=args.names, progress=_show_progress
    )
    print(f"made the model in {made}")
    if head is not None:
        config, style = head
        folder = make_head(config, made / OWN_HEAD, target=target, seed=args.seed, style=style, shard_bytes=shard_bytes)
        print(f"made its head in {folder}")
    if args.json:
        print(json.dumps({"model": str(made), "head": str(folder) if head else None, "seed": args.seed}))
    return 0


def _size(text: str) -> int:
    """Return the bytes of `5G`, `500MB` or `1000000`; decimal units, as disks count."""
    match = re.fullmatch(r"(\d+)\s*([KMG]?)B?", text.upper())
    if not match or int(match[1]) == 0:
        raise UserError(f"--shard-size is {text!r}; give a size such as 500M or 5G")
    return int(match[1]) * _UNITS[match[2]]


def _show_progress(done: int, total: int) -> None:
    """Show one line that overwrites itself, on a terminal only."""
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r{done / 1e9:8.2f} of {total / 1e9:.2f} GB", end=end, file=sys.stderr, flush=True)

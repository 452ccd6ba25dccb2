"""`eyas train capture`: writes the target's hidden states of a run's chats into a folder."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="settings file; `eyas train init` writes one")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write; one that was interrupted goes on")
    parser.add_argument(
        "overrides", nargs="*", metavar="SECTION.KEY=VALUE", help="settings in place of those of the file"
    )
    parser.add_argument(
        "--labels", action="store_true", help="keep the most likely tokens alone, which suffices for the loss 'hard'"
    )


def run(args: argparse.Namespace) -> int:
    from eyas.train.loop.parts import open_source
    from eyas.train.loop.prepared import prepare_run
    from eyas.train.settings.reading import read_settings
    from eyas.train.states.folder import capture

    prepared = prepare_run(read_settings(args.file, [*args.overrides, "states.folder=null", "states.cache=0"]))
    source, is_terminal = open_source(prepared), sys.stderr.isatty()

    def show(done: int, total: int) -> None:
        if is_terminal:
            print(f"\r{done:,} of {total:,} tokens\033[K", end="", file=sys.stderr, flush=True)

    documents = [*prepared.training, *prepared.held_out]
    count = capture(source, documents, args.out, labels_only=args.labels, progress=show)
    if is_terminal:
        print("\r\033[K", end="", file=sys.stderr)
    print(f"{count} documents captured, {len(documents) - count} were there; train with states.folder={args.out}")
    return 0

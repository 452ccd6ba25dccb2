"""`eyas claude undo`: takes out of a settings.json what `eyas claude write` put there, and nothing else."""

from __future__ import annotations

import argparse

from eyas.claude.commands.options import add_file, settings_file

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser)


def run(args: argparse.Namespace) -> int:
    file = settings_file(args)
    kept = file.undo()
    for name in kept:
        print(f"{name} was changed since and stays as it is")
    print(f"undone in {file.path}")
    return 0

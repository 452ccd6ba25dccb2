"""`eyas train init`: writes a settings file with every key, its meaning and its default."""

from __future__ import annotations

import argparse
from pathlib import Path

from eyas.base.errors import UserError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="file to write; printed if not given")
    parser.add_argument("--target", default="demo", metavar="MODEL", help="model that the head drafts for")
    parser.add_argument("--chats", nargs="*", default=[], metavar="FILE", help="JSONL files of chats")


def run(args: argparse.Namespace) -> int:
    from eyas.train.settings.reading import parse_settings, template

    settings = parse_settings({"target": args.target, "data": {"chats": args.chats}}, source="eyas train init")
    if args.file is None:
        print(template(settings), end="")
        return 0
    try:
        with args.file.open("x", encoding="utf-8") as file:
            file.write(template(settings))
    except FileExistsError as error:
        raise UserError(f"{args.file} exists; name another file, or delete it") from error
    except OSError as error:
        raise UserError(f"cannot write {args.file}: {error.strerror}") from error
    print(f"wrote {args.file}; next: eyas train plan {args.file}")
    return 0

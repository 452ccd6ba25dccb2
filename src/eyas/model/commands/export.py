"""`eyas export gguf`: writes a gpt-oss checkpoint and its draft head as GGUF files for llama.cpp.

torch and gguf are imported by `run` alone, so that help stays instant.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from eyas.base.bundled import OWN_HEAD
from eyas.base.errors import UserError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="PATH|ID", help="folder, hub id with an optional @revision, or 'demo'")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR",
        help="folder for model.gguf and head.gguf; files of these names are replaced",
    )  # fmt: skip
    parser.add_argument(
        "--draft", default="auto", metavar="HEAD",
        help=f"EAGLE-3 head (folder or hub id), 'none', or 'auto': the head in the model's {OWN_HEAD}, else none",
    )  # fmt: skip
    parser.add_argument(
        "--weights", choices=("stored", "bf16", "f32"), default="stored",
        help="'stored' keeps the checkpoint's numbers, experts packed as MXFP4; the others unpack them",
    )  # fmt: skip
    parser.add_argument(
        "--tap-convention",
        choices=("auto", "boundary", "output"),
        default="auto",
        help="how to read the head's layer ids (default: auto)",
    )
    parser.add_argument(
        "--head-only",
        action="store_true",
        help="write head.gguf alone; only the JSON files of a model on the hub are downloaded",
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")


def run(args: argparse.Namespace) -> int:
    from eyas.model.checkpoints.hub import resolve, resolve_headers

    try:
        from eyas.model.gguf.export import HEAD_FILE, MODEL_FILE, export_head, export_target
    except ModuleNotFoundError as error:
        if error.name != "gguf":
            raise
        raise UserError("this needs the gguf package; install it with: pip install 'eyas[gguf]'") from error

    folder, stored = resolve_headers(args.model) if args.head_only else (resolve(args.model), None)
    own = folder / OWN_HEAD
    draft = (str(own) if own.is_dir() else "none") if args.draft == "auto" else args.draft
    if draft == "none" and args.head_only:
        raise UserError(f"{args.model} has no head of its own; name one with --draft")
    files: list[Path] = []
    notes: list[str] = []
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        if draft != "none":  # the smaller one first: its errors come before the long work
            files.append(args.out / HEAD_FILE)
            export_head(
                resolve(draft), files[-1], target_folder=folder, target_stored=stored, weights=args.weights,
                tap_convention=args.tap_convention, name=f"{args.model} EAGLE-3", progress=_show_progress,
            )  # fmt: skip
        if not args.head_only:
            files.append(args.out / MODEL_FILE)
            notes = export_target(folder, files[-1], weights=args.weights, name=args.model, progress=_show_progress)
    except OSError as error:
        raise UserError(f"{args.out} cannot be written ({error.strerror}); choose another --out") from error
    for note in notes:
        print(f"note: {note}")
    for file in files:
        print(f"wrote {file} ({file.stat().st_size / 1e9:.2f} GB)")
    if args.json:
        print(json.dumps({"files": [str(file) for file in files], "notes": notes}))
    return 0


def _show_progress(done: int, total: int) -> None:
    """Show one line that overwrites itself, on a terminal only."""
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r{done / 1e9:8.2f} of {total / 1e9:.2f} GB", end=end, file=sys.stderr, flush=True)

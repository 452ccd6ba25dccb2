"""`eyas bench report`: a run that was kept, as Markdown (printed without flags), JSON, HTML or a preset table."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import msgspec

from eyas.base.errors import UserError
from eyas.bench.endpoint.figures import Slo
from eyas.bench.endpoint.flags import slo_from
from eyas.bench.endpoint.journal import Run
from eyas.bench.endpoint.reports.markdown import markdown
from eyas.bench.endpoint.reports.page import page
from eyas.bench.endpoint.reports.presets import PRESETS, preset_markdown
from eyas.bench.endpoint.reports.run_file import load_lossless, load_run, run_json, schema, warn_if_cut_short
from eyas.bench.endpoint.reports.summary import summary
from eyas.bench.endpoint.reports.table import figures_json, lossless_lines
from eyas.bench.report import print_json

__all__ = ["add_arguments", "add_report_flags", "run", "write_reports"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="file of a run, or its JSON report")
    add_report_flags(parser)
    parser.add_argument(
        "--lossless", type=Path, metavar="FILE",
        help="add a comparison of answers, which 'eyas bench endpoint --lossless --out' writes",
    )  # fmt: skip
    parser.add_argument("--slo", metavar="NAME=TIME,...", help="limits of a good request, as of 'eyas bench endpoint'")
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of --json and end")


def add_report_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that 'eyas bench endpoint' has as well."""
    add = parser.add_argument
    add("--html", type=Path, metavar="FILE", help="write one HTML file with pictures, all figures and the run itself")
    add("--markdown", type=Path, metavar="FILE", help="write the report as Markdown")
    add("--json", type=Path, metavar="FILE", help="write one JSON document with every request and all figures")
    add(
        "--table",
        choices=tuple(PRESETS),
        help="print a table of a published form: 's3', throughput and speed-up by concurrency from 8 to 1; 's0', "
        "decoding alone and ten at once, first token at 8K, memory",
    )
    add("--base", metavar="ARM", help="arm that the others are compared with (default: the first one)")


def run(args: argparse.Namespace) -> int:
    if args.schema:
        print_json(schema())
        return 0
    if args.file is None:
        raise UserError("name the file of a run, which 'eyas bench endpoint --out' writes")
    found = load_run(args.file)
    warn_if_cut_short(args.file)
    lossless = () if args.lossless is None else lossless_lines(load_lossless(args.lossless))
    if not write_reports(found, args, slo_from(args), lossless):
        shown = summary(found, base=args.base, slo=slo_from(args))
        print(markdown(shown, lossless))
        stamp = msgspec.to_builtins(shown.stamp)
        print_json({"bench": "report", "file": str(args.file), "stamp": stamp, **figures_json(shown)})
    return 0


def write_reports(found: Run, args: argparse.Namespace, slo: Slo | None, lossless: Sequence[str] = ()) -> bool:
    """Write what the flags of `add_report_flags` ask for; return whether they do. Raises UserError for a full disk."""
    if not (args.table or args.html or args.json or args.markdown):
        return False
    shown = summary(found, base=args.base, slo=slo)
    if args.table:
        print(preset_markdown(shown, args.table))
    if args.html:
        _write(args.html, page(found, shown, lossless).encode("utf-8"))
    if args.json:
        _write(args.json, run_json(found, figures_json(shown)))
    if args.markdown:
        _write(args.markdown, markdown(shown, lossless).encode("utf-8"))
    return True


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; name another file") from error
    size = f"{len(data) / 1e6:,.1f} MB" if len(data) >= 1e6 else f"{len(data) / 1e3:,.0f} kB"
    print(f"wrote {path} ({size})")

"""`eyas models list`: lists the models in this machine's Hugging Face cache, and what could be deleted."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time

from eyas.base.errors import UserError
from eyas.base.settings.home import home
from eyas.base.units import readable
from eyas.fleet.commands.terminal import plain
from eyas.fleet.models.cache import Entry, entries, hub_folder
from eyas.fleet.running.state import Row, Store

__all__ = ["add_arguments", "run"]

HEADERS = ("REPOSITORY", "SIZE", "REVISION", "LAST USED", "USED BY")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")


def run(args: argparse.Namespace) -> int:
    hub = hub_folder(os.environ)
    found = entries(hub, _deployments())
    if args.json:
        for entry in found:
            print(json.dumps(_plain(entry)))
        return 0
    if not found:
        print(f"no models in {hub}")
        return 0
    rows = [HEADERS, *(_row(entry) for entry in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADERS))]
    for row in rows:
        print("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip())
    total, free = sum(entry.disk_bytes for entry in found), shutil.disk_usage(hub).free
    print(f"{readable(total)} in {hub}, {readable(free)} free")
    partial = sum(entry.partial_bytes for entry in found)
    if partial:
        print(f"{readable(partial)} of it are parts of downloads that never ended; eyas up resumes its own")
    return 0


def _deployments() -> list[Row]:
    try:
        return Store(home(os.environ)).rows()
    except UserError:  # a cache is there all the same
        return []


def _row(entry: Entry) -> tuple[str, ...]:
    users = [*entry.used_by, *(f"{name} (stopped)" for name in entry.known_to)]
    when = time.strftime("%Y-%m-%d", time.localtime(entry.last_used))
    words = (entry.repo, readable(entry.disk_bytes), ", ".join(entry.revisions), when, ", ".join(users))
    return tuple(plain(word) or "-" for word in words)


def _plain(entry: Entry) -> dict[str, object]:
    return {
        "repo": entry.repo,
        "disk_bytes": entry.disk_bytes,
        "partial_bytes": entry.partial_bytes,
        "revisions": entry.revisions,
        "last_used": entry.last_used,
        "used_by": entry.used_by,
        "known_to": entry.known_to,
        "folder": str(entry.folder),
    }

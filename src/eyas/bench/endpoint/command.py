"""`eyas bench endpoint`: load on any OpenAI-compatible endpoint, and what its answers take.

The client counts no tokens and computes nothing: it sends requests by a schedule and notes when what came.
"""

from __future__ import annotations

import argparse
import platform
import secrets
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

import eyas
from eyas.base.commit import commit
from eyas.base.errors import UserError
from eyas.bench.endpoint.acceptance import acceptance_lines, side_of
from eyas.bench.endpoint.figures import DEFINITIONS
from eyas.bench.endpoint.flags import add_load_flags, arms_from, settings_from, slo_from
from eyas.bench.endpoint.journal import Header, Journal, Run
from eyas.bench.endpoint.load.session import Settings, Side, run_to_end, steps_of
from eyas.bench.endpoint.load.window import INTERRUPTED
from eyas.bench.endpoint.lossless.command import add_lossless_flags, run_lossless
from eyas.bench.endpoint.progress import Shown
from eyas.bench.endpoint.prompts.prompt import Prompt
from eyas.bench.endpoint.prompts.sources import find_prompts
from eyas.bench.endpoint.records import Stamp, Window
from eyas.bench.endpoint.reports.report_command import add_report_flags, write_reports
from eyas.bench.endpoint.show import rows_json, summary_lines
from eyas.bench.endpoint.target import identify
from eyas.bench.endpoint.verdict import verdicts_of
from eyas.bench.machine import machine
from eyas.bench.report import print_json, provenance

__all__ = ["add_arguments", "run", "stamp_of"]

RANDOM_IDS = "SIMULATED: prompts of random token ids, on which acceptance is not that of text"
SECRETS = ("--api-key",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_load_flags(parser)
    add = parser.add_argument
    add("--out", type=Path, metavar="FILE", help="file that gets each window at once, as JSON lines")
    add("--resume", action="store_true", help="go on with the run in --out: only what it lacks is measured")
    add_lossless_flags(parser)
    add_report_flags(parser)


def run(args: argparse.Namespace) -> int:
    settings, slo = settings_from(args), slo_from(args)
    prompts = find_prompts(settings.prompts, seed=settings.seed)
    sides = [side_of(arm, identify(arm)) for arm in arms_from(args)]
    if args.lossless is not None:
        return run_lossless(args, sides, prompts, stamp_of(sides, prompts))
    journal = Journal(args.out)
    windows: list[Window] = []

    def keep(window: Window) -> None:
        windows.append(window)
        journal.add(window)

    try:
        begun = _begin(journal, sides, settings, prompts, is_resumed=args.resume)
        windows += begun.windows
        lines, origin = provenance(machine(), libraries=("aiohttp", "uvloop"))
        print("\n".join(["eyas bench endpoint", *lines, *_method(sides, settings, prompts, begun)]), flush=True)
        with Shown() as watcher:
            run_id = begun.header.run
            ended = run_to_end(sides, prompts, settings, run=run_id, keep=keep, watcher=watcher, done=begun.windows)
    except UserError:
        if windows:
            print("\n".join(["", *summary_lines(windows, slo)]), flush=True)
        raise
    finally:
        journal.close()
    verdicts = verdicts_of(windows, [side.arm.name for side in sides])
    judged = [*acceptance_lines(windows), *(line for one in verdicts for line in one.lines())]
    print("\n".join(["", *summary_lines(windows, slo), *([""] if judged else []), *judged, "", DEFINITIONS, ""]))
    write_reports(Run(header=begun.header, windows=tuple(windows)), args, slo)
    header = msgspec.to_builtins(begun.header)
    figures = rows_json(windows, slo)
    said = {"figures": figures, "verdicts": [one.json() for one in verdicts], "ended": ended or "complete"}
    print_json({"bench": "endpoint", **origin, **header, **said})
    return _exit_code(ended, args.out)


def stamp_of(sides: Sequence[Side], prompts: Sequence[Prompt]) -> Stamp:
    """Return where the figures of a run with these sides come from."""
    here = machine()
    client = f"{here.device}, {here.num_cores} cores, Python {platform.python_version()}"
    simulated = [side.endpoint.simulated for side in sides]
    if any(prompt.token_ids for prompt in prompts):
        simulated.append(RANDOM_IDS)
    return Stamp(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=shlex.join(_without_secrets(["eyas", *sys.argv[1:]])),
        eyas=eyas.__version__,
        commit=commit() or "",
        client=client,
        endpoint={side.arm.name: side.endpoint.text() for side in sides},
        hardware=here.device if all(side.endpoint.is_here for side in sides) else "",
        simulated="; ".join(dict.fromkeys(filter(None, simulated))),
    )


def _begin(
    journal: Journal, sides: Sequence[Side], settings: Settings, prompts: Sequence[Prompt], *, is_resumed: bool
) -> Run:
    """Begin a run, or return what its file has of it. Raises UserError for a file of a run set up differently."""
    if not is_resumed:
        header = Header(stamp=stamp_of(sides, prompts), settings=settings.shown(), run=secrets.token_hex(8))
        journal.begin(header)
        return Run(header=header, windows=())
    run = journal.resume()
    before, now = run.header.settings, settings.shown()
    if changed := sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name)):
        raise UserError(
            f"{journal.path} was measured with other settings ({', '.join(changed)}); give the same, or another file"
        )
    if run.header.stamp.endpoint.keys() != {side.arm.name for side in sides}:
        raise UserError(
            f"{journal.path} has the arms {', '.join(run.header.stamp.endpoint)}; give the same, or another file"
        )
    return run


def _method(sides: Sequence[Side], settings: Settings, prompts: Sequence[Prompt], begun: Run) -> list[str]:
    limits = settings.limits
    length = f"{limits.num_requests} requests" if limits.num_requests is not None else f"{limits.duration_s:g} s"
    warm_up = f"after at most {limits.warm_up_s:g} s of warm-up" if limits.warm_up_s else "without warm-up"
    loads = ", ".join(load.text() for load in settings.loads)
    first = settings.loads[0]
    kind = "to their natural end" if first.mode == "natural" else "of fixed length, past their end (ignore_eos)"
    left = len(steps_of(settings, [side.arm.name for side in sides], begun.windows))
    stamp = begun.header.stamp
    return [
        *(
            f"{'arm' if place == 0 else '':<10}{side.arm.name}: {side.endpoint.text()}"
            for place, side in enumerate(sides)
        ),
        f"load      {loads}; {length} a window, {warm_up}; turns: {settings.turns}",
        f"answers   {kind}, at most {first.max_tokens} tokens; {len(prompts)} prompts of {', '.join(settings.prompts)},"
        f" each begins with a salt" + (f" after {settings.shared_words} shared words" if settings.shared_words else ""),
        *([stamp.simulated] if stamp.simulated else []),
        *([f"resumed   {len(begun.windows)} windows are there"] if begun.windows else []),
        f"windows   {left} to measure",
    ]


def _exit_code(ended: str, out: Path | None) -> int:
    if not ended:
        return 0
    kept = f"; what was measured is in {out}, go on with --resume" if out is not None else ""
    if ended == INTERRUPTED:
        print(f"interrupted{kept}", file=sys.stderr)
        return 130
    raise UserError(f"{ended}{kept}")


def _without_secrets(words: Sequence[str]) -> list[str]:
    """Return the words of a command without the keys that it holds."""
    shown: list[str] = []
    for word in words:
        name, is_joined, _ = word.partition("=")
        if shown and shown[-1] in SECRETS:
            shown.append("***")
        else:
            shown.append(f"{name}=***" if is_joined and name in SECRETS else word)
    return shown

"""`eyas tune`: measures engines and draft lengths on this machine, advises, and leaves a file that plans read."""

from __future__ import annotations

import argparse
import os
import re
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple, get_args

from msgspec.structs import replace

import eyas
from eyas.base.bundled import random_shape
from eyas.base.commit import commit
from eyas.base.errors import UserError
from eyas.base.serving.engines import EngineName
from eyas.base.settings.config import argument
from eyas.base.settings.home import home
from eyas.bench.endpoint.journal import Header
from eyas.bench.endpoint.records import Stamp
from eyas.bench.machine import machine as client_machine
from eyas.bench.report import listed, positive_int
from eyas.fleet.commands.plan import plan_for
from eyas.fleet.commands.signals import sigterm_like_ctrl_c
from eyas.fleet.machines.machine import Machine
from eyas.fleet.machines.measurements import file_of, identity, weights_of
from eyas.fleet.machines.node import LocalNode
from eyas.fleet.machines.probe import look
from eyas.recipes.knowledge.folders import model_of_folder
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.planning.ask import Ask
from eyas.recipes.planning.screen import screen
from eyas.recipes.records import Model
from eyas.tune.arms import CONCURRENCIES, CONTEXTS, SLACK, main_cell, sweep_cells
from eyas.tune.session import Session, Setup

__all__ = ["add_arguments", "run"]

SIMULATED = "SIMULATED: random weights; speeds are real, acceptance is set"
SMALL_BYTES = 1 << 30
BUSY = 0.5  # load average by core, above which figures are of a shared machine
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


class Usual(NamedTuple):
    """Defaults by the size of a model: small ones run on a CPU, where a long answer takes long."""

    budget_s: float
    max_tokens: int


SMALL, LARGE = Usual(budget_s=300.0, max_tokens=64), Usual(budget_s=1200.0, max_tokens=256)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="a model's name, hub id or folder, or random:SHAPE (random:gpt-oss-120b)")
    add("--on", choices=("here",), default="here", help="machine to measure: this one")
    add(
        "--engine", action="append", type=argument(_engine), metavar="NAME",
        help="engine to measure, may be given several times (default: eyas, and llama.cpp where llama-server is found)",
    )  # fmt: skip
    add(
        "--budget", type=_seconds, metavar="TIME",
        help="time for all of it but downloads: 20m, 90s, 1h (default: 20m, 5m for a model below a GiB)",
    )  # fmt: skip
    add("--resume", action="store_true", help="go on with the last sweep of this model: only what it lacks is measured")
    add(
        "--context", type=listed(positive_int), default=CONTEXTS, metavar="LIST",
        help="tokens of the prompts, as far as the model's context holds them (default: 128,2k,8k,32k)",
    )  # fmt: skip
    add(
        "--concurrency", type=listed(positive_int), default=CONCURRENCIES, metavar="LIST",
        help="conversations at once (default: 1,4,8)",
    )  # fmt: skip
    add(
        "--max-tokens", type=int, metavar="N",
        help="tokens of the longest answer (default: 256, 64 for a model below a GiB)",
    )  # fmt: skip
    add("--draft", metavar="HEAD", help="draft head: name, hub id or folder (default: what suits best)")
    add("--binary", metavar="PATH", help="program of the engine that --engine names, if it is not on the path")
    add(
        "--simulate-acceptance", metavar="RATE",
        help="synthetic acceptance of random weights: 0.7 a draft, or a length such as 2.6",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    began, folder, found = time.monotonic(), home(os.environ), look(LocalNode())
    setup = _setup(args, found, folder)
    if (here := client_machine()).load > BUSY * here.num_cores:
        _say(f"warning   other work takes this machine's time (load {here.load:.1f} on {here.num_cores} cores)")
    with sigterm_like_ctrl_c():
        session = Session(setup, began=began, clock=time.monotonic, say=_say)
        try:
            session.run()
        except KeyboardInterrupt:
            print("\ninterrupted; what was measured is kept, go on with --resume", file=sys.stderr)
            session.save()
            return 130
    print("\n".join(["", *session.report()]))
    ask = replace(setup.ask, concurrency=main_cell(setup.cells).concurrency)
    print(f"\n{screen(plan_for(ask, found, session.save()))}")
    session.print_json()
    return 0


def _setup(args: argparse.Namespace, found: Machine, folder: Path) -> Setup:
    """Settle what is measured. Raises UserError."""
    if args.binary is not None and len(args.engine or ()) != 1:
        raise UserError("--binary belongs to one engine; name it with --engine")
    if args.max_tokens is not None and args.max_tokens < 16:
        raise UserError(f"--max-tokens wants at least 16, got {args.max_tokens}")
    ask = Ask(
        model=args.model,
        head=args.draft,
        binary=args.binary,
        simulate_acceptance=args.simulate_acceptance,
    )
    model = _model(ask)
    usual = SMALL if model.total_bytes < SMALL_BYTES else LARGE
    max_tokens = args.max_tokens or usual.max_tokens
    room = model.native_context - max_tokens - SLACK
    cells = sweep_cells(ask, args.context, args.concurrency, room)
    return Setup(
        ask=ask,
        native_context=model.native_context,
        engines=tuple(args.engine or _engines(ask)),
        cells=cells,
        budget_s=args.budget or usual.budget_s,
        max_tokens=max_tokens,
        is_resumed=args.resume,
        home=folder,
        measurements=file_of(folder, ask),
        header=_header(ask, found, max_tokens),
        plan=partial(plan_for, machine=found),
    )


def _header(ask: Ask, found: Machine, max_tokens: int) -> Header:
    here = client_machine()
    stamp = Stamp(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=shlex.join(["eyas", *sys.argv[1:]]),
        eyas=eyas.__version__,
        commit=commit() or "",
        client=f"{here.device}, {here.num_cores} cores, load {here.load:.1f} before",
        hardware=identity(found),
        simulated=SIMULATED if random_shape(ask.model) is not None else "",
    )
    same = {"machine": identity(found), "weights": weights_of(ask), "max_tokens": max_tokens, "draft": ask.head}
    same["eyas"] = eyas.__version__
    return Header(stamp=stamp, settings=same, run=secrets.token_hex(8))


def _model(ask: Ask) -> Model:
    shape, path = random_shape(ask.model), Path(ask.model).expanduser()
    if shape is None and path.is_dir():
        return model_of_folder(path, knowledge())
    return knowledge().model(shape or ask.model)


def _engines(ask: Ask) -> Iterator[EngineName]:
    """Yield the engines that are measured where none is named: ours, and native ones whose program is here."""
    for engine in knowledge().engines.values():
        is_here = engine.is_native and engine.name != "ollama" and shutil.which(engine.program) is not None
        if engine.name == "eyas" or (is_here and random_shape(ask.model) is None):
            yield next(name for name in get_args(EngineName) if name == engine.name)


def _say(text: str) -> None:
    print(text, flush=True)


def _engine(text: str) -> str:
    return knowledge().engine(text).name


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip().lower())
    if match is None or not (seconds := float(match[1]) * UNITS[match[2]]):
        raise argparse.ArgumentTypeError(f"wants a time such as 20m, 90s or 1h, got '{text}'")
    return seconds

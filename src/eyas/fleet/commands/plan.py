"""`eyas plan`: chooses engine, draft head and flags, says why and what is known to break, and writes start files."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import get_args

import msgspec
import yaml

from eyas.base.errors import UserError
from eyas.base.serving.engines import EngineName, Role
from eyas.base.settings.config import ENV_KEY, argument, human_int
from eyas.base.settings.home import home
from eyas.fleet.machines.images import image_settings
from eyas.fleet.machines.machine import Machine
from eyas.fleet.machines.measurements import measured_here
from eyas.fleet.machines.node import LocalNode
from eyas.fleet.machines.probe import box_of, cpu_box, look
from eyas.fleet.models.cache import cache_folder
from eyas.fleet.running.state import Store
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.plan import Measured, Plan
from eyas.recipes.planning.ask import USES, Ask
from eyas.recipes.planning.planner import make_plan
from eyas.recipes.planning.screen import screen
from eyas.recipes.planning.show import show

__all__ = ["add_arguments", "add_ask_arguments", "ask_of", "plan_for", "plan_of", "run"]

PAGE_CACHE = 0.7  # of the memory that could be had must be free without asking the page cache
ENGINES = "{" + ",".join(("auto", *get_args(EngineName))) + "}"
FORMATS = ("plan", "shell", "compose", "systemd", "sbatch")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_ask_arguments(parser)
    parser.add_argument("--emit", choices=FORMATS, help="write a plan for `eyas up`, or files to start by hand")
    parser.add_argument(
        "--out", metavar="DIR", help="folder that --emit writes to; only a plan goes to the current one without it"
    )
    parser.add_argument(
        "--no-measurements",
        action="store_true",
        help="plan by the model of speed alone, without what eyas tune measured",
    )
    parser.add_argument("--explain", action="store_true", help="show all: reasons, every warning, evidence, guides")
    parser.add_argument("--json", action="store_true", help="print the whole plan as JSON")


def add_ask_arguments(
    parser: argparse.ArgumentParser, *, model_help: str = "a model's name, hub id or folder: gpt-oss-120b, ..."
) -> None:
    """Add the flags that say what is wanted, shared with `eyas up`."""
    _add_model_arguments(parser, model_help)
    fastest = "engine to plan for (default: the one expected to be fastest)"
    parser.add_argument("--engine", type=argument(_engine), default="auto", metavar=ENGINES, help=fastest)
    parser.add_argument(
        "--engine-version", metavar="VERSION", help="version of the engine (default: that of the image)"
    )
    parser.add_argument("--image", metavar="IMAGE", help="container image instead of the table's")
    parser.add_argument("--native", action="store_true", help="run the engine as a process instead of a container")
    parser.add_argument(
        "--for", dest="purpose", default="chat", choices=tuple(USES), help="what the model is used for (default: chat)"
    )
    parser.add_argument(
        "--role",
        choices=get_args(Role),
        help="what it is served as: text, vision (chat about pictures) or embeddings (default: the model's usual one)",
    )
    parser.add_argument(
        "--context", type=argument(human_int), metavar="TOKENS", help="context of one conversation, e.g. 40k"
    )
    parser.add_argument("--concurrency", type=argument(human_int), metavar="N", help="conversations answered at once")
    parser.add_argument(
        "--spec",
        default="auto",
        choices=("auto", "eagle3", "draft-model", "none"),
        help="kind of speculation (default: what pays)",
    )
    parser.add_argument("--draft", metavar="HEAD", help="draft head: name, hub id or folder (default: what suits best)")
    parser.add_argument(
        "--draft-tokens", type=argument(human_int), metavar="N", help="tokens drafted per round (default: what pays)"
    )
    parser.add_argument(
        "--kv-dtype", default="auto", choices=("auto", "fp8"), help="data type of the KV cache (default: auto)"
    )
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        help="most that the engine may take of one GPU, or of a box of unified memory: 90GiB, 75%% (default: all)",
    )
    parser.add_argument("--tools", action="store_true", help="clients will call tools")
    parser.add_argument("--name", help="name of the deployment")
    parser.add_argument(
        "--node",
        action="append",
        default=[],
        metavar="USER@HOST[=ADDRESS,INTERFACE,...]",
        help="ssh destination and fast link of a node, once for each node; 'local' is this machine",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDR", help="address that the server listens on (default: 127.0.0.1)"
    )
    parser.add_argument("--port", type=argument(human_int), help="port of the server (default: the engine's own)")
    parser.add_argument(
        "--api-key",
        type=_variable,
        metavar="env:NAME",
        help="environment variable that holds the API key that clients must send",
    )
    parser.add_argument("--cache", metavar="DIR", help="Hugging Face cache (default: ~/.cache/huggingface)")
    parser.add_argument("--binary", metavar="PATH", help="program of a native engine that is not on the path")


def _add_model_arguments(parser: argparse.ArgumentParser, model_help: str) -> None:
    parser.add_argument("model", metavar="MODEL", help=model_help)
    parser.add_argument(
        "--on",
        default="here",
        metavar="BOX",
        help="hardware: spark, 2xspark, rtx-pro-6000, h100, 8xb200, ... or here (default)",
    )
    parser.add_argument(
        "--simulate-acceptance",
        metavar="RATE",
        help="synthetic acceptance of random weights (random:gpt-oss-120b): 0.7 a draft, or a length such as 2.6",
    )


def run(args: argparse.Namespace) -> int:
    if args.emit not in (None, "plan") and args.out is None:
        raise UserError(f"--emit {args.emit} writes several files; name a folder for them, e.g. --out start")
    plan = plan_of(ask_of(args), uses_measurements=not args.no_measurements)
    if args.emit:
        for path in write(plan, args.emit, Path(args.out or ".")):
            print(path)
    elif args.json:
        print(msgspec.json.encode(plan).decode())
    else:
        print(show(plan) if args.explain else screen(plan), end="")
    return 0


def ask_of(args: argparse.Namespace) -> Ask:
    """Return the flags as a question to the planner."""
    return Ask(
        model=args.model,
        on=args.on,
        engine=args.engine,
        version=args.engine_version,
        image=args.image,
        native=args.native,
        in_container=vars(args).get("emit") == "compose",
        role=args.role,
        purpose=args.purpose,
        context=args.context,
        concurrency=args.concurrency,
        spec=args.spec,
        head=args.draft,
        draft_tokens=args.draft_tokens,
        kv_dtype=args.kv_dtype,
        memory=args.memory,
        simulate_acceptance=args.simulate_acceptance,
        tools=args.tools,
        name=args.name,
        nodes=tuple(args.node),
        listen=args.host,
        port=args.port,
        api_key_env=args.api_key,
        cache=args.cache,
        binary=args.binary,
    )


def plan_of(ask: Ask, *, uses_measurements: bool = True) -> Plan:
    """Make the plan; probe this machine, and look up what ran and was measured on it, where the plan is for it."""
    if not ask.nodes:
        ask = _for_this_machine(ask)
    if ask.image and not ask.nodes:  # the box is this machine, or like it: what docker has here is what it would get
        ask = msgspec.structs.replace(ask, image_settings=image_settings(LocalNode(), ask.image))
    if ask.on != "here":
        return make_plan(ask)
    machine = look(LocalNode())
    return plan_for(ask, machine, _measured(ask, machine) if uses_measurements and not ask.nodes else ())


def plan_for(ask: Ask, machine: Machine, here: Sequence[Measured] = ()) -> Plan:
    """Make the plan for this machine, as it was found, by what was measured on it."""
    box = box_of(machine) if machine.gpus or machine.problems else cpu_box(machine)
    features = tuple(_features(machine))
    return make_plan(_for_this_machine(ask), box=box, features=features, ran_here=_ran_here(), here=here)


def _measured(ask: Ask, machine: Machine) -> tuple[Measured, ...]:
    """Return what was measured of the model on this machine. Raises UserError for a file that cannot be read."""
    try:
        folder = home(os.environ)
    except UserError:  # planning needs no memory
        return ()
    return measured_here(folder, ask, machine)


def _for_this_machine(ask: Ask) -> Ask:
    """Resolve a program's path from this folder, and use this machine's Hugging Face cache for a plan for it."""
    cache = ask.cache or (cache_folder(os.environ) if ask.on == "here" else None)
    binary = str(Path(ask.binary).absolute()) if ask.binary and "/" in ask.binary else ask.binary
    return msgspec.structs.replace(ask, cache=cache, binary=binary)


def _features(machine: Machine) -> Iterator[str]:
    """Yield the features (see `eyas.recipes.advice.facts`) that the machine has at the moment."""
    if machine.is_unified and machine.free_bytes < PAGE_CACHE * machine.available_bytes:
        yield "page-cache-full"
    if machine.swap_bytes == 0:
        yield "no-swap"
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        yield "offline"


def _ran_here() -> frozenset[tuple[str, str]]:
    """Return (model, engine) of the deployments that were ready on this machine."""
    try:
        store = Store(home(os.environ))
    except UserError:  # planning needs no memory
        return frozenset()
    try:
        plans = [row.plan for row in store.rows() if row.was_ready and row.plan.box.is_probed]
    finally:
        store.close()
    return frozenset((plan.choice.model, plan.choice.engine) for plan in plans if plan.choice.nodes[0].ssh is None)


def write(plan: Plan, form: str, folder: Path) -> list[Path]:
    """Write the files of one format to `folder`, creating it. Raises UserError if one cannot be written."""
    if form == "plan":
        plain = json.loads(msgspec.json.encode(plan))
        files = {f"{plan.choice.name}.yaml": yaml.safe_dump(plain, sort_keys=False, width=120, allow_unicode=True)}
    else:
        files = import_module(f"eyas.recipes.emit.{form}").render(plan)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            path = folder / name
            path.write_text(content, encoding="utf-8")
            path.chmod(0o755 if content.startswith("#!") else 0o644)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}") from None
    return [folder / name for name in files]


def _engine(text: str) -> str:
    """Return the name of the engine that is called `text`."""
    return "auto" if text == "auto" else knowledge().engine(text).name


def _variable(text: str) -> str:
    """Return NAME of `env:NAME`; whether it can name a variable is checked with the rest of the question."""
    if not text.startswith(ENV_KEY):
        raise argparse.ArgumentTypeError("wants env:NAME, the name of an environment variable, not the key itself")
    return text.removeprefix(ENV_KEY)

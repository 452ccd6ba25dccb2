"""Examines a machine for doctor: what it is, which models would fit on it and how, what is missing. Changes nothing.

The only text for people here is one line for each thing that is missing; `doctor.py` prints.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec

from msgspec import Struct

from eyas.base.errors import UserError
from eyas.base.units import readable
from eyas.fleet.machines import advice as setup
from eyas.fleet.machines.bandwidth import measure
from eyas.fleet.machines.listeners import LISTENERS, Listener, holder, read_listeners
from eyas.fleet.machines.machine import Machine
from eyas.fleet.machines.node import NodeRunner
from eyas.fleet.machines.probe import box_of, cpu_box, look
from eyas.fleet.machines.sections import ask
from eyas.fleet.preflight.findings import read_version
from eyas.recipes.estimate.memory import fitting
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.measured import drafts_of
from eyas.recipes.plan import Box, Drafts, Plan, Range
from eyas.recipes.planning.planner import Ask, make_plan

__all__ = ["Checkup", "Fit", "Missing", "examine"]

TOOLS_S = 60
TOOL = "command -v {0} >/dev/null && printf '%s %s\\n' {0} \"$(timeout 10 {0} --version 2>&1 | tr '\\n' ' ')\"\n"


class Fit(Struct, frozen=True, kw_only=True):
    """The best plan for one model here, one conversation at a time. Tokens per second are expected, not measured."""

    model: str
    engine: str
    image: str | None
    head: str | None
    draft_tokens: Drafts
    max_context: int  # of one conversation
    max_concurrency: int  # conversations of `context` tokens
    context: int
    tokens_per_second: Range
    download_bytes: int


class Missing(Struct, frozen=True, kw_only=True):
    """`message` says what is wrong or lacks, `next_step` what to do. `is_needed`: large models need it."""

    message: str
    next_step: str
    is_needed: bool = True


class Checkup(Struct, frozen=True, kw_only=True):
    machine: Machine
    box: Box | None  # None: its GPUs cannot be used as they are
    bandwidth: float | None  # bytes per second, measured now
    engines: dict[str, str]  # native engines that are installed: version
    fits: tuple[Fit, ...]
    too_large: tuple[str, ...]  # models
    missing: tuple[Missing, ...]


def examine(node: NodeRunner, *, is_measured: bool = False, environ: Mapping[str, str] | None = None) -> Checkup:
    """Look at `node`. `is_measured`: read GPU memory for a second. Raises NodeError: no Linux machine."""
    machine = look(node)
    environ = os.environ if environ is None else environ
    programs = {engine.program: engine.name for engine in knowledge().engines.values() if engine.program}
    sections = ask(node, LISTENERS + "section tools\n" + "".join(map(TOOL.format, programs)), timeout_s=TOOLS_S)
    tools = dict(line.split(" ", 1) for line in sections["tools"].splitlines())
    engines = {programs[name]: read_version(said) for name, said in tools.items()}
    bandwidth = measure(node) if is_measured and machine.gpus else None
    box, unusable = _box(machine, bandwidth)
    fits, too_large = _fits(box) if box is not None else ((), ())
    missing = (
        *unusable,
        *_problems(machine, environ),
        *_room(machine, fits),
        *_programs(fits, engines),
        *_ports(fits, read_listeners(sections["listeners"])),
    )
    return Checkup(
        machine=machine,
        box=box,
        bandwidth=bandwidth,
        engines=engines,
        fits=fits,
        too_large=too_large,
        missing=missing,
    )


def _box(machine: Machine, bandwidth: float | None) -> tuple[Box | None, tuple[Missing, ...]]:
    """Return the box that the machine is, or why nothing can be planned for it."""
    if not machine.gpus:
        return (None if machine.problems else cpu_box(machine)), ()
    try:
        return box_of(machine, bandwidth=bandwidth), ()
    except UserError as error:
        message, _, step = str(error).partition("; ")
        return None, (Missing(message=message, next_step=step),)


def _fits(box: Box) -> tuple[tuple[Fit, ...], tuple[str, ...]]:
    """Yield for each model worth serving its best plan here, or its name where it does not fit."""
    known = knowledge()
    drafts = {head.name for head in known.heads.values()}
    fits, too_large = [], []
    for name in known.models:
        if name in drafts or known.models[name].roles[0] != "text":
            continue
        try:
            fits.append(_fit(make_plan(Ask(model=name, on="here", concurrency=1), box=box)))
        except UserError:
            too_large.append(name)
    return tuple(fits), tuple(too_large)


def _fit(plan: Plan) -> Fit:
    known, choice = knowledge(), plan.choice
    head = known.head(choice.head) if choice.head is not None else None
    most = fitting(choice, plan.box, known.model(choice.model), head)
    return Fit(
        model=choice.model,
        engine=choice.engine,
        image=choice.image,
        head=choice.head,
        draft_tokens=drafts_of(choice),
        max_context=most.max_context,
        max_concurrency=most.max_concurrency,
        context=choice.context,
        tokens_per_second=plan.speed.tokens_per_second,
        download_bytes=sum(download.num_bytes for download in plan.emission.downloads),
    )


def _problems(machine: Machine, environ: Mapping[str, str]) -> Iterator[Missing]:
    for problem in machine.problems:
        message, _, step = problem.partition("; ")
        yield Missing(message=message, next_step=step)
    if not machine.gpus:
        if not machine.problems:
            step = "plan for a machine that has one: eyas plan gpt-oss-120b --on spark"
            yield Missing(message="no NVIDIA GPU: large models want one", next_step=step)
        return
    gpu = machine.gpus[0]
    lack = setup.driver(gpu.driver, gpu.compute_capability, gpu.name)
    if lack is not None:
        yield Missing(message=lack.message, next_step=lack.next_step)
    lack = setup.docker(machine, for_gpus=True)
    if lack is not None:
        yield Missing(message=f"{lack.message}: most engines come as images", next_step=lack.next_step)
    if machine.is_unified:
        yield from _unified(machine)
    if not environ.get("HF_TOKEN"):
        step = "only gated models need it: export HF_TOKEN=..."
        yield Missing(message="no HF_TOKEN", next_step=step, is_needed=False)


def _unified(machine: Machine) -> Iterator[Missing]:
    if machine.available_bytes - machine.free_bytes > machine.memory_bytes // 8:
        message, step = setup.page_cache(machine)
        yield Missing(message=message, next_step=f"before a big load, {step}", is_needed=False)
    lack = setup.swap(machine)
    if lack is not None:
        yield Missing(message=lack.message, next_step=lack.next_step, is_needed=False)


def _room(machine: Machine, fits: Iterable[Fit]) -> Iterator[Missing]:
    """Whether the largest model that fits the memory fits the disk, too."""
    wanted = max((fit.download_bytes for fit in fits), default=0)
    if machine.disk_free_bytes < wanted:
        message = f"disk: {readable(machine.disk_free_bytes)} free, the largest model here takes {readable(wanted)}"
        step = "eyas models list, eyas models rm, or HF_HOME on another disk"
        yield Missing(message=message, next_step=step)


def _programs(fits: Iterable[Fit], engines: Mapping[str, str]) -> Iterator[Missing]:
    """Native engines that the table of what fits names and that are not installed."""
    wanted = dict.fromkeys(fit.engine for fit in fits)
    for name in wanted:
        engine = knowledge().engines[name]
        if engine.program and name not in engines:
            yield Missing(message=f"{engine.program} is not installed", next_step=f"install {engine.title}")
    if "eyas" in wanted and find_spec("torch") is None:
        yield Missing(message="our own engine needs torch", next_step="pip install 'eyas[engine]'")


def _ports(fits: Iterable[Fit], listeners: Sequence[Listener]) -> Iterator[Missing]:
    """Yield the engines' default ports that other programs hold."""
    engines = knowledge().engines
    ports = dict.fromkeys(engines[fit.engine].port for fit in fits)
    for port in ports:
        other = holder(listeners, port, "127.0.0.1")
        if other is not None:
            who = f" by {other.who}" if other.who else ""
            yield Missing(message=f"port {port} is in use{who}", next_step="plan with --port", is_needed=False)

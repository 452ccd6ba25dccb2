"""Looks at a server and, where it runs on this machine, at the machine: what the conditions of `tips.py` ask for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from msgspec.structs import replace

from eyas.base.errors import EyasError, UserError
from eyas.base.serving.engines import OWNERS, EngineName
from eyas.fleet.advice.copies import copies
from eyas.fleet.advice.tips import Prompts, Reuse, Seen
from eyas.fleet.machines.listeners import LISTENERS, holder, read_listeners
from eyas.fleet.machines.machine import Machine
from eyas.fleet.machines.node import LocalNode
from eyas.fleet.machines.probe import box_of, cpu_box, look
from eyas.fleet.machines.sections import ask
from eyas.recipes.advice.facts import Facts, flags_of
from eyas.recipes.knowledge.tables import knowledge

__all__ = ["engine_of", "facts_of", "is_here", "known_model", "longest_prompt", "seen"]

LOOK_S = 20.0
LOOPBACK = ("localhost", "::1")
TUNNELS = ("ssh ", "sshd ")  # that listen here for a server elsewhere
# Histograms of prompt lengths: vllm/v1/metrics/loggers.py (ours has its name), sglang's metrics_collector.py.
LENGTHS = ("vllm:request_prompt_tokens_bucket", "sglang:prompt_tokens_histogram_bucket")


def is_here(url: str) -> bool:
    """Return whether an address is one of this machine's own, by its name alone."""
    host = urlsplit(url).hostname or ""
    return host in LOOPBACK or host.startswith("127.")


def engine_of(models: object, model: str) -> EngineName | None:
    """Return the engine that a server's list of models names as the owner of `model`."""
    entries = models.get("data") if isinstance(models, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("id") == model:
            return OWNERS.get(str(entry.get("owned_by")).lower())
    return None


def known_model(served: str) -> str:
    """Return the name in `models.yaml` of a served model, or the longest that its name holds; "" if there is none."""
    try:
        return knowledge().model(served).name
    except UserError:
        names = [name for name in knowledge().models if name in served.lower().replace(":", "-")]
        return max(names, key=len, default="")


def longest_prompt(text: str) -> Prompts | None:
    """Return what a server's histogram of prompt lengths says; None without one, or without a bound."""
    from prometheus_client.parser import text_string_to_metric_families

    buckets: dict[float, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in LENGTHS:
                edge = float(sample.labels["le"])
                buckets[edge] = buckets.get(edge, 0.0) + sample.value
    total = max(buckets.values(), default=0.0)
    longest = min((edge for edge, count in buckets.items() if count == total), default=float("inf"))
    return Prompts(count=int(total), longest=longest) if total and longest < float("inf") else None


def seen(url: str, models: object, model: str, context: int | None, metrics: str, reuse: Reuse | None) -> Seen:
    """Look at the machine if the server is on it. `models` and `metrics` are the server's replies of before."""
    try:
        prompts = longest_prompt(metrics)
    except ValueError:
        prompts = None
    elsewhere = Seen(context=context, prompts=prompts, reuse=reuse)
    if not is_here(url):
        return elsewhere
    node = LocalNode()
    try:
        machine = look(node)
        who = _listening(ask(node, LISTENERS, timeout_s=LOOK_S)["listeners"], url)
    except (EyasError, KeyError):
        return elsewhere
    if who.startswith(TUNNELS):
        return elsewhere
    argv = _argv(who)
    facts = facts_of(machine, engine_of(models, model), known_model(model), context, argv)
    return replace(elsewhere, facts=facts, machine=machine, copies=copies(os.environ), argv=argv)


def _listening(listeners: str, url: str) -> str:
    """Return the process that listens at `url`, as `NAME (pid N)`; "" where the system does not say."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    found = holder(read_listeners(listeners), port, parts.hostname or "")
    return found.who if found is not None else ""


def _argv(who: str) -> tuple[str, ...] | None:
    pid = who.rpartition("pid ")[2].rstrip(")")
    if not pid.isdecimal():
        return None
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:  # another user's, or over
        return None
    return tuple(word.decode(errors="replace") for word in words if word) or None


def facts_of(
    machine: Machine, engine: EngineName | None, model: str, context: int | None, argv: Iterable[str] | None
) -> Facts | None:
    """Describe the server as the rules of tuning want it: what it is, the box, its flags, swap and page cache."""
    try:
        hardware = (box_of(machine) if machine.gpus else cpu_box(machine)).hardware
    except EyasError:
        return None
    flags = tuple(flags_of(argv)) if argv else ()
    features = {f"flag:{flag}" for flag, _ in flags} | {f"flag:{flag}={value}" for flag, value in flags if value}
    if machine.swap_bytes == 0:
        features.add("no-swap")
    return Facts(
        engine=engine or "",
        version="",
        model=model,
        hardware=hardware.name,
        compute_capability=hardware.compute_capability,
        unified=hardware.unified,
        bandwidth=hardware.measured_bandwidth or hardware.bandwidth,
        memory_bytes=hardware.memory_bytes,
        context=context or 0,
        features=frozenset(features),
    )

"""Writes a plan as `compose.yaml` for Docker Compose 2.24 or later, the files it mounts, and `prepare.sh`.

Compose replaces `$NAME` in all values, so a literal `$` is written `$$`; secrets stay `${NAME}`.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from eyas.base.errors import UserError
from eyas.recipes.emit import blocks, checks
from eyas.recipes.emit.shell import LITERAL
from eyas.recipes.emit.words import is_name
from eyas.recipes.engines import front
from eyas.recipes.engines.common import base_url, below
from eyas.recipes.plan import Home, Launch, Mount, Plan, Ref, Word

__all__ = ["render", "value"]

SINGLE = {  # option of `docker run` -> key of a service
    "--ipc": "ipc",
    "--shm-size": "shm_size",
    "--network": "network_mode",
    "--entrypoint": "entrypoint",
    "--user": "user",
    "--workdir": "working_dir",
    "--pid": "pid",
    "--runtime": "runtime",
}
MANY = {
    "--device": "devices",
    "--publish": "ports",
    "--cap-add": "cap_add",
    "--group-add": "group_add",
    "--security-opt": "security_opt",
}
SWITCHES = {"--privileged": "privileged", "--init": "init"}
HEALTH = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=25)"
PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
WORDS_OF_YAML = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def render(plan: Plan) -> dict[str, str]:
    """Render the files. Raises UserError for plans that Compose cannot express: several machines, native processes."""
    if len(plan.choice.nodes) > 1 or plan.choice.nodes[0].ssh is not None:
        raise UserError("Compose starts containers of one machine, this one; use --emit shell for others")
    services = {}
    before = None
    for launch in plan.emission.launches:
        if launch.container is None and launch.is_once and launch.inside is None:
            continue  # `prepare.sh` runs it
        if launch.name == front.LAUNCH:
            raise UserError(
                "eyas router stands in front of this engine (for Claude Code, or for the key), and is a process; use "
                "--emit shell or --emit systemd, or start a router yourself"
            )
        if launch.container is None:
            raise UserError(f"{launch.name} is no container; use --emit shell or --emit systemd")
        services[launch.name] = _service(plan, launch, before)
        before = launch
    if before is None:
        raise UserError("nothing of this plan runs in a container; use --emit shell or --emit systemd")
    name = re.sub(r"[^a-z0-9_-]", "-", plan.choice.name.lower()).lstrip("_-") or "eyas"
    text = yaml.dump(
        {"name": name, "services": services}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000
    )
    files = {file.path: file.content for file in plan.emission.files if 0 in file.nodes}
    return {"compose.yaml": text, "prepare.sh": _prepare(plan)} | files


def value(*parts: Word) -> str:
    """Return the text that Compose turns into `parts`, one after another."""
    return "".join(_part(part) for part in parts)


def _part(part: Word) -> str:
    if isinstance(part, Ref):
        if not is_name(part.name):
            raise ValueError(f"{part.name!r} cannot name an environment variable")
        return f"${{{part.name}:?is not set}}"
    if isinstance(part, Home):
        return "${HOME}" + (f"/{part.path}" if part.path else "").replace("$", "$$")
    return part.replace("$", "$$")


def _service(plan: Plan, launch: Launch, before: Launch | None) -> dict[str, Any]:
    container = launch.container
    assert container is not None
    service: dict[str, Any] = {"image": value(container.image), "container_name": value(container.name)}
    if container.is_built:
        service |= {"build": ".", "pull_policy": "build"}
    service["command"] = [value(word) for word in launch.argv]
    service["environment"] = {variable.name: value(variable.value) for variable in launch.env}
    service["volumes"] = [_volume(plan, mount) for mount in container.mounts]
    service |= _options(container.options)
    service["restart"] = "no" if launch.is_once else "on-failure"
    if before is not None:
        condition = "service_completed_successfully" if before.is_once else "service_started"
        service["depends_on"] = {before.name: {"condition": condition}}
    if launch is plan.emission.launches[-1]:
        ready = plan.emission.readiness
        service["healthcheck"] = {
            "test": ["CMD", "python3", "-c", HEALTH, value(base_url(plan.choice) + ready.path)],
            "interval": "30s",
            "timeout": "30s",
            "retries": 3,
            "start_period": f"{ready.timeout_s:.0f}s",
        }
    return service


def _volume(plan: Plan, mount: Mount) -> dict[str, Any]:
    source = value(mount.source)
    for file in plan.emission.files:
        if mount.source == below(plan.choice.directory, file.path):
            source = f"./{value(file.path)}"  # next to compose.yaml
    volume: dict[str, Any] = {"type": "bind", "source": source, "target": value(mount.target)}
    if mount.read_only:
        volume["read_only"] = True
    return volume | {"bind": {"create_host_path": False}}


def _options(options: tuple[str, ...]) -> dict[str, Any]:
    """Convert options of `docker run`. Raises UserError for one without a key in Compose."""
    found: dict[str, Any] = {}
    rest = list(options)
    while rest:
        flag, has_value, setting = rest.pop(0).partition("=")
        if flag in SWITCHES:
            found[SWITCHES[flag]] = True
            continue
        if not has_value:
            setting = rest.pop(0)
        if flag == "--gpus":
            device = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
            found["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
        elif flag == "--ulimit":
            name, _, limit = setting.partition("=")
            found.setdefault("ulimits", {})[name] = int(limit)
        elif flag == "--stop-timeout":
            found["stop_grace_period"] = f"{setting}s"
        elif flag in SINGLE:
            found[SINGLE[flag]] = value(setting)
        elif flag in MANY:
            found.setdefault(MANY[flag], []).append(value(setting))
        else:
            raise UserError(f"docker's option {flag} cannot be written for Compose; use --emit shell")
    return found


def _prepare(plan: Plan) -> str:
    """Write the script for what Compose does not do: check, download, make folders."""
    lines = [
        "#!/bin/sh",
        "# Once before `docker compose up`: checks this machine and downloads the models.",
        LITERAL,
        "set -eu",
    ]
    lines += ["", blocks.LIBRARY, *blocks.required(blocks.references(plan)), *checks.check(plan, 0, builds=True)]
    lines += [*blocks.folders(plan), *blocks.fetch(plan)]
    for launch in plan.emission.launches:
        if launch.is_once and launch.container is None:
            lines += blocks.up(plan, launch)
    return "\n".join([*lines, "say 'now: docker compose up --detach --wait'"]) + "\n"


class _Dumper(yaml.SafeDumper):
    """Quotes all that a reader of YAML 1.1 or 1.2 could take for something else than text."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_plain = PLAIN.fullmatch(text) is not None and text.lower() not in WORDS_OF_YAML
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_plain else '"')


_Dumper.add_representer(str, _text)

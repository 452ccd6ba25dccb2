"""Writes a plan as units of systemd's user manager, and `install.sh` for each machine.

A unit's `%h` is the home of the user who installs it. Secrets come from a file that only this user can read.
"""

from __future__ import annotations

import re

from eyas.base.errors import UserError
from eyas.recipes.emit import blocks, checks, docker
from eyas.recipes.emit.shell import LITERAL
from eyas.recipes.emit.words import is_name, shell, slug
from eyas.recipes.plan import EnvVar, Home, Launch, Plan, Ref, Word
from eyas.recipes.records import METAL

__all__ = ["argument", "render", "setting"]

BARE = re.compile(r"[A-Za-z0-9_@+=:,./-]+")
ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "%": "%%"}


def render(plan: Plan) -> dict[str, str]:
    """Render the units. Raises UserError where launches run inside another's container: restarts would need both."""
    if plan.box.hardware.compute_capability == METAL:
        raise UserError("a Mac has no systemd; use --emit shell")
    if any(launch.inside for launch in plan.emission.launches):
        raise UserError("systemd cannot watch processes inside another's container; use --emit shell or `eyas up`")
    ranks = range(len(plan.choice.nodes))
    files = {}
    for rank in ranks:
        before: str | None = None
        for launch in _units(plan, rank):
            files[_unit_name(plan, launch)] = _unit(plan, launch, before)
            before = _unit_name(plan, launch)
        files[f"install-{rank}.sh" if len(ranks) > 1 else "install.sh"] = _install(plan, rank)
    return files


def argument(*parts: Word) -> str:
    """Write an argument of `ExecStart=`, whose value is `parts` one after another."""
    return _quoted("".join(_part(part, dollars=True) for part in parts))


def setting(name: str, value: Word) -> str:
    """Write an assignment of `Environment=`, where `$` is a letter like others."""
    return _quoted(f"{name}={_part(value, dollars=False)}")


def _part(part: Word, *, dollars: bool) -> str:
    if isinstance(part, Ref):
        if not is_name(part.name):
            raise ValueError(f"{part.name!r} cannot name an environment variable")
        return f"${{{part.name}}}"
    if isinstance(part, Home):
        return "%h" + (f"/{_part(part.path, dollars=dollars)}" if part.path else "")
    if "\0" in part:
        raise ValueError("a word cannot hold a NUL byte")
    text = "".join(ESCAPES.get(letter) or _plain(letter) for letter in part)
    return text.replace("$", "$$") if dollars else text


def _plain(letter: str) -> str:
    return letter if letter >= " " and letter != "\x7f" else f"\\x{ord(letter):02x}"


def _quoted(text: str) -> str:
    return text if BARE.fullmatch(text.replace("%h", "").replace("%%", "")) else f'"{text}"'


def _units(plan: Plan, rank: int) -> list[Launch]:
    """Write the units: all but what is done once when installing."""
    return [
        launch
        for launch in plan.emission.launches
        if launch.node == rank and (launch.container is not None or not launch.is_once)
    ]


def _unit_name(plan: Plan, launch: Launch) -> str:
    return f"eyas-{slug(plan.choice.name)}-{slug(launch.name)}.service"


def _unit(plan: Plan, launch: Launch, before: str | None) -> str:
    title = " ".join(f"{plan.choice.name}: {launch.name}".split()).replace("%", "%%").replace("\\", "\\\\")
    lines = ["[Unit]", f"Description={title}"]
    if before is not None:
        lines += [f"Requires={before}", f"After={before}"]
    lines += ["", "[Service]", f"Type={'oneshot' if launch.is_once else 'exec'}"]
    if launch.is_once:
        lines.append("RemainAfterExit=yes")
    lines += ["Restart=on-failure", "RestartSec=10", "TimeoutStopSec=60"]
    if blocks.secrets(plan):
        lines.append(f"EnvironmentFile=%h/{_part(_secrets(plan), dollars=False)}")
    lines += _commands(launch)
    return "\n".join([*lines, "", "[Install]", "WantedBy=default.target"]) + "\n"


def _commands(launch: Launch) -> list[str]:
    """Write the commands by way of `env`, which finds programs on the manager's path."""
    run = ["/usr/bin/env"]
    if launch.container is None:
        plain = [one for one in launch.env if not isinstance(one.value, Ref)]
        lines = [f"Environment={setting(one.name, one.value)}" for one in plain]
        run += _renamed(launch)
        return [*lines, f"ExecStart={' '.join([*run, *map(argument, launch.argv)])}"]
    container = launch.container
    name = argument(container.name)
    run += [*_renamed(launch), "docker", "run", "--rm", "--name", name, *map(argument, container.options)]
    for variable in launch.env:
        run += ["--env", _variable(variable)]
    for mount in container.mounts:
        run += ["--mount", argument(*docker.mount_parts(mount))]
    run += [argument(container.image), *map(argument, launch.argv)]
    return [
        f"ExecStartPre=-/usr/bin/env docker rm --force {name}",
        f"ExecStart={' '.join(run)}",
        f"ExecStop=/usr/bin/env docker stop --time 30 {name}",
    ]


def _renamed(launch: Launch) -> list[str]:
    """Return secrets that the launch knows by another name than the unit, for `env`."""
    return [
        argument(f"{one.name}=", one.value)
        for one in launch.env
        if isinstance(one.value, Ref) and one.value.name != one.name
    ]


def _variable(variable: EnvVar) -> str:
    is_secret = isinstance(variable.value, Ref)
    return argument(variable.name) if is_secret else argument(f"{variable.name}=", variable.value)


def _secrets(plan: Plan) -> str:
    return f".config/eyas/{slug(plan.choice.name)}.env"


def _install(plan: Plan, rank: int) -> str:
    """Write the script that checks, downloads, copies, starts. The user writes the file of secrets."""
    title = "# Installs the units next to this script for the user who runs it, and starts them."
    lines = ["#!/bin/sh", title, LITERAL, "set -eu", "", blocks.LIBRARY]
    lines += ['here=$(cd -- "$(dirname -- "$0")" && pwd)', 'units="$HOME/.config/systemd/user"']
    lines += ["need systemctl 'these files are for systemd'"]
    secrets = blocks.secrets(plan)
    lines += blocks.required(name for name in blocks.references(plan) if name not in secrets)
    path = shell(Home(path=_secrets(plan)))
    for name in secrets:
        lines.append(f"grep -q '^{name}=.' {path} 2>/dev/null ||")
        advice = f"write a line {name}=... into ~/{_secrets(plan)}, for your eyes only (chmod 600)"
        lines.append(f"    fail {shell(advice)}")
    lines += [*checks.check(plan, rank), *blocks.files(plan, rank), *blocks.fetch(plan)]
    for launch in plan.emission.launches:
        if launch.node == rank and launch.is_once and launch.container is None:
            lines += blocks.up(plan, launch)
    units = [shell(_unit_name(plan, launch)) for launch in _units(plan, rank)]
    lines += ['mkdir -p "$units"', *(f'cp -- "$here"/{unit} "$units"/' for unit in units)]
    lines += ["systemctl --user daemon-reload", *(f"systemctl --user enable --now {unit}" for unit in units)]
    lines.append("say 'to keep it running after you log out: loginctl enable-linger'")
    return "\n".join(lines) + "\n"

"""Makes the machines of a plan ready for a new start: checks them, pulls images, downloads models. Prints nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from eyas.base.errors import UserError
from eyas.fleet.machines.node import NodeRunner
from eyas.fleet.models.download import Progress, fetch
from eyas.fleet.preflight.check import Check, check
from eyas.fleet.running import scripts
from eyas.recipes.plan import Plan

__all__ = ["Listener", "make_ready", "text_of"]

PULL_S = 6 * 3600.0


class Listener(Protocol):
    """Listens to what is being done."""

    def checked(self, checks: Sequence[Check]) -> None:
        """All checks were made."""

    def pulling(self, image: str, node: str) -> None:
        """An image is looked for on a machine, and pulled if it is not there."""

    def downloading(self, progress: Progress) -> None:
        """A download has come further."""


def make_ready(
    plan: Plan,
    nodes: Sequence[NodeRunner],
    listener: Listener,
    *,
    environ: Mapping[str, str] | None = None,
    is_forced: bool = False,
) -> None:
    """Run preflight, pull images, download models. Raises UserError before anything is started.

    With `is_forced`, failed checks keep nothing from being started.
    """
    checks = check(plan, nodes, environ)
    listener.checked(checks)
    bad = [item for item in checks if not item.ok]
    if bad and not is_forced:
        raise UserError(f"{text_of(bad[0])}; nothing was started")
    images = {(launch.node, launch.container.image) for launch in plan.emission.launches if launch.container}
    for rank, image in sorted(images):
        listener.pulling(image, nodes[rank].name)
        result = nodes[rank].run(scripts.pull(image), timeout_s=PULL_S)
        if result.code != 0:
            raise UserError(f"{nodes[rank].name} cannot have {image}: {' '.join(result.err.split())[-200:]}")
    for node in nodes:
        fetch(plan, node, listener.downloading)


def text_of(item: Check) -> str:
    """Return what a check says, with its next step."""
    return f"{item.node}: {item.message}" + (f"; {item.next_step}" if item.next_step else "")

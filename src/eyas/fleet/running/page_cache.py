"""Gives back the page cache of a checkpoint while an engine loads it, where CPU and GPU share one memory.

A checkpoint that is read fills the page cache. Linux counts that as available, the driver of a GPU does not: a GB10 was
seen with 52 GiB available and 2.8 GiB free for CUDA (llamastash, issue 80), and with no free 2 MiB block left, upon
which the driver failed (GLM-5.3-Flash-NVFP4, discussion 19). There a guard that dropped caches below 8 GiB of MemFree,
from launch to ready, ended that. Dropping everything needs root; `posix_fadvise` on files that one may read does not,
and leaves pages that a process has mapped, and all other files, as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources

from eyas.recipes.emit.words import shell
from eyas.recipes.engines.common import below
from eyas.recipes.plan import Plan, Ref, Word
from eyas.recipes.records import CPU

__all__ = ["FLOOR_BYTES", "give_back", "places"]

FLOOR_BYTES = 8 << 30
EXPORTED = "gguf"  # folder of the deployment that GGUF files are written to, and the launch that does it
LIBRARY = resources.files("eyas.fleet.running").joinpath("library.sh").read_text(encoding="ascii")


def give_back(plan: Plan, *, floor_bytes: int | None = None) -> str | None:
    """Return the sh script that gives back what is cached of the checkpoint; None where there is nothing to do.

    It does so while less memory is free, page cache left out, than `floor_bytes`: what the plan takes at start and
    FLOOR_BYTES. A machine with room for both keeps its cache, so that a restart reads from memory.
    """
    where = list(places(plan))
    hardware = plan.box.hardware
    if not hardware.unified or hardware.compute_capability == CPU or not where:  # a CPU uses the cache itself
        return None
    floor = plan.memory.reserved + FLOOR_BYTES if floor_bytes is None else floor_bytes
    return "\n".join((LIBRARY, f"give_back {floor >> 10} {' '.join(shell(place) for place in where)}"))


def places(plan: Plan) -> Iterator[Word]:
    """Yield the folders and files of model and head on a node. What Ollama pulls is in a store of its own."""
    choice = plan.choice
    yield from (path for path in (choice.model_path, choice.head_path) if path is not None)
    if not isinstance(choice.cache, Ref):
        for download in plan.emission.downloads:
            yield below(choice.cache, f"hub/models--{download.repo.replace('/', '--')}/blobs")
    if any(launch.name == EXPORTED for launch in plan.emission.launches):
        yield below(choice.directory, EXPORTED)

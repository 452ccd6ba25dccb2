"""Footprint of a plan: what it takes of one GPU, or of one box of unified memory, at rest and while it loads.

It is what the plan declares. Where several plans run on one box the true figures are learnt, and kept apart alike.
"""

from __future__ import annotations

from math import ceil

from msgspec import Struct

from eyas.recipes.estimate.memory import POOLED
from eyas.recipes.plan import Plan

__all__ = ["Footprint", "footprint"]

# What loading takes beyond the state at rest, as a share of the weights. On a GB10, MemAvailable was seen to dip by 17
# to 19 GiB within 10 s after the weights were loaded, 6 to 7 GiB less with PYTORCH_CUDA_ALLOC_CONF=expandable_segments
# (Hugging Face, GLM-5.3-Flash-FP4, discussion 7): 0.3 of the weights of gpt-oss-120b are 18 GiB. What llama.cpp and
# eyas stage is not published; they read through buffers of a fixed size and repack one tensor at a time.
TORCH_SHARE, STAGED_SHARE = 0.3, 0.05


class Footprint(Struct, frozen=True, kw_only=True):
    """Bytes of each memory that the plan uses: each of its GPUs, or each of its boxes where memory is unified."""

    steady_bytes: int
    peak_bytes: int


def footprint(plan: Plan) -> Footprint:
    """Return what the plan declares. Pure: it reads the plan's own map of memory.

    At rest an engine has its pool, or all that full contexts of all requests need; on unified memory its processes
    come on top. Where requests wait for room they may need more in sum than the engine has room for, or ever takes.
    """
    memory = plan.memory
    steady = max(memory.reserved, min(memory.needed, memory.capacity)) + memory.host
    weights = sum(row.num_bytes for row in memory.rows if row.owner == "weights")
    transient = ceil(weights * (TORCH_SHARE if plan.choice.engine in POOLED else STAGED_SHARE))
    if plan.box.hardware.unified:
        return Footprint(steady_bytes=steady, peak_bytes=steady + transient)
    # A GPU of its own is given back what loading took before the pool is allocated, which takes what is free then.
    return Footprint(steady_bytes=steady, peak_bytes=max(steady, weights + transient))

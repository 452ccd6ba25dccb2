"""Time breakdown of a round: drafting, verifying, sampling and committing, and what lies between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from eyas.base.types import Request
from eyas.bench.engine.drive import run_requests

if TYPE_CHECKING:
    from eyas.bench.engine.parts import EngineCore

__all__ = ["Budget", "measure_budget"]


class Budget(NamedTuple):
    """Mean milliseconds of a round by stage. `rest` is the round's time outside its stages: gaps, copies of results."""

    draft: float
    verify: float
    sample: float
    rest: float

    def text(self) -> str:
        parts = zip(("draft", "verify", "draw and commit", "rest"), self, strict=True)
        return ", ".join(f"{name} {milliseconds:.3f}" for name, milliseconds in parts)

    def json(self) -> dict[str, float]:
        return {name: round(milliseconds, 4) for name, milliseconds in self._asdict().items()}


def measure_budget(core: EngineCore, requests: Callable[[], Sequence[Request]], batch: int, round_s: float) -> Budget:
    """Return the time breakdown of a round at the core's current settings; `round_s` was measured uninstrumented."""
    from eyas.bench.engine.parts import FINISH, PROMPT_STAGES, VERIFY, timed_stages

    with timed_stages(core.runner) as timed:
        run_requests(core, requests(), batch=batch, to_end=False)  # captures what has not run in parts before
        timed.clear()
        run_requests(core, requests(), batch=batch, to_end=False)
        totals = timed.totals()
    for name in PROMPT_STAGES:
        totals.pop(name, None)
    num_rounds, verify = totals.pop(VERIFY)
    _, sample = totals.pop(FINISH)
    draft = sum(milliseconds for _, milliseconds in totals.values())  # the head, and what looks up
    draft, verify, sample = (milliseconds / num_rounds for milliseconds in (draft, verify, sample))
    return Budget(draft, verify, sample, max(0.0, 1e3 * round_s - draft - verify - sample))

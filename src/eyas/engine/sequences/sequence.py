"""A sequence: one choice of one request, as the host sees it. The device may be one round ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from eyas.base.types import Request, TokenEvent
from eyas.engine.sequences.mask_jobs import SequenceMasks
from eyas.engine.sequences.ngram_index import NgramIndex
from eyas.engine.sequences.pages import PageKey

__all__ = ["Phase", "Sequence"]


class Phase(Enum):
    NEW = auto()  # its grammar is being compiled
    WAITING = auto()
    PREFILL = auto()
    DECODE = auto()
    SWAPPED = auto()  # preempted: its pages lie in host memory, it keeps its slot
    DONE = auto()


@dataclass(eq=False, kw_only=True, slots=True)
class Sequence:
    """`known_length` counts tokens that the host has seen, `num_in_flight` those that launched rounds may add."""

    request: Request
    choice: int
    seed: int
    budget: int  # tokens that may be generated
    stop_ids: tuple[int, ...]
    keys: list[PageKey]  # of the prompt's full pages
    deliver: Callable[[TokenEvent], None]
    leader: Sequence | None = None  # the first choice, whose prompt pages the others share
    arrival: int = 0
    began: float = 0.0  # `time.perf_counter()` at the launch of its first step
    phase: Phase = Phase.NEW
    masks: SequenceMasks | None = None  # of a constrained sequence
    ngram_index: NgramIndex | None = None  # once it has a token, with prompt lookup
    slot: int | None = None
    num_prefilled: int = 0
    num_cached: int = 0
    num_known_pages: int = 0  # leading full pages that were found at its admission, usable or not
    known_length: int = 0
    num_in_flight: int = 0
    full_pages: list[int] = field(default_factory=list)
    sliding_pages: list[int] = field(default_factory=list)  # 0 where the page has left the window
    num_sliding_left: int = 0  # leading entries of sliding_pages that were released
    prompt_logprobs: list[Any] = field(default_factory=list)  # of the chunks computed so far; only the runner reads it
    swapped: Any = None  # the runner's copy of the pages of a swapped sequence
    resume_phase: Phase = Phase.DECODE
    prompt_length: int = field(init=False)
    max_length: int = field(init=False)  # prompt and answer

    def __post_init__(self) -> None:
        self.prompt_length = len(self.request.prompt_ids)
        self.max_length = self.prompt_length + self.budget

    @property
    def awaits_leader(self) -> bool:
        """Whether the prompt pages that it shares are still to be written."""
        return self.leader is not None and self.leader.phase in (Phase.WAITING, Phase.PREFILL, Phase.SWAPPED)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether prompt log-probabilities are wanted, which need the whole prompt computed, cached or not."""
        return self.choice == 0 and self.request.params.prompt_logprobs is not None

    @property
    def length_bound(self) -> int:
        """An upper bound on the device's length of the sequence."""
        return min(self.known_length + self.num_in_flight, self.max_length)

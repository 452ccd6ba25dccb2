"""Results of a launched step: copies in host memory, and the time that it took."""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from eyas.engine.round.types import Logprobs, RoundOutput
from eyas.engine.sequences.sequence import Sequence
from eyas.engine.step.scheduler import StepPlan

__all__ = ["FAILED", "NUM_COMMITTED", "NUM_DRAFTS", "HostRound", "Launched", "Stopwatch", "to_host"]


NUM_COMMITTED, FAILED, NUM_DRAFTS = 0, 4, 5  # columns of `HostRound.packed`; drafts are the verified ones


class HostRound(NamedTuple):
    """A round's results in host memory; valid once `event` has passed."""

    packed: Tensor  # int64 [S, ...]: numbers as in `_packed`, then tokens, draft ids and levels of confidence
    logprobs: Logprobs | None
    prompt_logprobs: Mapping[int, Logprobs]
    num_rows: int
    event: torch.cuda.Event | None
    num_ready: Mapping[int, int]  # rows with masks, of sequences that lacked some


@dataclass(slots=True)
class Launched:
    """A launched step: its plan, and where its results will be."""

    plan: StepPlan
    rounds: list[tuple[list[Sequence], int, HostRound]]  # sequences, tokens reserved for each, results
    watch: Stopwatch


class Stopwatch:
    """Times one step on the device, independent of the host."""

    def __init__(self, device: torch.device) -> None:
        self._events = None
        if device.type == "cuda":
            self._events = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            self._events[0].record()
        self._seconds = -time.perf_counter()

    def stop(self) -> None:
        self._seconds += time.perf_counter()
        if self._events is not None:
            self._events[1].record()

    def seconds(self) -> float:
        """Return the step's time; valid once its results have been read."""
        if self._events is None:
            return self._seconds
        self._events[1].synchronize()
        return float(self._events[0].elapsed_time(self._events[1])) / 1e3


def _packed(output: RoundOutput) -> Tensor:
    columns = (
        output.num_committed_S,
        output.num_accepted_S,
        output.stopped_S,
        output.ended_S,
        output.failed_S,
        output.num_drafts_S,
    )
    levels = () if output.levels_SN is None else (output.levels_SN,)
    numbers = torch.stack([c.long() for c in columns], 1)
    return torch.cat((numbers, output.sampled_SR, output.draft_SK, *levels), dim=1)


def to_host(output: RoundOutput, sequences: Seq[Sequence]) -> HostRound:
    """Start copying the results of a round of these sequences to host memory."""
    packed = _packed(output) if output.packed_SW is None else output.packed_SW
    prompt_logprobs, logprobs = output.prompt_logprobs, output.logprobs
    if all(sequence.request.params.logprobs is None for sequence in sequences):
        logprobs = None
    tensors = (packed, *(logprobs or ()), *(part for scored in prompt_logprobs.values() for part in scored))
    event = None
    if packed.is_cuda:
        copies = tuple(torch.empty_like(t, device="cpu", pin_memory=True) for t in tensors)
        for copy, tensor in zip(copies, tensors, strict=True):
            copy.copy_(tensor, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        tensors = copies
    packed, *rest = tensors
    triples = [Logprobs(*rest[at : at + 3]) for at in range(0, len(rest), 3)]
    logprobs = triples.pop(0) if logprobs is not None else None
    return HostRound(
        packed,
        logprobs,
        dict(zip(prompt_logprobs, triples, strict=True)),
        output.sampled_SR.shape[1],
        event,
        output.num_ready,
    )

"""One step of training: states of the target, counts over all processes, losses and gradients, one update.

A step holds the target's states of all of its batches, so that losses are means over the taught cells of the whole
step: with gradients accumulated over batches or processes, a mean of means would weigh short answers more.
"""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from eyas.base.errors import UserError
from eyas.train.heads.base import Share, TrainableHead
from eyas.train.loss.kinds import LossSettings
from eyas.train.loss.step import accumulate, prepare
from eyas.train.loss.tiles import LossSums, Prepared, TiledLoss, normalisers
from eyas.train.settings.schema import TrainSettings
from eyas.train.states.source import HiddenStates
from eyas.train.steps.faults import first_fault
from eyas.train.steps.optimizers import Optimizers
from eyas.train.steps.processes import Processes
from eyas.train.steps.report import StepReport
from eyas.train.types import Batch, Rule, States

__all__ = ["Trainer", "tiled_loss"]

log = logging.getLogger(__name__)

Work = Sequence[tuple[Batch, States, Prepared]]
T = TypeVar("T")


class Trainer:
    """A head, its optimisers, and the source of states that teach it."""

    def __init__(
        self,
        head: TrainableHead,
        source: HiddenStates,
        settings: TrainSettings,
        *,
        rule: Rule,
        num_steps: int,
        processes: Processes,
        shrinks: bool = True,
        longest_below: Callable[[int, TrainSettings], int] | None = None,
    ) -> None:
        """`shrinks`: a step that runs out of memory is taken once more, in smaller passes and tiles.

        `longest_below` estimates the longest document that fits, of fewer tokens than given, in passes of these sizes.
        """
        self.head = head
        self.source = source
        self.optimizers = Optimizers(head, settings, num_steps)
        self._settings = settings
        self._rule: Rule = rule
        self._shrinks = shrinks
        self._longest_below = longest_below
        self._fitted = 0  # tokens of the largest batch of a step that was taken
        self._processes = processes
        divides_rows = settings.share == "rows" and processes.size > 1
        self._share = Share(processes.rank, processes.size) if divides_rows else Share()
        self._loss = tiled_loss(head, source, settings)

    def step(self, number: int, batches: Sequence[Batch]) -> StepReport:
        """Run step 0, 1, ... on this process's batches. Raises UserError, before any update, for what is not finite."""
        began = time.perf_counter()
        device = self.source.teacher.embed_VH.device
        moved = [batch.to(device) for batch in batches]
        largest = max(batch.num_tokens for batch in moved)
        target_seconds = 0.0

        def begin() -> tuple[list[States], list[Prepared]]:
            nonlocal target_seconds
            with torch.no_grad():
                states = [self.source.states(batch) for batch in moved]
            target_seconds = time.perf_counter() - began
            ready = [
                prepare(self.head, self._loss, batch, state, rule=self._rule, share=share)
                for batch, state in zip(moved, states, strict=True)
            ]
            return states, ready

        share = self._share
        states, ready = self._taken(begin, largest)
        trained_J = torch.stack([one.trained_J for one in ready]).sum(0)
        num_tokens = torch.tensor(sum(one.tokens for one in ready), device=device)
        self._processes.add([trained_J, num_tokens])
        total_tokens = int(num_tokens) // share.of  # processes that share rows have the same tokens
        divisors_J = normalisers(trained_J, total_tokens, self._settings.compat)
        work = list(zip(moved, states, ready, strict=True))
        sums = self._taken(lambda: self._accumulate(work, divisors_J), largest)
        self._exchange(sums)
        loss = float(sums.loss(divisors_J, self._settings.decay))
        grads = [p.grad for p in self.head.parameters() if p.grad is not None]
        finite = torch.stack([torch.isfinite(grad).all() for grad in grads]).all() if grads else torch.tensor(True)
        if not (torch.tensor(loss).isfinite() and bool(finite)):
            fault = first_fault(self.head, self._loss, self.source, moved, states, rule=self._rule)
            raise UserError(f"step {number + 1} was not taken: {fault}; checkpoints are from before it")
        norm, lr = self._update(number, largest)
        self._fitted = max(self._fitted, largest)
        counts = sums.counted_J.clamp(min=1)
        return StepReport(
            step=number + 1,
            loss=loss,
            loss_by_depth=tuple((sums.losses_J / sums.trained_J.clamp(min=1)).tolist()),
            hits_by_depth=tuple((sums.hits_J / counts).tolist()),
            acceptance_by_depth=tuple((sums.overlap_J / counts).tolist()),
            grad_norm=norm,
            lr=lr,
            num_tokens=total_tokens,
            num_taught=int(sums.counted_J[0]),
            seconds=time.perf_counter() - began,
            target_seconds=target_seconds,
            peak_bytes=_peak_bytes(device),
        )

    def _taken(self, work: Callable[[], T], largest: int) -> T:
        """Do a part of a step; where memory does not suffice, once more in passes and tiles of half the size.

        These sizes then stay. Raises UserError if memory does not suffice then either. Nothing is exchanged meanwhile,
        so processes do this alone.
        """
        try:
            return work()
        except torch.OutOfMemoryError:
            if not self._shrinks:
                raise
        # What the failed part held went with the exception.
        self._release()
        self.head.rows_of_pass = max(1, self.head.rows_of_pass // 2)
        self._loss.tile_size = max(1, self._loss.tile_size // 2)
        log.warning(
            "out of memory: the step is taken again in passes of %d rows and tiles of %d positions, as all later ones",
            self.head.rows_of_pass,
            self._loss.tile_size,
        )
        try:
            return work()
        except torch.OutOfMemoryError:
            pass
        self._release()
        raise self._full(largest)

    def _update(self, number: int, largest: int) -> tuple[float, float]:
        try:
            return self.optimizers.step(number)
        except torch.OutOfMemoryError:
            if not self._shrinks:
                raise
        raise self._full(largest)  # no second try: part of the update may be done

    def _release(self) -> None:
        self.optimizers.zero_grad()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _full(self, largest: int) -> UserError:
        """Return the error for batches whose largest one does not fit, with a length that does."""
        rows, tile = self.head.rows_of_pass, self._loss.tile_size
        if 0 < self._fitted < largest:
            advice = f"batches of up to {self._fitted} tokens did fit in this run: give data.context and "
            advice += f"train.batch_tokens={self._fitted}"
        else:
            fits = 0
            if self._longest_below is not None:
                fits = self._longest_below(largest, replace(self._settings, chunk=rows, tile=tile))
            advice = f"by estimate {fits} tokens fit: give data.context={fits}" if fits else "give a smaller head"
        return UserError(
            f"out of memory: a batch of {largest} tokens does not fit, in passes of {rows} rows and tiles of {tile} "
            f"positions; checkpoints are from before it. {advice}, train.chunk={rows} and train.tile={tile}"
        )

    def _accumulate(self, work: Work, divisors_J: Tensor) -> LossSums:
        """Add the gradients of all batches, and return their sums."""
        sums = LossSums.zero(self.head.num_depths, divisors_J.device)
        for batch, state, one in work:
            sums += accumulate(
                self.head,
                self._loss,
                batch,
                state,
                self.source.teacher,
                one,
                normalisers_J=divisors_J,
                decay=self._settings.decay,
                rule=self._rule,
                share=self._share,
            )
        return sums

    def _exchange(self, sums: LossSums) -> None:
        """Add gradients and statistics over all processes."""
        if self._processes.size == 1:
            return
        for parameter in self.head.parameters():
            if parameter.grad is None and parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        grads = [p.grad for p in self.head.parameters() if p.grad is not None]
        self._processes.add([*grads, *(getattr(sums, name) for name in LossSums.__slots__)])


def tiled_loss(head: TrainableHead, source: HiddenStates, settings: TrainSettings) -> TiledLoss:
    """Return the loss of a run's settings."""
    kinds = LossSettings(
        kind=settings.loss, lk=settings.lk_form, kl_scale=settings.lk_scale, kl_decay=settings.lk_decay
    )
    return TiledLoss(head.readout, source.teacher, kinds, tile=settings.rows_of_tile)


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

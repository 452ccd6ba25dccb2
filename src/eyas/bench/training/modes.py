"""The ways of taking a training step that a benchmark compares, with weights and optimisers of their own.

Shape letters: T tokens, C = len(taps) Ht, H hidden, V vocabulary, Vd draft vocabulary.
"""

from __future__ import annotations

import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.bench.training.steps import Bench
from eyas.model.checkpoints.placing import can_use_kernels
from eyas.model.config import Eagle3Config
from eyas.model.devices import available_bytes
from eyas.model.live_bytes import LiveBytes
from eyas.model.weights import num_bytes
from eyas.train.heads.flops import Work, head_flops
from eyas.train.heads.registry import find_making
from eyas.train.loop.memory import head_bytes, teacher_bytes
from eyas.train.loss.tiles import normalisers
from eyas.train.reference import ReferenceHead, TttBatch, training_time_test
from eyas.train.settings.schema import TrainSettings
from eyas.train.states.memory import TargetMemory, at_once
from eyas.train.states.source import HiddenStates
from eyas.train.steps.optimizers import Optimizers
from eyas.train.steps.processes import Processes
from eyas.train.steps.trainer import Trainer, tiled_loss
from eyas.train.types import Batch

__all__ = ["MODES", "Checkpoints", "Hard", "Mode", "Ours", "Plain", "fits", "warmed_up"]

SHARE_OF_FREE = 0.8  # of a CPU's free memory that a step may be expected to take


class Mode(ABC):
    """One way to take a training step."""

    def __init__(self, bench: Bench, batch: Batch, source: HiddenStates) -> None:
        self.bench, self.batch, self.source = bench, batch, source

    head: torch.nn.Module
    optimizers: Optimizers

    @classmethod
    def refusal(cls, bench: Bench, length: int) -> str | None:
        """Return why this way cannot be measured at this length, if so."""
        return None

    @abstractmethod
    def step(self) -> None:
        """Take one step: states, losses, gradients, update."""

    def seconds(self) -> float:
        """Time one step."""
        self._wait()
        began = time.perf_counter()
        self.step()
        self._wait()
        return time.perf_counter() - began

    def memory(self) -> dict[str, int]:
        """Take one step and return bytes by owner. `step` is its peak beyond all others.

        On a CPU the bytes of tensors are counted; `driver`, what the GPU's driver counts, is 0 there, as is the part of
        it that is not of torch.
        """
        trained = [p for p in self.head.parameters() if p.requires_grad]
        gradients = sum(p.nbytes for p in trained)
        driver = own = 0
        if self.bench.device.type == "cuda":
            before = torch.cuda.memory_allocated(self.bench.device)
            torch.cuda.reset_peak_memory_stats(self.bench.device)
            self.step()
            self._wait()
            made = torch.cuda.max_memory_allocated(self.bench.device) - before
            free, total = torch.cuda.mem_get_info(self.bench.device)
            driver = total - free
            own = driver - torch.cuda.memory_reserved(self.bench.device)
        else:
            there = [x for x in gc.get_objects() if issubclass(type(x), Tensor)]
            with LiveBytes(*there) as seen:
                self.step()
            made = seen.peak
        states = 0
        if self.bench.weights is None:
            states = sum(x.nbytes for x in self.source.states(self.batch) if x is not None)
        return {
            "weights": sum(p.nbytes for p in trained),
            "gradients": gradients,
            "optimiser": sum(x.nbytes for x in self.optimizers.tensors().values()),
            "teacher": sum(x.nbytes for x in self.bench.teacher),
            "target": self.bench.target_bytes,
            "states": states,
            "step": made - gradients,
            "driver": driver,
            "driver's own": own,
        }

    def _wait(self) -> None:
        if self.bench.device.type == "cuda":
            torch.cuda.synchronize(self.bench.device)


class Ours(Mode):
    """The step of `eyas train run`."""

    cuts_rows: ClassVar = True
    recomputes: ClassVar = False

    def __init__(self, bench: Bench, batch: Batch, source: HiddenStates) -> None:
        super().__init__(bench, batch, source)
        self.train = self._settings(bench.train, batch.num_tokens)
        making = find_making(bench.head_settings.kind)
        config = bench.head_config(batch.num_tokens)
        head = making.fresh(config, bench.ids_V, bench.teacher, num_depths=self.train.depths, seed=0)
        head.rows_of_pass, head.attention = self.train.rows_of_pass, self.train.attention
        head.cuts_rows, head.recomputes = self.cuts_rows, self.recomputes
        head.to(bench.device)
        head.settle_attention(
            bench.device, bench.teacher.embed_VH.dtype, longest=batch.num_tokens, deterministic=self.train.deterministic
        )
        self._loss = tiled_loss(head, source, self.train)
        self._trainer = Trainer(
            head, source, self.train, rule="loose", num_steps=1000, processes=Processes(), shrinks=False
        )
        self.head, self.optimizers = head, self._trainer.optimizers
        self.losses: list[float] = []  # of the steps so far, all on the same batch
        self._number = 0

    def _settings(self, train: TrainSettings, num_tokens: int) -> TrainSettings:
        return train

    @property
    def way(self) -> str:
        """Return how attention is computed: measured at the start, unless the settings name one."""
        return self._trainer.head.attention

    def step(self) -> None:
        self.losses.append(self._trainer.step(self._number, [self.batch]).loss)
        self._number += 1

    def stages(self) -> dict[str, float]:
        """Return seconds by part of a step, from one more step that is taken apart."""
        head, train, teacher = self._trainer.head, self.train, self.bench.teacher
        seconds: dict[str, float] = {}

        @contextmanager
        def timed(stage: str) -> Iterator[None]:
            self._wait()
            began = time.perf_counter()
            yield
            self._wait()
            seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - began

        with timed("target"), torch.no_grad():
            states = self.source.states(self.batch)
        with timed("teacher"):
            ready = self._loss.prepare(head.cells(self.batch, rule="loose"), states)
        by_J = normalisers(ready.trained_J, self.batch.num_tokens, train.compat)
        passes = iter(head.passes(self.batch, states, teacher, rule="loose", decay=train.decay))
        while True:
            with timed("forward"):
                began, one = time.perf_counter(), next(passes, None)
            if one is None:  # what comes after the last pass: keys and values of depth 0, backward
                self._wait()
                spent = time.perf_counter() - began
                seconds["forward"], seconds["keys, values"] = seconds["forward"] - spent, spent
                break
            with timed("loss"):
                _, grads = self._loss(one, ready, states, by_J)
            with timed("backward"):
                one.backward(grads)
        with timed("optimiser"):
            self.optimizers.step(self._number)
        self._number += 1
        return seconds

    def planned(self) -> dict[str, int]:
        """Return the bytes by owner that `eyas train plan` counts."""
        bench, batch, taps = self.bench, self.batch, self.source.taps
        size = bench.teacher.embed_VH.dtype.itemsize
        memory = TargetMemory(
            config=bench.target, dtype=bench.dtype, has_kernels=can_use_kernels(bench.device, bench.target),
            weight_bytes=num_bytes(bench.weights) if bench.weights else 0, expert_cache_bytes=0, num_taps=len(taps),
        )  # fmt: skip
        found = memory.owners(longest=batch.num_tokens)
        if bench.weights is None:
            found = {"teacher": teacher_bytes(bench.target, size), "states": found["states"]}
        cells = self._trainer.head.cells(batch, rule="loose")
        rows = len(torch.cat([one.rows_N for one in cells]).unique()) if self.cuts_rows else batch.num_tokens
        return found | head_bytes(
            find_making(bench.head_settings.kind), self._trainer.head.config, self.train,
            vocab_size=bench.target.vocab_size, tokens=batch.num_tokens, rows=rows, itemsize=size,
        )  # fmt: skip

    def at_once(self, planned: Mapping[str, int]) -> int:
        """Return the bytes of a plan that are in use at once."""
        return at_once(planned, self.bench.device)

    def flops(self) -> dict[str, float]:
        """Return the operations of a step of the head by part, without what is computed twice."""
        head, batch = self._trainer.head, self.batch
        cells = head.cells(batch, rule="loose")
        rows_R = torch.cat([one.rows_N for one in cells]).unique()
        targets = torch.cat([one.targets_N for one in cells]).unique()
        work = Work(
            tokens=batch.num_tokens,
            rows=len(rows_R),
            keys=int((batch.positions_T[rows_R] + 1).sum()),
            cells=sum(len(one.rows_N) for one in cells),
            positions=len(targets),
            depths=self.train.depths,
        )
        return head_flops(head.config, work)


class _Whole(Ours):
    """All rows in one pass, logits of a depth whole: what trainers do that know no passes and tiles."""

    cuts_rows: ClassVar = False

    def _settings(self, train: TrainSettings, num_tokens: int) -> TrainSettings:
        return replace(train, chunk=num_tokens, tile=num_tokens)


class Checkpoints(_Whole):
    """The same kernels with a checkpoint for each depth; losses of taught rows alone."""

    recomputes: ClassVar = True


class Hard(_Whole):
    """Nothing recomputed, and labels in the place of distributions."""

    def _settings(self, train: TrainSettings, num_tokens: int) -> TrainSettings:
        return replace(super()._settings(train, num_tokens), loss="hard")


class Plain(Mode):
    """The training-time test of `train/reference.py`, whole, under autograd: all rows, all logits, no recomputation.

    With bf16 products it computes under autocast, with fp32 weights as ours.
    """

    def __init__(self, bench: Bench, batch: Batch, source: HiddenStates) -> None:
        super().__init__(bench, batch, source)
        config: Eagle3Config = bench.head_config(batch.num_tokens)
        head = find_making("eagle3").fresh(config, bench.ids_V, bench.teacher, num_depths=bench.train.depths, seed=0)
        self.head = self._reference = ReferenceHead(config, bench.ids_V)
        self.head.load_state_dict(head.state_dict())
        self.head.to(bench.device)
        self.optimizers = Optimizers(self.head, bench.train, 1000)
        self._number = 0

    @classmethod
    def refusal(cls, bench: Bench, length: int) -> str | None:
        if bench.head_settings.kind != "eagle3" or bench.train.loss != "kl":
            return "kl of an EAGLE-3 head alone"
        if bench.device.type == "cuda":
            return None  # it runs out of memory, or does not
        config = bench.head_config(length)
        scores = config.num_heads * length * length
        logits = length * (bench.target.vocab_size + 4 * config.draft_vocab_size)
        needed = 4 * bench.train.depths * (3 * scores + logits)
        return None if needed < SHARE_OF_FREE * available_bytes(bench.device) else "too little memory"

    def step(self) -> None:
        batch, teacher = self.batch, self.bench.teacher
        with torch.no_grad():
            states = self.source.states(batch)
        dtype = teacher.embed_VH.dtype
        assert states.last_TH is not None
        given = TttBatch(
            tokens_BT=batch.ids_T[None],
            taps_BTC=states.taps_TC[None],
            embedded_BTH=teacher.embed_VH[batch.ids_T][None],
            target_logits_BTV=F.linear(states.last_TH.to(dtype), teacher.lm_head_VH)[None],
            generated_BT=(batch.runs_T >= 0)[None],
            documents_BT=batch.documents_T[None],
        )
        with torch.autocast(self.bench.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            found = training_time_test(
                self._reference, given, num_steps=self.bench.train.depths, decay=self.bench.train.decay
            )
        found.loss.backward()
        self.optimizers.step(self._number)
        self._number += 1


MODES: dict[str, type[Ours] | type[Plain]] = {"ours": Ours, "checkpoints": Checkpoints, "plain": Plain, "hard": Hard}


def warmed_up(mode: type[Mode], bench: Bench, batch: Batch, source: HiddenStates) -> Mode | None:
    """Return a mode that has taken two steps, so that the optimiser's state is there; None if a GPU's memory is out."""
    try:
        one = mode(bench, batch, source)
        one.seconds()
        one.seconds()
        return one
    except torch.OutOfMemoryError:
        return None
    finally:
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()


def fits(mode: type[Mode], bench: Bench, share: float, length: int) -> bool:
    """Whether a GPU has memory for steps of a document of this length.

    Passes of ours need the same memory one after the other, so that those of two suffice to tell.
    """
    if mode is Ours:
        share = min(share, 2 * bench.train.rows_of_pass / length)
    try:
        batch, source = bench.batch(length, share), bench.source(length)
    except torch.OutOfMemoryError:
        return False
    return warmed_up(mode, bench, batch, source) is not None

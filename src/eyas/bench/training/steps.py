"""Training steps on random states of true shapes: ours, and plain autograd through the training-time test.

The parts of train and model that the benchmark needs: no other file of its folder imports those packages. It loads
torch, so the command imports it when it runs.

Shape letters: T tokens, R rows of a pass, C = len(taps) Ht, H hidden, V vocabulary, Vd draft vocabulary.
"""

from __future__ import annotations

import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.base.errors import UserError
from eyas.model.config import Eagle3Config, GptOssConfig
from eyas.model.devices import available_bytes, pick_device
from eyas.model.hardware import hardware
from eyas.model.live_bytes import LiveBytes
from eyas.model.making.presets import PRESETS
from eyas.train.heads.registry import find_making
from eyas.train.loop.prepared import target_name
from eyas.train.loss.tiles import normalisers
from eyas.train.reference import ReferenceHead, TttBatch, training_time_test
from eyas.train.settings.reading import read_settings
from eyas.train.settings.schema import HeadSettings, RunSettings, TrainSettings
from eyas.train.states.opening import find_target
from eyas.train.steps.optimizers import Optimizers
from eyas.train.steps.processes import Processes
from eyas.train.steps.trainer import Trainer, tiled_loss
from eyas.train.types import Batch, Segment, States, Teacher

__all__ = ["SHAPES", "WAYS", "Autograd", "Bench", "Ours", "Way", "fits", "hardware", "open_bench", "warmed_up"]

SHAPES = ("demo", "gpt-oss-20b", "gpt-oss-120b")
# The head that examples/train/demo.yaml makes; those of published heads for gpt-oss are the defaults.
DEMO_HEAD = HeadSettings(draft_vocab=2048, intermediate_size=1024, rope="default")
CERTAINTY = (
    10.0  # logit of the target's most likely token, of which others have a standard deviation of CERTAINTY / H^0.5
)
SHARE_OF_FREE = 0.8  # of a CPU's free memory that a step may be expected to take


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """Shapes, settings, and random matrices of the target."""

    target: GptOssConfig
    head_settings: HeadSettings
    train: TrainSettings
    device: torch.device
    dtype: torch.dtype  # of the states, as the target computes; heads compute in the teacher's
    teacher: Teacher
    ids_V: Tensor  # on the CPU

    def head_config(self, length: int) -> Any:
        making = find_making(self.head_settings.kind)
        return making.fresh_config(self.head_settings, self.target, context=length)

    def batch(self, length: int, share: float) -> tuple[Batch, States]:
        """Return one document: a prompt of random tokens, then an answer of `share` of all tokens, and its states.

        The target's most likely token is always in the draft vocabulary, so that each cell is trained.
        """
        generator = torch.Generator().manual_seed(length)
        config, given = self.head_config(length), length - max(1, round(share * length))
        at_T = torch.arange(length)
        batch = Batch(
            ids_T=torch.randint(self.target.vocab_size, (length,), generator=generator),
            runs_T=torch.where(at_T < given, -1, 0),
            segments_T=torch.where(at_T < given, int(Segment.GIVEN), int(Segment.FINAL)).to(torch.uint8),
            documents_T=torch.zeros_like(at_T),
            positions_T=at_T,
            starts=(0, length),
            sources=("random tokens",),
        ).to(self.device)
        best_T = self.ids_V[torch.randint(len(self.ids_V), (length,), generator=generator)].to(self.device)
        drawn = torch.Generator(self.device).manual_seed(length)
        width = len(config.taps) * config.target_hidden_size
        taps_TC = torch.randn((length, width), generator=drawn, device=self.device, dtype=self.dtype)
        return batch, States(taps_TC, CERTAINTY * self.teacher.lm_head_VH[best_T].to(self.dtype))


def open_bench(
    *, shape: str | None, file: Path | None, device: str, depths: int | None, loss: str | None
) -> tuple[Bench, str]:
    """Return the bench for a shape, or for the target and head of a settings file, and its name. Raises UserError."""
    where, dtype = pick_device(device)
    settings = RunSettings(head=DEMO_HEAD if shape == "demo" else HeadSettings())
    if file is not None:
        settings, name = read_settings(file), str(file)
        if settings.head.init is not None:
            raise UserError(f"{file}: head.init names a head; give its sizes instead, the weights here are random")
        target = find_target(target_name(settings.target), device=device).config
    elif shape in PRESETS:
        target, name = PRESETS[shape], shape
    else:
        target, name = find_target("demo", device=device).config, "demo"
    changes: dict[str, Any] = {}
    changes |= {} if depths is None else {"depths": depths}
    changes |= {} if loss is None else {"loss": loss}
    generator = torch.Generator(where).manual_seed(0)
    shape_VH = (target.vocab_size, target.hidden_size)
    computes = {"auto": dtype, "fp32": torch.float32, "bf16": torch.bfloat16}[settings.train.precision]
    embed_VH, lm_head_VH = (
        torch.randn(shape_VH, generator=generator, device=where, dtype=computes).mul_(target.hidden_size**-0.5)
        for _ in range(2)
    )
    size = find_making(settings.head.kind).fresh_config(settings.head, target, context=1).draft_vocab_size
    bench = Bench(
        target=target,
        head_settings=settings.head,
        train=replace(settings.train, **changes),
        device=where,
        dtype=dtype,
        teacher=Teacher(embed_VH, lm_head_VH),
        ids_V=torch.arange(size) * target.vocab_size // size,
    )
    return bench, name


class Way(ABC):
    """One way to take a training step, with weights and optimisers of its own."""

    def __init__(self, bench: Bench, batch: Batch, states: States) -> None:
        self.bench, self.batch, self.states = bench, batch, states

    @property
    @abstractmethod
    def head(self) -> torch.nn.Module: ...

    @property
    @abstractmethod
    def optimizers(self) -> Optimizers: ...

    @classmethod
    def refusal(cls, bench: Bench, length: int) -> str | None:
        """Return why this way cannot be measured at this length, if so."""
        return None

    @abstractmethod
    def step(self) -> None:
        """Take one step: losses, gradients, update."""

    def seconds(self) -> float:
        """Time one step."""
        self._wait()
        began = time.perf_counter()
        self.step()
        self._wait()
        return time.perf_counter() - began

    def peak_bytes(self) -> int:
        """Take one step and return its peak of memory beyond weights, gradients and optimiser; inputs are included.

        On a CPU the bytes of tensors are counted, of which all that are there before the step are left out.
        """
        gradients = sum(p.nbytes for p in self.head.parameters() if p.requires_grad)
        inputs = sum(x.nbytes for x in self.states if x is not None)
        if self.bench.device.type == "cuda":
            before = torch.cuda.memory_allocated(self.bench.device)
            torch.cuda.reset_peak_memory_stats(self.bench.device)
            self.step()
            self._wait()
            made = torch.cuda.max_memory_allocated(self.bench.device) - before
        else:
            there = [x for x in gc.get_objects() if issubclass(type(x), Tensor)]
            with LiveBytes(*there) as seen:
                self.step()
            made = seen.peak
        return made - gradients + inputs

    def _wait(self) -> None:
        if self.bench.device.type == "cuda":
            torch.cuda.synchronize(self.bench.device)


class _GivenStates:
    """A source of states that were made before. Implements `HiddenStates`."""

    def __init__(self, bench: Bench, config: Any, states: States) -> None:
        self.config, self.taps, self.teacher = bench.target, tuple(config.taps), bench.teacher
        self.fingerprint, self.labels_only = "random", False
        self._states = states

    def states(self, batch: Batch) -> States:
        return self._states


class Ours(Way):
    """The step of `eyas train run`."""

    def __init__(self, bench: Bench, batch: Batch, states: States) -> None:
        super().__init__(bench, batch, states)
        config = bench.head_config(batch.num_tokens)
        making = find_making(bench.head_settings.kind)
        head = making.fresh(config, bench.ids_V, bench.teacher, num_depths=bench.train.depths, seed=0)
        head.rows_of_pass, head.attention = bench.train.chunk, bench.train.attention
        source = _GivenStates(bench, config, states)
        self._loss = tiled_loss(head.to(bench.device), source, bench.train)
        self._trainer = Trainer(head, source, bench.train, rule="loose", num_steps=1000, processes=Processes())
        self._number = 0

    @property
    def head(self) -> torch.nn.Module:
        return self._trainer.head

    @property
    def optimizers(self) -> Optimizers:
        return self._trainer.optimizers

    def step(self) -> None:
        self._trainer.step(self._number, [self.batch])
        self._number += 1

    def shares(self) -> dict[str, float]:
        """Return the shares of a step's time by stage, from one more step that is taken apart."""
        head, loss, train, teacher = self._trainer.head, self._loss, self.bench.train, self.bench.teacher
        seconds: dict[str, float] = {}

        @contextmanager
        def timed(stage: str) -> Iterator[None]:
            self._wait()
            began = time.perf_counter()
            yield
            self._wait()
            seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - began

        with timed("teacher"):
            ready = loss.prepare(head.cells(self.batch, rule="loose"), self.states)
        by_J = normalisers(ready.trained_J, self.batch.num_tokens, train.compat)
        passes = iter(head.passes(self.batch, self.states, teacher, rule="loose", decay=train.decay))
        while True:
            with timed("forward"):
                began, one = time.perf_counter(), next(passes, None)
            if one is None:  # what comes after the last pass: keys and values of depth 0, backward
                self._wait()
                spent = time.perf_counter() - began
                seconds["forward"], seconds["keys, values"] = seconds["forward"] - spent, spent
                break
            with timed("loss"):
                _, grads = loss(one, ready, self.states, by_J)
            with timed("backward"):
                one.backward(grads)
        with timed("optimiser"):
            self.optimizers.step(self._number)
        self._number += 1
        total = sum(seconds.values())
        return {stage: spent / total for stage, spent in seconds.items()}


class Autograd(Way):
    """The training-time test of `train/reference.py`, whole, under autograd: all rows, all logits, no recomputation.

    With bf16 products it computes under autocast, with fp32 weights as ours.
    """

    def __init__(self, bench: Bench, batch: Batch, states: States) -> None:
        super().__init__(bench, batch, states)
        config: Eagle3Config = bench.head_config(batch.num_tokens)
        head = find_making("eagle3").fresh(config, bench.ids_V, bench.teacher, num_depths=bench.train.depths, seed=0)
        self._head = ReferenceHead(config, bench.ids_V)
        self._head.load_state_dict(head.state_dict())
        self._head.to(bench.device)
        self._optimizers = Optimizers(self._head, bench.train, 1000)
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

    @property
    def head(self) -> torch.nn.Module:
        return self._head

    @property
    def optimizers(self) -> Optimizers:
        return self._optimizers

    def step(self) -> None:
        batch, states, teacher = self.batch, self.states, self.bench.teacher
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
                self._head, given, num_steps=self.bench.train.depths, decay=self.bench.train.decay
            )
        found.loss.backward()
        self._optimizers.step(self._number)
        self._number += 1


WAYS: dict[str, type[Ours] | type[Autograd]] = {"ours": Ours, "autograd": Autograd}
SomeWay = TypeVar("SomeWay", bound=Way)


def warmed_up(way: type[SomeWay], bench: Bench, batch: Batch, states: States) -> SomeWay | None:
    """Return a way that has taken two steps, so that the optimiser's state is there; None if a GPU's memory is out."""
    try:
        one = way(bench, batch, states)
        one.seconds()
        one.seconds()
        return one
    except torch.OutOfMemoryError:
        return None
    finally:
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()


def fits(way: type[Way], bench: Bench, share: float, length: int) -> bool:
    """Whether a GPU has memory for steps of a document of this length."""
    try:
        batch, states = bench.batch(length, share)
    except torch.OutOfMemoryError:
        return False
    return warmed_up(way, bench, batch, states) is not None

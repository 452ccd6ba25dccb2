"""Inputs of a training benchmark: a head of true shapes, random documents and states, a target of random weights.

The parts of train and model that the benchmark needs are here and in `modes.py`: the command imports them when it runs,
since they load torch.

Shape letters: T tokens, R rows of a pass, C = len(taps) Ht, H hidden, V vocabulary, Vd draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eyas.base.errors import UserError
from eyas.model.checkpoints.placing import can_use_kernels
from eyas.model.config import GptOssConfig
from eyas.model.devices import grow_segments, pick_device
from eyas.model.hardware import hardware
from eyas.model.making.presets import PRESETS
from eyas.model.making.random_weights import random_target
from eyas.model.weights import TargetWeights, num_bytes
from eyas.train.heads.registry import find_making
from eyas.train.loop.planning import product_speed
from eyas.train.loop.prepared import target_name
from eyas.train.settings.reading import read_settings
from eyas.train.settings.schema import HeadSettings, RunSettings, TrainSettings
from eyas.train.states.opening import find_target
from eyas.train.states.source import HiddenStates
from eyas.train.states.target import TargetStates
from eyas.train.types import Batch, Segment, States, Teacher

__all__ = ["SHAPES", "Bench", "hardware", "open_bench", "product_speed"]

SHAPES = ("demo", "gpt-oss-20b", "gpt-oss-120b")
# The head that examples/train/demo.yaml makes; those of published heads for gpt-oss are the defaults.
DEMO_HEAD = HeadSettings(draft_vocab=2048, intermediate_size=1024, rope="default")
CERTAINTY = (
    10.0  # logit of the target's most likely token, of which others have a standard deviation of CERTAINTY / H^0.5
)


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
    weights: TargetWeights | None  # of a target that makes the states in every step

    @property
    def target_bytes(self) -> int:
        """Return the bytes of the target's weights, its embedding aside, which is the teacher's."""
        if self.weights is None:
            return 0
        return num_bytes(self.weights) - self.weights.embed_VH.nbytes

    def head_config(self, length: int) -> Any:
        making = find_making(self.head_settings.kind)
        return making.fresh_config(self.head_settings, self.target, context=length)

    def batch(self, length: int, share: float, runs: int = 1) -> Batch:
        """Return one document of random tokens, of which `share` are generated, in runs at equal distances.

        Each run ends where the next stretch of given tokens begins; one run is an answer at the end of a prompt.
        """
        generator = torch.Generator().manual_seed(length)
        at_T = torch.arange(length)
        number_T = at_T * runs // length
        ends_T = (number_T + 1) * length // runs
        generated_T = ends_T - at_T <= max(1, round(share * length / runs))
        return Batch(
            ids_T=torch.randint(self.target.vocab_size, (length,), generator=generator),
            runs_T=torch.where(generated_T, number_T, -1),
            segments_T=torch.where(generated_T, int(Segment.FINAL), int(Segment.GIVEN)).to(torch.uint8),
            documents_T=torch.zeros_like(at_T),
            positions_T=at_T,
            starts=(0, length),
            sources=("random tokens",),
        ).to(self.device)

    def source(self, length: int) -> HiddenStates:
        """Return what makes the states of documents of this length: the target, or random ones made before."""
        taps = tuple(self.head_config(length).taps)
        if self.weights is None:
            return _GivenStates(self, taps, self._states(length))
        return TargetStates(
            self.target, self.weights, self.teacher, taps=taps, longest=length, fingerprint="random weights"
        )

    def _states(self, length: int) -> States:
        """Return random states. The most likely token is in the draft vocabulary, so that each cell is trained."""
        generator = torch.Generator().manual_seed(length)
        config = self.head_config(length)
        best_T = self.ids_V[torch.randint(len(self.ids_V), (length,), generator=generator)].to(self.device)
        drawn = torch.Generator(self.device).manual_seed(length)
        width = len(config.taps) * config.target_hidden_size
        taps_TC = torch.randn((length, width), generator=drawn, device=self.device, dtype=self.dtype)
        return States(taps_TC, CERTAINTY * self.teacher.lm_head_VH[best_T].to(self.dtype))


class _GivenStates:
    """A source of states that were made before. Implements `HiddenStates`."""

    def __init__(self, bench: Bench, taps: tuple[int, ...], states: States) -> None:
        self.config, self.taps, self.teacher = bench.target, taps, bench.teacher
        self.fingerprint, self.labels_only = "random", False
        self._states = states

    def states(self, batch: Batch) -> States:
        return self._states


def open_bench(
    *, shape: str | None, file: Path | None, device: str, with_target: bool = False, **changes: Any
) -> tuple[Bench, str]:
    """Return the bench for a shape, or for the target and head of a settings file, and its name. Raises UserError.

    `changes` are settings of `train` in place of those of the file; None changes nothing.
    """
    grow_segments()
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
    changes = {name: value for name, value in changes.items() if value is not None}
    generator = torch.Generator(where).manual_seed(0)
    shape_VH = (target.vocab_size, target.hidden_size)
    computes = {"auto": dtype, "fp32": torch.float32, "bf16": torch.bfloat16}[settings.train.precision]
    embed_VH, lm_head_VH = (
        torch.randn(shape_VH, generator=generator, device=where, dtype=computes).mul_(target.hidden_size**-0.5)
        for _ in range(2)
    )
    size = find_making(settings.head.kind).fresh_config(settings.head, target, context=1).draft_vocab_size
    weights = None
    if with_target:  # with an embedding as small as the head's own, all rows of the target would become alike
        weights = random_target(target, where, is_packed=can_use_kernels(where, target))
        embed_VH = weights.embed_VH.to(computes)
    bench = Bench(
        target=target,
        head_settings=settings.head,
        train=replace(settings.train, **changes),
        device=where,
        dtype=dtype,
        teacher=Teacher(embed_VH, lm_head_VH),
        ids_V=torch.arange(size) * target.vocab_size // size,
        weights=weights,
    )
    return bench, name

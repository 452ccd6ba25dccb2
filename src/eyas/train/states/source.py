"""The interface to sources of the target's hidden states."""

from __future__ import annotations

from typing import Protocol

from eyas.model.config import GptOssConfig
from eyas.train.types import Batch, States, Teacher

__all__ = ["HiddenStates"]


class HiddenStates(Protocol):
    """Hidden states of a frozen target, made when a step needs them."""

    config: GptOssConfig
    taps: tuple[int, ...]
    teacher: Teacher
    labels_only: bool  # the most likely tokens in place of the last hidden states
    fingerprint: str  # of the target's weights: equal for equal checkpoints

    def states(self, batch: Batch) -> States:
        """Return the states of a batch on the device of `teacher`; nothing of them is kept for the caller."""

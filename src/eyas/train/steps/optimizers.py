"""Optimisers of a head: AdamW on fp32 master weights, Muon for matrices beside it; their state as named tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from eyas.train.settings.schema import TrainSettings
from eyas.train.steps.schedule import learning_rate_factor

__all__ = ["Optimizers"]


class Optimizers:
    """All optimisers of a head behind one step. Parameters without a gradient are left as they are."""

    def __init__(self, head: nn.Module, settings: TrainSettings, num_steps: int) -> None:
        self.clip = settings.clip
        self._named = {name: p for name, p in head.named_parameters() if p.requires_grad}
        is_hidden = {
            name: settings.optimizer == "muon" and p.ndim == 2 and not name.startswith("lm_head")
            for name, p in self._named.items()
        }
        adam = [p for name, p in self._named.items() if not is_hidden[name]]
        beta1, beta2 = settings.betas
        self._all: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(
                adam, lr=settings.lr, betas=(beta1, beta2), eps=settings.eps, weight_decay=settings.weight_decay
            )
        ]
        if matrices := [p for name, p in self._named.items() if is_hidden[name]]:
            self._all.append(torch.optim.Muon(matrices, lr=settings.muon_lr, weight_decay=settings.weight_decay))
        self._peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in self._all]
        self._settings, self._num_steps = settings, num_steps

    def step(self, number: int) -> tuple[float, float]:
        """Clip, update and clear the gradients in step 0, 1, ...; returns their norm before, and AdamW's rate."""
        norm = torch.nn.utils.clip_grad_norm_(self._named.values(), self.clip or float("inf"))
        factor = self._factor(number)
        for optimizer, peaks in zip(self._all, self._peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * factor
            optimizer.step()
        self.zero_grad()
        return float(norm), float(self._all[0].param_groups[0]["lr"])

    def _factor(self, number: int) -> float:
        settings = self._settings
        return learning_rate_factor(
            number,
            self._num_steps,
            schedule=settings.schedule,
            warmup=settings.warmup,
            final=settings.final_lr,
        )

    def zero_grad(self) -> None:
        for optimizer in self._all:
            optimizer.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state as tensors named `optimizer.parameter.value`."""
        found: dict[str, Tensor] = {}
        for number, optimizer in enumerate(self._all):
            for index, values in optimizer.state_dict()["state"].items():
                found |= {f"{number}.{index}.{name}": torch.as_tensor(value) for name, value in values.items()}
        return found

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over a state that `tensors` returned."""
        for number, optimizer in enumerate(self._all):
            whole = optimizer.state_dict()
            whole["state"] = {}
            for name, value in tensors.items():
                owner, index, field = name.split(".", 2)
                if int(owner) == number:
                    whole["state"].setdefault(int(index), {})[field] = value
            optimizer.load_state_dict(whole)

"""Figures of one step of training."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StepReport"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """Figures of one step, over all processes. Losses and hits are means over the taught cells of a depth."""

    step: int  # steps done
    loss: float  # weighted by depth
    loss_by_depth: tuple[float, ...]
    hits_by_depth: tuple[float, ...]
    acceptance_by_depth: tuple[float, ...]  # sum of min(p, q)
    grad_norm: float
    lr: float
    num_tokens: int
    num_taught: int  # cells of depth 0
    seconds: float
    target_seconds: float  # of these, for the target's hidden states
    peak_bytes: int

    def row(self) -> dict[str, object]:
        """Return the fields of metrics.jsonl."""
        return {
            "loss": self.loss,
            "loss_by_depth": list(self.loss_by_depth),
            "hits_by_depth": list(self.hits_by_depth),
            "acceptance_by_depth": list(self.acceptance_by_depth),
            "grad_norm": self.grad_norm,
            "lr": self.lr,
            "tokens": self.num_tokens,
            "taught": self.num_taught,
            "tokens_per_s": self.num_tokens / self.seconds,
            "taught_per_s": self.num_taught / self.seconds,
            "target_share": self.target_seconds / self.seconds,
            "peak_bytes": self.peak_bytes,
        }

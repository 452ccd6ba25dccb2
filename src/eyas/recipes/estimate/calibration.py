"""Losses of engines against bytes over bandwidth, by kind of hardware; the figures are in `data/speed.yaml`.

Slow memory leaves little to lose: engines reach 55-97 % of it. On HBM each layer costs 25-125 us that no bytes explain.
"""

from __future__ import annotations

from functools import cache

from msgspec import Struct

from eyas.recipes.knowledge.tables import DATA, read
from eyas.recipes.records import CPU, Hardware, Record

__all__ = ["Calibration", "Losses", "calibration", "hardware_kind"]

Span = tuple[float, float]  # better..worse


class Losses(Struct, frozen=True, kw_only=True):
    """Losses at one point between the better and the worse end."""

    layer_s: float
    efficiency: float
    row_s: float
    draft_s: float
    prefill_flops: float


class Calibration(Record, frozen=True, kw_only=True):
    """Cost model: a pass takes `layer_us` for each layer, `row_us` for each row, and its bytes at `efficiency` of the
    bandwidth; a draft step `draft_ms` more than its bytes. `prefill_tflops` is of one GPU."""

    layer_us: Span
    efficiency: Span
    row_us: Span
    draft_ms: Span
    prefill_tflops: Span

    def at(self, pessimism: float) -> Losses:
        """Interpolate: 0 is the better end, 1 the worse."""

        def between(span: Span) -> float:
            return span[0] + pessimism * (span[1] - span[0])

        return Losses(
            layer_s=between(self.layer_us) * 1e-6,
            efficiency=between(self.efficiency),
            row_s=between(self.row_us) * 1e-6,
            draft_s=between(self.draft_ms) * 1e-3,
            prefill_flops=between(self.prefill_tflops) * 1e12,
        )


def calibration(engine: str, hardware: Hardware) -> Calibration:
    return _calibrations()[f"{engine}-{hardware_kind(hardware)}"]


def hardware_kind(hardware: Hardware) -> str:
    """Return cpu, unified, gddr, ampere, hopper or blackwell: a GPU's losses depend on its memory first."""
    if hardware.compute_capability == CPU:
        return CPU
    if hardware.unified:
        return "unified"
    capability = hardware.compute_capability
    if capability in ("7.0", "8.0"):  # V100, A100
        return "ampere"
    return {"9": "hopper", "10": "blackwell"}.get(capability.split(".")[0], "gddr")


@cache
def _calibrations() -> dict[str, Calibration]:
    return read(DATA / "speed.yaml", Calibration)

"""Losses of engines against bytes over bandwidth, by kind of hardware.

`data/speed_fit.yaml` has what `tools/speed_fit.py` fits to published figures, `data/speed.yaml` what is known by hand:
the arithmetic of prompts, and guesses for engines without a figure on a kind of hardware that nothing else resembles.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

import msgspec
from msgspec import Struct

from eyas.recipes.knowledge.tables import DATA, load, read
from eyas.recipes.records import CPU, METAL, Hardware, Record

__all__ = [
    "FIT",
    "Calibration",
    "Centre",
    "Fit",
    "Link",
    "Losses",
    "Widths",
    "Work",
    "calibration",
    "calibrations",
    "fit",
    "hardware_kind",
]

FIT = DATA / "speed_fit.yaml"
Span = tuple[float, float]  # better..worse
Link = Literal["gpus", "nodes"]  # NVLink or PCIe in a machine; a network between machines of one GPU

# Factors by which a single loss may differ from its fitted value at the better and the worse end. Figures tell the sum
# of losses better than each of them, hence more than the width of a rate. They bound the cost of a draft.
LAYER, EFFICIENCY, ROW, DRAFT, REDUCE = 1.3, 1.12, 2.0, 2.5, 1.6


class Centre(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pass takes `layer_us` for each layer, `row_us` for each row, and its bytes at `efficiency` of the datasheet's
    bandwidth; a draft step `draft_ms` more than its bytes."""

    layer_us: float
    efficiency: float
    row_us: float
    draft_ms: float


class Guess(Centre, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A centre that no figure supports; `width` is a factor to either side of the rate."""

    width: float


class Widths(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Factors to either side of the expected rate, where something of that engine and box is published, or nothing."""

    published: float
    nothing: float


class Fit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Content of `speed_fit.yaml`. `reduce_us` is one all-reduce."""

    reduce_us: dict[Link, float]
    plain: Widths
    drafted: Widths
    losses: dict[str, Centre]


class Calibration(Record, frozen=True, kw_only=True):
    """Knowledge by hand of an engine on a kind of hardware. `prefill_tflops` is of one GPU."""

    prefill_tflops: Span
    guess: Guess | None = None


class Losses(Struct, frozen=True, kw_only=True):
    """Losses at one point between the better and the worse end."""

    layer_s: float
    efficiency: float
    row_s: float
    draft_s: float
    reduce_s: dict[Link, float]
    prefill_flops: float


class Work(Struct, frozen=True, kw_only=True):
    """Counts of a round: passes of layers, draft steps, rows, all-reduces over a link, and bytes over bandwidth."""

    layers: float
    drafts: float
    rows: float
    reductions: int
    link: Link
    reading_s: float

    def seconds(self, losses: Losses) -> float:
        fixed = self.layers * losses.layer_s + self.drafts * losses.draft_s + self.rows * losses.row_s
        return fixed + self.reductions * losses.reduce_s[self.link] + self.reading_s / losses.efficiency


class Speed(Struct, frozen=True, kw_only=True):
    """Losses of one engine on one kind of hardware."""

    centre: Centre
    known: Calibration
    reduce_us: dict[Link, float]

    def at(self, pessimism: float) -> Losses:
        """Go from the better end (0) over the centre (0.5) to the worse one (1)."""
        end = 2 * pessimism - 1
        better, worse = self.known.prefill_tflops
        return Losses(
            layer_s=self.centre.layer_us * LAYER**end * 1e-6,
            efficiency=self.centre.efficiency / EFFICIENCY**end,
            row_s=self.centre.row_us * ROW**end * 1e-6,
            draft_s=self.centre.draft_ms * DRAFT**end * 1e-3,
            reduce_s={link: value * REDUCE**end * 1e-6 for link, value in self.reduce_us.items()},
            prefill_flops=(better + pessimism * (worse - better)) * 1e12,
        )


def calibration(engine: str, hardware: Hardware) -> Speed:
    name = f"{engine}-{hardware_kind(hardware)}"
    known = calibrations()[name]
    return Speed(centre=known.guess or fit().losses[name], known=known, reduce_us=fit().reduce_us)


def hardware_kind(hardware: Hardware) -> str:
    """Return cpu, apple, unified, gddr, ampere, hopper or blackwell: a GPU's losses depend on its memory first."""
    if hardware.compute_capability == CPU:
        return CPU
    if hardware.compute_capability == METAL:
        return "apple"
    if hardware.unified:
        return "unified"
    capability = hardware.compute_capability
    if capability in ("7.0", "8.0"):  # V100, A100
        return "ampere"
    return {"9": "hopper", "10": "blackwell"}.get(capability.split(".")[0], "gddr")


@cache
def calibrations() -> dict[str, Calibration]:
    """The hand-written records by `ENGINE-KIND`."""
    return read(DATA / "speed.yaml", Calibration)


@cache
def fit() -> Fit:
    """The fitted losses and widths. Raises ValueError where the file is wrong."""
    try:
        return msgspec.convert(load(FIT), Fit)
    except msgspec.ValidationError as error:
        raise ValueError(f"{FIT.name}: {error}") from None

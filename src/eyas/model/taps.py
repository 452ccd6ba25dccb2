"""Interprets the layer ids in a head's config.json.

HS[i] is the residual stream entering layer i. An id i is read as HS[i] ("boundary": vLLM, speculators, SGLang since
its PR 32334, NVIDIA's v3 head) or as HS[i + 1] ("output" of layer i: SpecForge, ModelOpt's defaults, TensorRT-LLM).
No field says which. The rule of `auto`, first match wins:

1. no ids: HS[2], HS[L/2], HS[L-3], the default on which every framework agrees physically;
2. speculators format: boundary;
3. an id equal to L, or the default boundaries themselves: boundary;
4. first id 1 (the defaults of SpecForge and ModelOpt start so; SGLang's PR 25454 has the same rule): output, uncertain;
5. else boundary, uncertain, as vLLM and SGLang read it.

A wrong reading costs acceptance, never tokens; an uncertain one is reported to the user with both readings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from eyas.model.config import FINAL_NORM_TAP

__all__ = ["TapConvention", "TapReading", "default_taps", "read_taps", "show_taps"]

TapConvention = Literal["auto", "boundary", "output"]


class TapReading(NamedTuple):
    """The two readings; `taps` is the chosen one, low to high with the final norm last."""

    taps: tuple[int, ...]
    boundary: tuple[int, ...]
    output: tuple[int, ...]
    certain: bool


def default_taps(num_layers: int) -> tuple[int, ...]:
    """Return HS[2], HS[L/2], HS[L-3], in ascending order also where L < 6 would mix them up."""
    return tuple(sorted((min(2, num_layers), num_layers // 2, max(num_layers - 3, 0))))


def read_taps(
    ids: Sequence[int] | None, *, speculators: bool, num_layers: int, convention: TapConvention = "auto"
) -> TapReading:
    """Boundaries for the ids of a config; out-of-range ones are left to the caller, who reports them with the rest."""
    if not ids:
        taps = default_taps(num_layers)
        return TapReading(taps, taps, taps, True)
    boundary, output = _ordered(ids, 0), _ordered(ids, 1)
    layers = [i for i in ids if i != FINAL_NORM_TAP]
    if convention != "auto":
        return TapReading(boundary if convention == "boundary" else output, boundary, output, True)
    if not layers or speculators or num_layers in layers or boundary == default_taps(num_layers):
        return TapReading(boundary, boundary, output, True)
    return TapReading(output if min(layers) == 1 else boundary, boundary, output, False)


def _ordered(ids: Sequence[int], shift: int) -> tuple[int, ...]:
    """Sort taps as every framework concatenates them: in layer order, not the list's; -1, the final norm, goes last."""
    layers = sorted(i + shift for i in ids if i != FINAL_NORM_TAP)
    return tuple(layers) + tuple(i for i in ids if i == FINAL_NORM_TAP)


def show_taps(taps: Sequence[int]) -> str:
    return ", ".join("final norm" if tap == FINAL_NORM_TAP else f"HS[{tap}]" for tap in taps)

"""Chooses how a head's attention is computed at the start of a run: each way takes one pass, and the fastest stays.

A library is taken only if it is there for this shape and its results agree with those of our kernels: its backward pass
must take the output and log-sum-exp of a longer softmax, which no documentation promises.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from eyas.base.errors import UserError
from eyas.model.config import Eagle3Config
from eyas.train.heads.attention import Prefix
from eyas.train.heads.ways import WayName, find_way

__all__ = ["Choice", "choose_library", "settled"]

AGREEMENT = 2e-2  # relative, by norm: bf16 differs by up to 4e-3
REPEATS = 3
MOST_ROWS = 4096  # of the pass that is timed


class Choice(NamedTuple):
    way: WayName
    why: str  # for people


def settled(
    name: WayName,
    config: Eagle3Config,
    device: torch.device,
    dtype: torch.dtype,
    *,
    rows: int,
    longest: int,
    deterministic: bool,
) -> tuple[WayName, str | None]:
    """Return the way of a run of documents of up to `longest` tokens, in passes of `rows` rows, and why for people.

    `auto` measures where passes have keys for a library. With `deterministic` it takes what gives the same bits in
    every run. Raises UserError if a way is asked for by name that is not there, or does not give the same bits.
    """
    if deterministic and name in ("flash", "cudnn"):
        raise UserError(f"train.attention: {name} does not give the same bits in every run; use kernels or auto")
    way = find_way(name, config, device, dtype)
    if name != "auto":
        return name, None
    if not way.uses_kernels:
        return "plain", None
    if deterministic:
        return "kernels", "kernels, as train.deterministic asks for the same bits in every run"
    from eyas.train.heads.kernel_attention import GRAIN, MIN_KEYS, MIN_ROWS

    rows = min(rows, longest // 2, MOST_ROWS)
    keys = longest // 2 // GRAIN * GRAIN
    if rows < MIN_ROWS or keys < MIN_KEYS:
        return "kernels", "kernels: passes are too short for a library"
    return choose_library(config, device, dtype, rows=rows, keys=keys)


class _Pass(NamedTuple):
    """Inputs of a pass: the last rows of a document."""

    q_RGQD: Tensor
    keys_TGD: Tensor
    values_TGD: Tensor
    d_out_RGQD: Tensor


def choose_library(
    config: Eagle3Config,
    device: torch.device,
    dtype: torch.dtype,
    *,
    rows: int,
    keys: int,
    seconds: Callable[[Callable[[], object], torch.device], float] | None = None,
) -> Choice:
    """Return the fastest way of passes of `rows` rows that see `keys` keys and more, of ways that use our kernels.

    `seconds` times a call. Inputs are drawn from a generator of their own.
    """
    from eyas.kernels.training.library import LIBRARIES

    measure = seconds or _seconds
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=dtype)

    groups, dim = config.num_kv_heads, config.head_dim
    queries = (rows, groups, config.num_heads // groups, dim)
    inputs = _Pass(
        normal(*queries), normal(keys + rows, groups, dim), normal(keys + rows, groups, dim), normal(*queries)
    )
    wanted = _results(inputs, None)
    spent: dict[WayName, float] = {"kernels": measure(lambda: _results(inputs, None), device)}
    notes = []
    names: tuple[WayName, ...] = ("flash", "cudnn")
    for name in names:
        try:
            error = _error(_results(inputs, LIBRARIES[name]), wanted)
            if not error < AGREEMENT:
                notes.append(f"{name} is off by {error:.1e}")
                continue
            spent[name] = measure(lambda name=name: _results(inputs, LIBRARIES[name]), device)  # type: ignore[misc]
        except RuntimeError as problem:
            notes.append(f"{name} failed: {str(problem).splitlines()[0]}")
    best = min(spent, key=lambda name: spent[name])
    times = ", ".join(f"{name} {1e3 * value:.1f} ms" for name, value in spent.items())
    return Choice(best, "; ".join([f"{best} for passes of {rows:,} rows after {keys:,} keys: {times}", *notes]))


def _results(inputs: _Pass, library: object) -> dict[str, Tensor]:
    """Return output and gradients of the pass by one way."""
    from eyas.train.heads.kernel_attention import attend_by_kernels, pass_rows

    total, rows = len(inputs.keys_TGD), len(inputs.q_RGQD)
    at_R = torch.arange(total - rows, total, device=inputs.q_RGQD.device)
    sums = [torch.zeros(inputs.keys_TGD.shape, device=inputs.q_RGQD.device) for _ in "kv"]
    listed = pass_rows(at_R, range(total - rows, total), (0, total), has_library=library is not None)
    q = inputs.q_RGQD.detach().requires_grad_()
    with torch.enable_grad():
        out = attend_by_kernels(q, Prefix(inputs.keys_TGD, inputs.values_TGD, *sums), listed, (), library)  # type: ignore[arg-type]
    (d_q,) = torch.autograd.grad(out, q, inputs.d_out_RGQD)
    return {"out": out.detach(), "d q": d_q, "d k": sums[0], "d v": sums[1]}


def _error(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """Return the largest relative difference; nan counts as one."""
    errors = torch.stack([(found[name] - x).float().norm() / x.float().norm() for name, x in wanted.items()])
    return float(errors.nan_to_num(nan=torch.inf).max())


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    """Return the least time of some calls; one has warmed up what they need."""
    best = float("inf")
    for _ in range(REPEATS):
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        call()
        torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
    return best

"""`python -m tools.drafting.report`: the choice of drafts against none and against the best static number, SIMULATED.

Every cell of acceptance and batch runs for at least 2,000 rounds with several seeds. Ratios are of medians to what the
static number is expected to give, with a 95 % bootstrap interval over the seeds. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import dataclass
from statistics import median

from tools.drafting.machines import H200, SPARK, Machine
from tools.drafting.simulate import Sequences, auto, run, static_rate

__all__ = ["CELLS", "Cell", "measure"]

MAX_DRAFTS = 7
ROUNDS = 2_000
BATCHES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Cell:
    """A cell of the report; `chances` are conditional acceptance rates, each for an equal part of the tokens."""

    batch: int
    chances: tuple[float, ...]

    @property
    def name(self) -> str:
        return f"batch {self.batch}, acceptance {' then '.join(f'{chance:g}' for chance in self.chances)}"

    def chance(self, slot: int, done: float) -> float:
        return self.chances[min(int(done * len(self.chances)), len(self.chances) - 1)]


CELLS = [Cell(b, c) for b in (1, 4, 16) for c in ((0.1,), (0.3,), (0.5,), (0.7,), (0.9,), (0.9, 0.1), (0.1, 0.9))]


@dataclass(frozen=True)
class Result:
    best: int  # static number of drafts
    best_rate: float
    none_rate: float
    rates: list[float]  # of the choice, by seed
    probes: float  # share of the time that probes should have cost

    def ratio(self, base: float) -> tuple[float, float, float]:
        """Return the ratio of the median, with the interval of medians drawn with replacement."""
        rng = random.Random(0)
        drawn = sorted(median(rng.choices(self.rates, k=len(self.rates))) / base for _ in range(1000))
        return median(self.rates) / base, drawn[25], drawn[975]


def measure(
    machine: Machine, cell: Cell, num_seeds: int, rounds: int = ROUNDS, *, kind: type[Sequences] = Sequences
) -> Result:
    rates = [static_rate(machine, cell.batch, cell.chances, k) for k in range(MAX_DRAFTS + 1)]
    best = max(range(len(rates)), key=rates.__getitem__)
    # The tokens of this many rounds of the fastest static number, so never fewer rounds than that with fewer drafts.
    most = max(machine.seconds(cell.batch, cell.batch * (k + 1), k) * rates[k] for k in {0, best})
    found, probes = [], 0.0
    for seed in range(num_seeds):
        policy = auto(machine, MAX_DRAFTS, BATCHES, seed=seed)
        work = kind(cell.batch, cell.chance)
        found.append(run(policy, machine, work, num_tokens=int(rounds * most), seed=seed))
        probes += policy.probes_s / policy.elapsed_s / num_seeds
    return Result(best, rates[best], rates[0], found, probes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    print(f"SIMULATED: {seeds} seeds, {ROUNDS:,} rounds or more each, gpt-oss-120b with a 32,000-token head")
    figures = []
    for machine in (H200, SPARK):
        for cell in CELLS:
            result = measure(machine, cell, seeds)
            none, best = result.ratio(result.none_rate), result.ratio(result.best_rate)
            print(
                f"{machine.name}, {cell.name}: best static {result.best}; "
                + "; ".join(
                    f"auto/{name} {ratio[0]:.3f} ({ratio[1]:.3f}..{ratio[2]:.3f})"
                    for name, ratio in (("none", none), ("best", best))
                )
                + f"; probes {100 * result.probes:.2f} %",
                flush=True,
            )
            figures.append(
                {"machine": machine.name, "batch": cell.batch, "acceptance": cell.chances, "best_static": result.best}
                | {"vs_none": none, "vs_best_static": best, "probes": result.probes}
            )
    print(json.dumps({"simulated": True, "seeds": seeds, "rounds": ROUNDS, "cells": figures}))


if __name__ == "__main__":
    main()

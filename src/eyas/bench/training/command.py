"""`eyas train bench`: measures speed and memory of training steps, by document length and supervised share.

Heads have their true sizes, weights and states of the target are random, so no target is needed. Ours and plain
autograd take turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from eyas.base.errors import UserError
from eyas.base.units import readable
from eyas.bench.report import existing_file, listed, positive_int, print_json, provenance, table
from eyas.bench.stats import Spread, paired_ratio

if TYPE_CHECKING:
    from eyas.bench.training.steps import Bench

__all__ = ["add_arguments", "run"]

SIMULATED = "SIMULATED: weights and hidden states are random; times and memory are real, nothing is learnt"
STEP = 1024  # tokens: the longest document is found to this

DEFINITIONS = """\
step         losses at all depths, gradients and update for one document, its end supervised; without the target
autograd     train/reference.py: the training-time test as a whole under autograd, all rows and logits; takes turns with
             ours, and the ratio is ours over it, of the same turns
memory       peak of a step beyond weights, gradients and optimiser; states of the document included
stages       of the time of a step: the pass over the target's vocabulary, forward passes (keys and values of depth 0
             among them), loss, backward passes, keys and values of depth 0 backward, update
(min..max)   of the repeats, beside the median"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", type=existing_file, metavar="FILE",
        help="settings file: its target's and head's sizes, and its train section",
    )  # fmt: skip
    add = parser.add_argument
    add("--shape", metavar="NAME", help="sizes without a file: demo (default), gpt-oss-20b or gpt-oss-120b")
    add(
        "--lengths", type=listed(positive_int), default=(1024, 4096), metavar="LIST",
        help="tokens of a document (default: 1024,4096)",
    )  # fmt: skip
    add(
        "--supervised", type=listed(_share), default=(1.0, 0.3, 0.1), metavar="LIST",
        help="shares of its tokens that are supervised (default: 1,0.3,0.1)",
    )  # fmt: skip
    add("--depths", type=positive_int, metavar="N", help="drafts that are unrolled (default: of the settings, 7)")
    add("--loss", choices=("kl", "lk", "tv", "hard"), help="loss (default: of the settings, kl)")
    add("--repeats", type=positive_int, default=5, metavar="N", help="measured steps of each way (default: 5)")
    add("--device", default="auto", metavar="NAME", help="cpu, cuda, cuda:1, ...; auto takes a GPU where there is one")
    add(
        "--max-length", type=positive_int, metavar="N",
        help="on a GPU: also search the longest document, of at most N tokens, that a step has memory for",
    )  # fmt: skip


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"wants shares above 0 and up to 1, got {text}")
    return value


@dataclass(kw_only=True, slots=True)
class _Figures:
    """One way at one length and share."""

    tokens: int
    supervised: int
    seconds: Spread
    peak_bytes: int

    def rate(self) -> Spread:
        return Spread(tuple(self.tokens / value for value in self.seconds.values))

    def supervised_rate(self) -> Spread:
        return Spread(tuple(self.supervised / value for value in self.seconds.values))

    def json(self) -> dict[str, Any]:
        return {
            "tokens_per_s": self.rate().json(),
            "supervised_tokens_per_s": self.supervised_rate().json(),
            "step_s": self.seconds.json(),
            "peak_bytes": self.peak_bytes,
        }


def run(args: argparse.Namespace) -> int:
    from eyas.bench.training.steps import SHAPES, hardware, open_bench

    if args.file is not None and args.shape is not None:
        raise UserError("give a settings file or --shape, not both")
    if args.shape is not None and args.shape not in SHAPES:
        raise UserError(f"no shape '{args.shape}'; shapes are {', '.join(SHAPES)}")
    bench, name = open_bench(
        shape=args.shape or "demo", file=args.file, device=args.device, depths=args.depths, loss=args.loss
    )
    if args.max_length is not None and bench.device.type != "cuda":
        raise UserError("--max-length searches the memory of a GPU; on a CPU `eyas train plan` estimates it")
    if min(args.lengths) <= bench.train.depths + 1:
        raise UserError(f"--lengths wants documents of at least {bench.train.depths + 2} tokens for these depths")
    lines, origin = provenance(hardware(bench.device))
    print("\n".join([f"eyas train bench, head for {name}", SIMULATED, *lines]))
    print(
        f"step      {bench.train.depths} depths, loss {bench.train.loss}, products in {_dtype(bench)}, {args.repeats} repeats\n"
    )
    results = []
    for length in args.lengths:
        for share in args.supervised:
            found, text = _measure(bench, length, share, args.repeats)
            results.append(found)
            print("\n".join(text), flush=True)
    longest = None if args.max_length is None else _longest(bench, args.supervised, args.max_length)
    print(f"\n{DEFINITIONS}\n")
    print_json(
        {
            "bench": "train",
            "simulated": True,
            "shape": name,
            **origin,
            "depths": bench.train.depths,
            "loss": bench.train.loss,
            "dtype": _dtype(bench),
            "tile": bench.train.tile,
            "chunk": bench.train.chunk,
            "results": results,
            "longest": longest,
        }
    )
    return 0


def _dtype(bench: Bench) -> str:
    return str(bench.teacher.embed_VH.dtype).removeprefix("torch.")


def _measure(bench: Bench, length: int, share: float, repeats: int) -> tuple[dict[str, Any], list[str]]:
    """Return the figures of one length and share for the JSON, and lines for people."""
    from eyas.bench.training.steps import Autograd, Ours, Way, warmed_up

    batch, states = bench.batch(length, share)
    title = f"{length:,} tokens, {100 * share:g} % supervised"
    result: dict[str, Any] = {"tokens": length, "supervised": share}
    ours = warmed_up(Ours, bench, batch, states)
    if ours is None:
        return result | {"ours": None, "autograd": None, "why": "out of memory"}, [f"{title}: out of memory"]
    ways: dict[str, Way] = {"ours": ours}
    why = Autograd.refusal(bench, length)
    if why is None:
        if (base := warmed_up(Autograd, bench, batch, states)) is None:
            why = "out of memory"
        else:
            ways["autograd"] = base
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeats):
        for way, one in ways.items():
            seconds[way].append(one.seconds())
    supervised = int((batch.runs_T >= 0).sum())
    found = {
        way: _Figures(
            tokens=length, supervised=supervised, seconds=Spread(tuple(seconds[way])), peak_bytes=one.peak_bytes()
        )
        for way, one in ways.items()
    }
    shares = ours.shares()
    rows = [[way, x.rate().text(0), x.supervised_rate().text(0), readable(x.peak_bytes)] for way, x in found.items()]
    lines = [title, *(f"  {line}" for line in table(["", "tok/s", "supervised tok/s", "memory"], rows))]
    result |= {way: x.json() for way, x in found.items()} | {"stages": {k: round(v, 4) for k, v in shares.items()}}
    if "autograd" in found:
        ratio = paired_ratio(found["ours"].rate(), found["autograd"].rate())
        memory = found["ours"].peak_bytes / found["autograd"].peak_bytes
        result |= {"speed_ratio": ratio.json(), "memory_ratio": round(memory, 4)}
        lines.append(f"  ours over autograd: {ratio.text(2)} in speed, {memory:.3f} in memory")
    else:
        result |= {"autograd": None, "why": why}
        lines.append(f"  autograd not measured: {why}")
    return result, [*lines, f"  stages: {_stages(shares)}"]


def _stages(shares: dict[str, float]) -> str:
    return ", ".join(f"{stage} {100 * share:.0f} %" for stage, share in shares.items())


def _longest(bench: Bench, shares: Sequence[float], limit: int) -> dict[str, dict[str, int]]:
    """Return the longest document that fits by way and supervised share, and print each."""
    from eyas.bench.training.steps import WAYS, fits

    found: dict[str, dict[str, int]] = {}
    for way in [way for way in WAYS if WAYS[way].refusal(bench, limit) is None]:
        found[way] = {}
        for share in shares:
            tokens = longest_that_fits(partial(fits, WAYS[way], bench, share), limit, STEP)
            found[way][f"{share:g}"] = tokens
            note = ", the limit that was given" if tokens == limit else ""
            print(f"longest document, {way}, {100 * share:g} % supervised: {tokens:,} tokens{note}", flush=True)
    return found


def longest_that_fits(fits: Callable[[int], bool], limit: int, step: int) -> int:
    """Return the longest length up to `limit`, in multiples of `step` or `limit` itself, that fits; 0 if none does."""
    candidates: Sequence[int] = [*range(step, limit, step), limit]
    low, high = 0, len(candidates)  # the first `low` are known to fit, those from `high` on not to
    while low < high:
        middle = (low + high) // 2
        if fits(candidates[middle]):
            low = middle + 1
        else:
            high = middle
    return candidates[low - 1] if low else 0

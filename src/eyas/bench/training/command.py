"""`eyas train bench`: measures speed and memory of training steps, by document length and supervised share.

Heads have their true sizes; weights, and the states of the target or its weights, are random. Modes take turns.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyas.base.errors import UserError
from eyas.base.units import readable
from eyas.bench.report import existing_file, listed, positive_int, print_json, provenance, table
from eyas.bench.stats import Spread, paired_ratio

if TYPE_CHECKING:
    from eyas.bench.training.steps import Bench

__all__ = ["add_arguments", "run"]

SIMULATED = "SIMULATED: weights and hidden states are random; times and memory are real, nothing is learnt"
MODE_NAMES = ("ours", "checkpoints", "plain", "hard")
STEP = 1024  # tokens: the longest document is found to this

DEFINITIONS = """\
step         the target's states (with --with-target), losses at all depths, gradients and update for one document, its
             end supervised, or --runs stretches at equal distances; modes take turns, ratios are of the same turns
ours         the step of `eyas train run`
checkpoints  the same kernels with all rows in one pass, a checkpoint for each depth, a depth's logits whole
plain        train/reference.py: the training-time test as a whole under autograd, all rows and logits
hard         all rows in one pass, nothing recomputed, labels in the place of distributions
memory       by owner; `step` is the peak beyond all others, `driver` what the GPU's driver counts, of all modes
plan         the memory that `eyas train plan` counts, and how far it is from what the driver counts of ours alone
parts        seconds of a step of ours: states, the pass over the target's vocabulary, forward passes (keys and values
             of depth 0 among them), loss, backward passes, keys and values of depth 0 backward, update
FLOP/s       operations of the head's step that cannot be avoided, over the seconds of a step without the target; and
             as a share of a large product's, measured here
(min..max)   of the repeats, beside the median"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", type=existing_file, metavar="FILE",
        help="settings file: its target's and head's sizes, and its train section",
    )  # fmt: skip
    add = parser.add_argument
    add("--shape", metavar="NAME", help="sizes without a file: demo (default), gpt-oss-20b or gpt-oss-120b")
    add(
        "--tokens", type=listed(positive_int), default=(1024, 4096), metavar="LIST",
        help="tokens of a document (default: 1024,4096)",
    )  # fmt: skip
    add(
        "--supervised", type=listed(_share), default=(1.0, 0.3, 0.1), metavar="LIST",
        help="shares of its tokens that are supervised (default: 1,0.3,0.1)",
    )  # fmt: skip
    add("--runs", type=positive_int, default=1, metavar="N", help="stretches of supervised tokens (default: 1)")
    add(
        "--mode", type=listed(_mode), default=("ours", "plain"), metavar="LIST",
        help="ways of taking a step: ours, checkpoints, plain, hard (default: ours,plain)",
    )  # fmt: skip
    add("--with-target", action="store_true", help="a target of random weights makes the states in every step")
    add("--depths", type=positive_int, metavar="N", help="drafts that are unrolled (default: of the settings, 7)")
    add("--loss", choices=("kl", "lk", "tv", "hard"), help="loss (default: of the settings, kl)")
    add(
        "--attention", choices=("auto", "plain", "kernels", "flash", "cudnn"),
        help="attention of the head (default: of the settings, auto)",
    )  # fmt: skip
    add("--chunk", type=positive_int, metavar="N", help="rows of a pass of ours (default: of the settings, 2048)")
    add("--tile", type=positive_int, metavar="N", help="positions of a tile of its loss (default: of settings, 512)")
    add("--repeats", type=positive_int, default=5, metavar="N", help="measured steps of each way (default: 5)")
    add("--device", default="auto", metavar="NAME", help="cpu, cuda, cuda:1, ...; auto takes a GPU where there is one")
    add(
        "--max-length", type=positive_int, metavar="N",
        help="on a GPU: also search the longest document, of at most N tokens, that a step has memory for",
    )  # fmt: skip
    add("--lines", type=Path, metavar="FILE", help="also add each result to this file, a line of JSON when it is known")


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"wants shares above 0 and up to 1, got {text}")
    return value


def _mode(text: str) -> str:
    if text not in MODE_NAMES:
        raise argparse.ArgumentTypeError(f"wants some of {', '.join(MODE_NAMES)}, got {text}")
    return text


@dataclass(kw_only=True, slots=True)
class _Figures:
    """One mode at one length and share."""

    tokens: int
    supervised: int
    seconds: Spread
    memory: dict[str, int]

    @property
    def beyond(self) -> int:
        """Bytes beyond weights, gradients and optimiser; the target's weights and its matrices aside."""
        return self.memory["states"] + self.memory["step"]

    def rate(self) -> Spread:
        return Spread(tuple(self.tokens / value for value in self.seconds.values))

    def supervised_rate(self) -> Spread:
        return Spread(tuple(self.supervised / value for value in self.seconds.values))

    def json(self) -> dict[str, Any]:
        return {
            "tokens_per_s": self.rate().json(),
            "supervised_tokens_per_s": self.supervised_rate().json(),
            "step_s": self.seconds.json(),
            "peak_bytes": self.beyond,
            "bytes_by_owner": self.memory,
        }


def run(args: argparse.Namespace) -> int:
    from eyas.bench.training.steps import SHAPES, hardware, open_bench, product_speed

    if args.file is not None and args.shape is not None:
        raise UserError("give a settings file or --shape, not both")
    if args.shape is not None and args.shape not in SHAPES:
        raise UserError(f"no shape '{args.shape}'; shapes are {', '.join(SHAPES)}")
    bench, name = open_bench(
        shape=args.shape or "demo", file=args.file, device=args.device, with_target=args.with_target,
        depths=args.depths, loss=args.loss, attention=args.attention, chunk=args.chunk, tile=args.tile,
    )  # fmt: skip
    if args.max_length is not None and bench.device.type != "cuda":
        raise UserError("--max-length searches the memory of a GPU; on a CPU `eyas train plan` estimates it")
    if min(args.tokens) <= bench.train.depths + 1:
        raise UserError(f"--tokens wants documents of at least {bench.train.depths + 2} tokens for these depths")
    lines, origin = provenance(hardware(bench.device))
    print("\n".join([f"eyas train bench, head for {name}", SIMULATED, *lines]))
    what = f"{bench.train.depths} depths, loss {bench.train.loss}, products in {_dtype(bench)}"
    products = product_speed(bench.device, bench.teacher.embed_VH.dtype)
    print(f"step      {what}, {args.repeats} repeats; a large product {products / 1e12:.3g} TFLOP/s\n", flush=True)
    conditions = {
        "bench": "train",
        "simulated": True,
        "shape": name,
        **origin,
        "depths": bench.train.depths,
        "loss": bench.train.loss,
        "dtype": _dtype(bench),
        "attention": bench.train.attention,
        "tile": bench.train.rows_of_tile,
        "chunk": bench.train.rows_of_pass,
        "with_target": args.with_target,
        "runs": args.runs,
        "product_flops": products,
    }

    def keep(found: dict[str, Any]) -> None:
        if args.lines is not None:
            with args.lines.open("a", encoding="utf-8") as file:
                file.write(json.dumps(conditions | found) + "\n")

    results = []
    for length in args.tokens:
        for share in args.supervised:
            found, text = _measure(bench, args.mode, length, share, args.runs, args.repeats, products)
            keep(found)
            results.append(found)
            print("\n".join(text), flush=True)
    longest = None if args.max_length is None else _longest(bench, args.mode, args.supervised, args.max_length, keep)
    print(f"\n{DEFINITIONS}\n")
    print_json({**conditions, "results": results, "longest": longest})
    return 0


def _dtype(bench: Bench) -> str:
    return str(bench.teacher.embed_VH.dtype).removeprefix("torch.")


def _measure(
    bench: Bench, modes: Sequence[str], length: int, share: float, runs: int, repeats: int, products: float
) -> tuple[dict[str, Any], list[str]]:
    """Return the figures of one length and share for the JSON, and lines for people."""
    from eyas.bench.training.modes import MODES, Mode, Ours, warmed_up

    title = f"{length:,} tokens, {100 * share:g} % supervised" + (f" in {runs} runs" if runs > 1 else "")
    result: dict[str, Any] = {"tokens": length, "supervised": share, "modes": {}, "why_not": {}}
    batch, source = bench.batch(length, share, runs), bench.source(length)
    ready: dict[str, Mode] = {}
    for name in modes:
        why = MODES[name].refusal(bench, length)
        if why is None and (one := warmed_up(MODES[name], bench, batch, source)) is not None:
            ready[name] = one
        else:
            result["why_not"][name] = why or "out of memory"
    seconds: dict[str, list[float]] = {name: [] for name in ready}
    for _ in range(repeats):
        for name, one in ready.items():
            seconds[name].append(one.seconds())
    supervised = int((batch.runs_T >= 0).sum())
    found = {
        name: _Figures(tokens=length, supervised=supervised, seconds=Spread(tuple(seconds[name])), memory=one.memory())
        for name, one in ready.items()
    }
    rows = [[name, x.rate().text(0), x.supervised_rate().text(0), readable(x.beyond)] for name, x in found.items()]
    lines = [title, *(f"  {line}" for line in table(["", "tok/s", "supervised tok/s", "memory"], rows))]
    lines += [f"  {name} not measured: {why}" for name, why in result["why_not"].items()]
    result["modes"] = {name: x.json() for name, x in found.items()}
    if not isinstance(ours := ready.get("ours"), Ours):
        return result, lines
    result["ours_over"] = {}
    for name, other in found.items():
        if name != "ours":
            ratio = paired_ratio(found["ours"].rate(), other.rate())
            memory = found["ours"].beyond / other.beyond
            result["ours_over"][name] = {"speed": ratio.json(), "memory": round(memory, 4)}
            lines.append(f"  ours over {name}: {ratio.text(2)} in speed, {memory:.3f} in memory")
    parts, flops = ours.stages(), ours.flops()
    speed = sum(flops.values()) / (sum(parts.values()) - parts["target"])
    result |= {
        "way_of_attention": ours.way,
        "losses": [round(loss, 6) for loss in ours.losses],
        "planned_bytes": ours.planned(),
        "parts_s": {part: round(spent, 5) for part, spent in parts.items()},
        "flops": flops,
        "flops_per_s": speed,
        "share_of_products": round(speed / products, 4),
    }
    lines.append(f"  parts: {', '.join(f'{part} {1e3 * spent:.1f} ms' for part, spent in parts.items())}")
    lines.append(f"  {speed / 1e12:.3g} TFLOP/s, {100 * speed / products:.0f} % of a large product's")
    owners = found["ours"].memory.items()
    lines.append(f"  memory of ours: {', '.join(f'{owner} {readable(size)}' for owner, size in owners if size)}")
    planned, driver = ours.at_once(result["planned_bytes"]), found["ours"].memory["driver"]
    off = f", {100 * (planned / driver - 1):+.1f} % of the driver's" if driver and len(found) == 1 else ""
    lines.append(f"  plan {readable(planned)}{off}")
    return result, lines


def _longest(
    bench: Bench, modes: Sequence[str], shares: Sequence[float], limit: int, keep: Callable[[dict[str, Any]], None]
) -> dict[str, dict[str, int]]:
    """Return the longest document that fits by mode and supervised share; print and keep each."""
    from eyas.bench.training.modes import MODES, fits

    found: dict[str, dict[str, int]] = {}
    for name in [name for name in modes if MODES[name].refusal(bench, limit) is None]:
        found[name] = {}
        for share in shares:
            tokens = longest_that_fits(partial(fits, MODES[name], bench, share), limit, STEP)
            found[name][f"{share:g}"] = tokens
            keep({"longest": name, "supervised": share, "tokens": tokens})
            note = ", the limit that was given" if tokens == limit else ""
            print(f"longest document, {name}, {100 * share:g} % supervised: {tokens:,} tokens{note}", flush=True)
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

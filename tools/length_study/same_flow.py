"""Trains the example's head for some steps on a device; the engine on a CPU measures it.

The same steps on a GPU in bf16 and on a CPU in fp32, by the same weights and batches in the same order, should make
heads that differ by less than what the choice of prompts makes of an acceptance length.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tools.length_study.measuring import engine_events
from tools.length_study.records import read_results, result_path, write

from eyas.base.bundled import DEMO
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.bench.engine.rounds import count_content
from eyas.bench.prompts import read_prompts
from eyas.bench.report import table
from eyas.bench.stats import ratio_difference

__all__ = ["compare", "lines", "run"]

ROOT = Path(__file__).parents[2]
SETTINGS = ROOT / "examples" / "train" / "demo.yaml"
PROMPTS = ROOT / "tests" / "assets" / "demo_heldout.jsonl"
TEMPERATURES = (0, 1)
STEPS, PROMPT_COUNT, MAX_TOKENS = 200, 300, 256
SMALL = ("train.steps=2", "train.depths=2", "states.cache=0")
BASE = "same-cpu"


def run(args: argparse.Namespace) -> None:
    """Train on `args.device`."""
    head = args.out / "same" / args.device
    if not head.exists():
        run_folder = args.work / "runs" / f"same-{args.device}"
        shutil.rmtree(run_folder, ignore_errors=True)  # of a run that was cut
        given = [f"train.steps={args.steps or STEPS}", *(SMALL if args.small else ()), *args.overrides]
        command = ["-m", "eyas", "train", "run", str(SETTINGS), f"out={run_folder}", f"target.device={args.device}"]
        subprocess.run([sys.executable, *command, *given], check=True, cwd=ROOT, timeout=60 * args.minutes)
        shutil.copytree(run_folder / "head", head)


def compare(args: argparse.Namespace) -> None:
    """Measure every head in OUT/same that is not measured, and print what there is."""
    for found in sorted((args.out / "same").iterdir()):
        result = result_path(args.out, f"same-{found.name}", 0)
        if not result.exists():
            counts = measured(found, limit=2 if args.small else PROMPT_COUNT)
            write(result, {"arm": f"same-{found.name}", "seed": 0, "counts": counts})
    print("\n".join(lines(read_results(args.out))), flush=True)


def measured(head: Path, *, limit: int) -> dict[str, list[tuple[int, int]]]:
    """Return content tokens and rounds of each prompt, by temperature."""
    found, _ = read_prompts(PROMPTS, Tokenizer.load(DEMO), limit=limit)
    asked = [(prompt, MAX_TOKENS) for prompt in found]
    counts = {}
    for temperature in TEMPERATURES:
        codec, answers = engine_events("demo", head, asked, context=1024, temperature=temperature, device="cpu")
        content = [count_content(events, codec) for events in answers]
        counts[str(temperature)] = [(one.num_tokens, one.num_rounds) for one in content]
    return counts


def lines(results: dict[str, dict[int, Any]]) -> list[str]:
    """Return the lengths of all heads of this flow, and how far each is from that of the CPU."""
    rows = []
    heads = {arm: seeds[0] for arm, seeds in results.items() if arm.startswith("same-")}
    for arm, counts in heads.items():
        for temperature, pairs in counts.items():
            length = ratio_difference([pairs])
            cells = [arm.removeprefix("same-"), f"T={temperature}", length.text(3)]
            if arm != BASE and BASE in heads:
                base = heads[BASE][temperature]
                own = ratio_difference([base])
                is_within = own.low <= length.value <= own.high
                cells += [ratio_difference([pairs], [base]).text(3), "yes" if is_within else "NO"]
            rows.append(cells + [""] * (5 - len(cells)))
    return table(["device", "", "acceptance length", "minus the CPU's", "within the CPU's interval"], rows)

"""Repeats the comparison of losses with ten times the steps that a CPU had the time for, by `tools/bench_train.py`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

__all__ = ["ARMS", "run"]

ROOT = Path(__file__).parents[2]
CHATS = ROOT / "examples" / "train" / "demo_chats.jsonl"
ARMS = "kl,hard,lk,tv"
STEPS = 3000  # of 768 tokens: 2.3 million, where the study on a CPU had 228 thousand
SETTINGS = ("train.muon_lr=0.02", "train.lr=4e-3", "train.precision=bf16")  # those of that study
SMALL = ("--arms", "kl,hard", "--seeds", "1", "--steps", "2", "--prompts", "4")
SMALL_CHATS = 12


def run(args: argparse.Namespace) -> None:
    """Go on with the study in OUT/losses for as long as the minutes allow, and print its table."""
    small: tuple[str, ...] = ()
    if args.small:
        chats = args.work / "few.jsonl"
        chats.parent.mkdir(parents=True, exist_ok=True)
        chats.write_text("\n".join(CHATS.read_text().splitlines()[:SMALL_CHATS]) + "\n")
        small = (*SMALL, f"data.chats={chats}", "data.held_out_share=0")
    command = [
        str(ROOT / "tools" / "bench_train.py"), "--out", str(args.out / "losses"), "--work", str(args.work / "losses"),
        "--minutes", str(args.minutes - 0.3), "--arms", ARMS, "--seeds", str(args.seeds),
        "--steps", str(args.steps or STEPS), *small, *SETTINGS, *args.overrides,
    ]  # fmt: skip
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // 2))}  # of the engine that answers
    subprocess.run([sys.executable, *command], check=True, timeout=60 * args.minutes, env=os.environ | threads)

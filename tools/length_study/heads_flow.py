"""Trains heads on chats of up to 512 tokens and of up to 4,096, seed by seed, and lets the engine measure each.

Both arms see as many tokens, and as many taught ones, in as many steps; with a seed they begin with the same weights.
A chat of either arm is whole: a head of short chats has never seen a distance of 512 tokens. Its rotary frequencies
are those of the shipped head (base 10,000, not scaled), and positions count from 0 in either arm.

The engine measures a head on the CPU while the next one is trained.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from data import GENERATED, render_chat, write_rows
from head_run import head_settings, train_prepared
from reload import load_trainable
from target import TargetModel, Weights
from tools.length_study.measuring import measure, prompts_of
from tools.length_study.quoting import LEAST, QuoteWriter
from tools.length_study.records import result_path, write
from tools.length_study.sizes import Sizes

from eyas.base.bundled import DEMO
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.train.loop.prepared import Prepared, prepare_run
from eyas.train.records.metrics import read_metrics
from eyas.train.steps.processes import joined_processes
from train import Log, final_weights

__all__ = ["ARMS", "longest_measured", "measure_heads", "run", "write_chats"]

ARMS = ("short", "long")
SPARE = 1.1  # of the time of the longest head so far


def run(args: argparse.Namespace, sizes: Sizes) -> None:
    """Train and measure what is not measured yet, as much as the minutes allow."""
    log, measuring = Log(), Measuring(args)
    todo = [(seed, arm) for seed in range(args.seeds) for arm in ARMS if not result_path(args.out, arm, seed).exists()]
    heads = Heads(args, sizes, log)
    longest = 0.0
    try:
        for seed, arm in todo:
            began = time.monotonic()
            if began + SPARE * longest + longest_measured(args.out) > measuring.ends:
                break  # a head that is not measured here is lost where WORK is
            if heads.make(arm, seed):
                longest = max(longest, time.monotonic() - began)
            measuring.begin(arm, seed)
    finally:
        measuring.finish()
    missing = [f"{arm} {seed}" for seed, arm in todo if not result_path(args.out, arm, seed).exists()]
    log(f"not measured yet: {', '.join(missing)}; the same command goes on" if missing else "all heads are measured")


def longest_measured(out: Path) -> float:
    """Return the seconds that measuring a head took at most, as far as it is known."""
    found = [json.loads(path.read_text()) for arm in ARMS for path in (out / "results").glob(f"{arm}-*.json")]
    return max((one["seconds"] for one in found), default=0.0)


def head_path(work: Path, arm: str, seed: int) -> Path:
    return work / "heads" / f"{arm}-{seed}"


class Heads:
    """Trains heads one by one. What all of them share is loaded for the first one."""

    def __init__(self, args: argparse.Namespace, sizes: Sizes, log: Log) -> None:
        self._args, self._sizes, self._log = args, sizes, log
        self._target: tuple[TargetModel, Weights] | None = None
        self._prepared: dict[str, Prepared] = {}

    def make(self, arm: str, seed: int) -> bool:
        """Train a head unless its folder is there; return whether it was trained."""
        path = head_path(self._args.work, arm, seed)
        if path.exists():
            return False
        if self._target is None:
            self._target = self._loaded()
        if arm not in self._prepared:
            self._prepared[arm] = self._prepare(arm)
        prepared, run = self._prepared[arm], self._args.work / "runs" / f"{arm}-{seed}"
        shutil.rmtree(run, ignore_errors=True)  # of a run that was cut
        settings = replace(prepared.settings, out=str(run), train=replace(prepared.settings.train, seed=seed))
        model, weights = self._target
        with joined_processes(model.embed.device) as processes:
            head, facts = train_prepared(replace(prepared, settings=settings), model, weights, processes, self._log)
        steps = [row for row in read_metrics(run / "metrics.jsonl") if "taught" in row]
        facts |= {name: sum(row[name] for row in steps) for name in ("tokens", "taught")}
        facts["hits"] = steps[-1]["hits_by_depth"]
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(head, path.with_suffix(".partial"), dirs_exist_ok=True)
        path.with_suffix(".partial").rename(path)
        self._log(f"{arm} {seed}: {facts}")
        with (self._args.out / "heads.jsonl").open("a") as lines:
            lines.write(json.dumps({"arm": arm, "seed": seed, **facts}) + "\n")
        return True

    def _loaded(self) -> tuple[TargetModel, Weights]:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = load_trainable(self._args.out / "target", self._sizes.target).to(device)
        return model, final_weights(model, torch.bfloat16 if device.type == "cuda" else torch.float32)

    def _prepare(self, arm: str) -> Prepared:
        args, sizes = self._args, self._sizes
        path = args.work / f"{arm}.jsonl"
        found = write_chats(path, longest=sizes.short if arm == "short" else sizes.longest, tokens=sizes.chat_tokens)
        self._log(f"{arm}: {found}")
        settings = head_settings(
            target=args.out / "target",
            chats=path,
            out=args.work / "runs" / arm,
            overrides=(
                f"data.context={sizes.longest}",
                "data.held_out_share=0",
                f"train.steps={args.steps or sizes.head_steps}",
                *sizes.head,
                *args.overrides,
            ),
        )
        return prepare_run(settings)


def write_chats(path: Path, *, longest: int, tokens: int) -> dict[str, Any]:
    """Write chats of up to `longest` tokens, about `tokens` in all; return what they hold."""
    codec = Tokenizer.load(DEMO)
    writer = QuoteWriter(codec, Random(f"trained:{longest}"))
    rows, num_tokens, num_taught = [], 0, 0
    while num_tokens < tokens:
        chat = writer.chat(LEAST, longest)
        ids, codes = render_chat(codec, chat)
        rows.append(chat.row())
        num_tokens, num_taught = num_tokens + len(ids), num_taught + codes.count(GENERATED)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_rows(path, rows)
    return {"chats": len(rows), "tokens": num_tokens, "taught": round(num_taught / num_tokens, 4)}


class Measuring:
    """Measures heads in processes of their own, one at a time."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.ends = time.monotonic() + 60 * args.minutes
        self._args = args
        self._running: subprocess.Popen[bytes] | None = None

    def begin(self, arm: str, seed: int) -> None:
        self.finish()
        args = self._args
        command = [sys.executable, "-m", "tools.length_study", "measure", "--only", f"{arm}-{seed}"]
        command += ["--out", str(args.out), "--work", str(args.work), "--device", args.device]
        command += ["--small"] if args.small else []
        threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // 2))}
        with (args.out / "log.txt").open("ab") as log:
            self._running = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, env=os.environ | threads
            )

    def finish(self) -> None:
        """Wait for the head that is being measured; it is given up where the time is over."""
        if self._running is None:
            return
        try:
            self._running.wait(max(0.0, self.ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(self._running.pid, signal.SIGKILL)
            self._running.wait()
        self._running = None


def measure_heads(args: argparse.Namespace, sizes: Sizes) -> None:
    """Measure the heads that have no result yet, or one of them alone."""
    prompts = prompts_of(Tokenizer.load(DEMO), count=sizes.prompts, longest=sizes.longest)
    for path in sorted((args.work / "heads").glob("*-*[0-9]")):
        arm, _, seed = path.name.partition("-")
        result = result_path(args.out, arm, int(seed))
        if result.exists() or args.only not in (None, path.name):
            continue
        began = time.perf_counter()
        counts = measure(args.out / "target", path, prompts, longest=sizes.longest, device=args.device)
        seconds = round(time.perf_counter() - began, 1)
        write(result, {"arm": arm, "seed": int(seed), "device": args.device, "seconds": seconds, "counts": counts})
        print(f"{path.name}: measured in {seconds} s", flush=True)

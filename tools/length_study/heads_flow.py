"""Trains heads on chats of up to 512 tokens and of up to 4,096, seed by seed; the engine measures them.

With a seed both arms begin with the same head, trained on short chats alone, and go on for as many tokens, and as
many taught ones, in as many steps. The long arm then has the target's mixture of lengths, half of its tokens in short
chats. (Begun fresh, a head learns to quote from chats of up to 512 tokens in 600 steps of 8,192, and from this
mixture not in 1,600.)

A chat is whole: a head of short chats has never seen a distance of 512 tokens. Its rotary frequencies are those of
the shipped head (base 10,000, not scaled), and positions count from 0.
"""

from __future__ import annotations

import argparse
import json
import shutil
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
from tools.length_study.quoting import QuoteWriter
from tools.length_study.records import result_path, write
from tools.length_study.sizes import Sizes

from eyas.base.bundled import DEMO
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.train.loop.prepared import prepare_run
from eyas.train.records.metrics import read_metrics
from eyas.train.settings.schema import RunSettings
from eyas.train.steps.processes import joined_processes
from train import Log, final_weights

__all__ = ["ARMS", "BASE", "measure_heads", "run", "write_chats"]

ARMS, BASE = ("short", "long"), "base"
SPARE = 1.1  # of the time of the longest head so far


def run(args: argparse.Namespace, sizes: Sizes) -> None:
    """Train what heads there are not yet, as many as the minutes allow."""
    ends, longest, log = time.monotonic() + 60 * args.minutes, 0.0, Log()
    todo = [(seed, arm) for seed in range(args.seeds) for arm in (BASE, *ARMS) if args.only in (None, f"{arm}-{seed}")]
    heads = Heads(args, sizes, log)
    for seed, arm in todo:
        if (began := time.monotonic()) + SPARE * longest > ends:
            break
        heads.make(arm, seed)
        longest = max(longest, time.monotonic() - began)
    missing = [f"{arm} {seed}" for seed, arm in todo if not head_path(args.out, arm, seed).exists()]
    log(f"not trained yet: {', '.join(missing)}; the same command goes on" if missing else "all heads are trained")


def head_path(out: Path, arm: str, seed: int) -> Path:
    return out / "heads" / f"{arm}-{seed}"


class Heads:
    """Trains heads one by one. What all of them share is loaded for the first one."""

    def __init__(self, args: argparse.Namespace, sizes: Sizes, log: Log) -> None:
        self._args, self._sizes, self._log = args, sizes, log
        self._target: tuple[TargetModel, Weights] | None = None
        self._settings: dict[int, RunSettings] = {}  # by the longest chat

    def make(self, arm: str, seed: int) -> None:
        """Train a head unless its folder is there. One that was stopped before its last step is not kept."""
        path, base = head_path(self._args.out, arm, seed), head_path(self._args.out, BASE, seed)
        if path.exists():
            return
        if arm != BASE:
            self.make(BASE, seed)
        if self._target is None:
            self._target = self._loaded()
        longest = self._sizes.longest if arm == "long" else self._sizes.short
        if longest not in self._settings:
            self._settings[longest] = self._of_chats(longest)
        settings, run = self._settings[longest], self._args.work / "runs" / f"{arm}-{seed}"
        shutil.rmtree(run, ignore_errors=True)  # of a run that was cut
        settings = replace(settings, out=str(run), train=replace(settings.train, seed=seed))
        if arm != BASE:
            settings = replace(settings, head=replace(settings.head, init=str(base)))
        model, weights = self._target
        with joined_processes(model.embed.device) as processes:
            head, facts = train_prepared(prepare_run(settings), model, weights, processes, self._log)
        steps = [row for row in read_metrics(run / "metrics.jsonl") if "taught" in row]
        facts |= {name: sum(row[name] for row in steps) for name in ("tokens", "taught")}
        facts["hits"] = steps[-1]["hits_by_depth"]
        if facts["head_steps"] < settings.train.steps:
            raise SystemExit(
                f"{arm} {seed} was stopped after {facts['head_steps']} steps; the same command begins again"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(head, path.with_suffix(".partial"), dirs_exist_ok=True)
        path.with_suffix(".partial").rename(path)
        self._log(f"{arm} {seed}: {facts}")
        with (self._args.out / "heads.jsonl").open("a") as lines:
            lines.write(json.dumps({"arm": arm, "seed": seed, **facts}) + "\n")

    def _loaded(self) -> tuple[TargetModel, Weights]:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = load_trainable(self._args.out / "target", self._sizes.target).to(device)
        return model, final_weights(model, torch.bfloat16 if device.type == "cuda" else torch.float32)

    def _of_chats(self, longest: int) -> RunSettings:
        """Write chats of up to `longest` tokens, and return the settings of a run with them."""
        args, sizes = self._args, self._sizes
        path = args.work / f"chats-{longest}.jsonl"
        found = write_chats(path, longest=longest, tokens=sizes.chat_tokens)
        self._log(f"chats of up to {longest} tokens: {found}")
        return head_settings(
            target=args.out / "target",
            chats=path,
            out=args.work / "runs",  # each head has its own
            overrides=(
                f"data.context={sizes.longest}",
                "data.held_out_share=0",
                f"train.steps={args.steps or sizes.head_steps}",
                *sizes.head,
                *args.overrides,
            ),
        )


def write_chats(path: Path, *, longest: int, tokens: int) -> dict[str, Any]:
    """Write chats of up to `longest` tokens, about `tokens` in all; return what they hold."""
    codec = Tokenizer.load(DEMO)
    writer = QuoteWriter(codec, Random(f"trained:{longest}"))
    rows, num_tokens, num_taught = [], 0, 0
    while num_tokens < tokens:
        chat = writer.mixed_chat(longest)
        ids, codes = render_chat(codec, chat)
        rows.append(chat.row())
        num_tokens, num_taught = num_tokens + len(ids), num_taught + codes.count(GENERATED)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_rows(path, rows)
    return {"chats": len(rows), "tokens": num_tokens, "taught": round(num_taught / num_tokens, 4)}


def measure_heads(args: argparse.Namespace, sizes: Sizes) -> None:
    """Measure the heads that have no result yet, or one of them alone."""
    prompts = prompts_of(Tokenizer.load(DEMO), count=sizes.prompts, longest=sizes.longest)
    for path in sorted((args.out / "heads").glob("*-*[0-9]")):
        arm, _, seed = path.name.partition("-")
        result = result_path(args.out, arm, int(seed))
        if arm == BASE or result.exists() or args.only not in (None, path.name):
            continue
        began = time.perf_counter()
        counts = measure(args.out / "target", path, prompts, longest=sizes.longest, device=args.device)
        seconds = round(time.perf_counter() - began, 1)
        write(result, {"arm": arm, "seed": int(seed), "device": args.device, "seconds": seconds, "counts": counts})
        print(f"{path.name}: measured in {seconds} s", flush=True)

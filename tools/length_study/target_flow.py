"""Trains the demo's target to quote from far back, and says how well it does, by distance.

It begins with the bundled target, which has learnt to copy numbers and names: a fresh one copies nothing for long. A
target that is there already is trained on, with chats of its own and a learning rate that rises and falls again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch
from data import CONTEXT, IGNORED, Draw, ShardStream, render_chat
from export import check_sizes, export_target
from reload import load_trainable
from target import TargetModel
from tools.length_study.accuracy import quote_accuracy
from tools.length_study.quoting import QuoteWriter
from tools.length_study.sizes import Sizes
from train_target import train_target

from eyas.base.bundled import DEMO
from eyas.base.tokens.tokenizer import TextCodec, Tokenizer
from train import Log, final_weights, reload_difference

__all__ = ["begun", "quote_draw", "run"]

RATE = 0.3  # of the learning rates of a fresh target
RESERVE = 45.0  # seconds for what follows the training
BAR = 0.95  # of quoted tokens that have to be right at every distance


def quote_draw(codec: TextCodec, rng: Random, *, longest: int) -> Draw:
    """Draw chats with quotes of up to `longest` tokens. Nothing can predict notes, so they have no weight."""
    writer = QuoteWriter(codec, rng)

    def draw() -> tuple[list[int], list[int]]:
        ids, codes = render_chat(codec, writer.mixed_chat(longest))
        return ids, [IGNORED if code == CONTEXT else code for code in codes]

    return draw


def begun(out: Path, sizes: Sizes) -> tuple[TargetModel, int]:
    """Return the target to train, and how many runs of this flow it has had."""
    if not (out / "target.json").exists():
        if sizes.begins_with is not None:
            return load_trainable(sizes.begins_with, sizes.target), 0
        return TargetModel(sizes.target, torch.Generator().manual_seed(0)), 0
    return load_trainable(out / "target", sizes.target), json.loads((out / "target.json").read_text())["runs"]


def run(args: argparse.Namespace, sizes: Sizes) -> None:
    ends, log = time.perf_counter() + 60 * args.minutes - RESERVE, Log()
    model, runs = begun(args.out, sizes)
    stream = ShardStream(  # before CUDA is touched: workers are forked
        DEMO, length=sizes.longest, seed=runs, num_shards=sizes.shards, shard_rows=sizes.shard_rows,
        workers=1 if args.small else 0, chats=partial(quote_draw, longest=sizes.longest),
    )  # fmt: skip
    try:
        figures = _train(args, sizes, model, stream, lambda: ends - time.perf_counter(), log)
    finally:
        stream.close()
    figures["runs"] = runs + 1
    (args.out / "target.json").write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures), flush=True)


def _train(
    args: argparse.Namespace,
    sizes: Sizes,
    model: TargetModel,
    stream: ShardStream,
    seconds: Callable[[], float],
    log: Log,
) -> dict[str, Any]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    model = model.to(device)
    steps = sizes.target_steps
    began = time.perf_counter()
    figures = train_target(
        model,
        stream.batches(sizes.rows),
        seconds=None if steps else seconds,
        steps=steps,
        dtype=dtype,
        compiled=device.type == "cuda",
        log=log,
        rate=1.0 if sizes.begins_with is None else RATE,
    )
    spent = time.perf_counter() - began
    figures |= {"seconds": round(spent, 1), "tokens_per_s": round(figures["target_tokens"] / spent)}
    figures["data_passes"] = round(stream.num_passes, 2)
    log(f"trained: {figures['target_tokens'] / 1e6:.1f}M tokens, {figures['tokens_per_s']:,} a second, all included")
    weights, folder = final_weights(model, dtype), args.out / "target"
    export_target(model, folder, DEMO / "tokenizer.json")
    figures["bytes"] = check_sizes(folder)
    figures["reload_difference"] = reload_difference(folder, model, weights, device, dtype)
    found = quote_accuracy(model, weights, Tokenizer.load(DEMO), count=sizes.checked, longest=sizes.longest)
    figures |= found
    figures["quotes_far_back"] = all(one["tokens"] >= BAR for one in found["by_distance"].values())
    for name, shares in found.items():
        for bucket, one in shares.items():
            log(f"{name} {bucket}: {one}")
    return figures

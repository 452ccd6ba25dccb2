"""Trains, exports and evaluates the demo model in one go: `PYTHONPATH=src python tools/demo/train.py --out out/demo`.

Everything is seeded; the target's schedule follows the clock, and the head has fewer steps where time is short, so that
a run ends on time on any device and only about repeats. `--out` gets the files of the package and metrics.json,
`--work` what else is made: the chats of the head, and the folder of its run. Prints for people, and one JSON line last.
`--target DIR` takes an exported target and trains the head alone.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from data import ShardStream
from evaluate import answers, dev_rows, held_out_loss, tool_answers
from export import check_sizes, export_target
from facts import load_facts
from head_run import train_head, write_chats
from reload import load_trainable
from shapes import SMOKE_TARGET, TARGET
from target import TargetModel, Weights, hidden_states
from train_target import train_target

from eyas.base.bundled import DEMO, OWN_HEAD
from eyas.base.tokens.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
HELD_OUT = ROOT / "tests" / "assets" / "demo_heldout.jsonl"
HELD_OUT_TOOLS = ROOT / "tests" / "assets" / "demo_heldout_tools.jsonl"
EVALUATION_SECONDS = 25.0  # kept for what follows the steps of the head
# A run of seconds: some short documents, a few steps, chats enough to hold some out.
SMOKE_HEAD = (
    "train.steps=4",
    "train.depths=2",
    "train.batch_tokens=1024",
    "train.log_every=2",
    "data.context=1024",
    "data.held_out_share=0.3",
)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=Path("out/demo"))
    parser.add_argument("--work", type=Path, help="default: OUT with -work behind its name")
    parser.add_argument("--target", type=Path, help="an exported target: train the head alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target-seconds", type=float, default=300)
    parser.add_argument("--chat-seconds", type=float, default=45, help="for answering chats")
    parser.add_argument("--wall-seconds", type=float, default=550, help="the head's time shrinks to keep to this")
    parser.add_argument("--rows", type=int, default=32, help="rows of a batch for the target")
    parser.add_argument("--length", type=int, default=1024, help="tokens of a row")
    parser.add_argument("--chats", type=int, default=24576, help="chats that the target answers for the head")
    parser.add_argument("--workers", type=int, default=0, help="processes that make data; 0: by the number of cores")
    parser.add_argument("--no-compile", dest="compiled", action="store_false")
    parser.add_argument(
        "--smoke", action="store_true", help="for a CPU: a miniature target, and a head for the bundled one"
    )
    args = parser.parse_args(argv)
    args.work = args.work or args.out.with_name(f"{args.out.name}-work")
    if args.smoke:
        args.rows, args.chats, args.length = 4, 16, 512
    return args


class Log:
    def __init__(self) -> None:
        self.started = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def __call__(self, text: str) -> None:
        print(f"[{self.seconds:6.1f}s] {text}", flush=True)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    args, log = parse(argv), Log()
    stream = None
    if args.target is None:  # before CUDA is touched: workers are forked
        shards = {"num_shards": 4, "shard_rows": 64} if args.smoke else {"num_shards": 320, "shard_rows": 1024}
        stream = ShardStream(DEMO, length=args.length, seed=args.seed, workers=args.workers, **shards)
        log("data workers started")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(args.seed)
    figures: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "seed": args.seed,
    }
    tokenizer = Tokenizer.load(DEMO)
    folder = args.target or args.out
    if stream is None:
        model = load_trainable(args.target, TARGET).to(device)
    else:
        try:
            model = target_phase(args, log, stream, device, dtype, figures)
        finally:
            stream.close()
    weights = final_weights(model, dtype)
    if stream is not None:
        export_target(model, args.out, DEMO / "tokenizer.json")
        figures["reload_difference"] = reload_difference(args.out, model, weights, device, dtype)
        log(f"exported target; logits of the reloaded file differ by {figures['reload_difference']}")
    evaluate_target(args, log, model, weights, tokenizer, figures)
    write_metrics(args, log, figures)
    if args.smoke and args.target is None:  # the miniature has learnt nothing to answer with
        folder, model = DEMO, load_trainable(DEMO, TARGET).to(device)
        weights = final_weights(model, dtype)
    head_phase(args, log, folder, model, weights, tokenizer, figures)
    figures["bytes"] = check_sizes(args.out)
    write_metrics(args, log, figures)
    print(json.dumps(figures), flush=True)
    return figures


@torch.no_grad()
def final_weights(model: TargetModel, dtype: torch.dtype) -> Weights:
    return model.weights(dtype=dtype, quantized=True)


def write_metrics(args: argparse.Namespace, log: Log, figures: dict[str, Any]) -> None:
    figures["wall_s"] = round(log.seconds, 1)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "metrics.json").write_text(json.dumps(figures, indent=2) + "\n")


def target_phase(
    args: argparse.Namespace,
    log: Log,
    stream: ShardStream,
    device: torch.device,
    dtype: torch.dtype,
    figures: dict[str, Any],
) -> TargetModel:
    generator = torch.Generator().manual_seed(args.seed)
    model = TargetModel(SMOKE_TARGET if args.smoke else TARGET, generator).to(device)
    began = time.perf_counter()
    figures |= train_target(
        model,
        stream.batches(args.rows),
        seconds=None if args.smoke else lambda: args.target_seconds,
        steps=12 if args.smoke else None,
        dtype=dtype,
        compiled=args.compiled and device.type == "cuda",
        log=log,
    )
    spent = time.perf_counter() - began
    figures |= {"target_s": round(spent, 1), "target_tokens_per_s": round(figures["target_tokens"] / spent)}
    figures["data_passes"] = round(stream.num_passes, 2)
    log(f"target trained: {figures['target_tokens'] / 1e6:.1f}M tokens, {figures['target_tokens_per_s']:,} tokens/s")
    return model


@torch.no_grad()
def reload_difference(
    folder: Path, model: TargetModel, weights: Weights, device: torch.device, dtype: torch.dtype
) -> float:
    """Largest difference of final hidden states between the trained model and its file, read back."""
    again = load_trainable(folder, model.config).to(device)
    ids = torch.randint(0, model.config.vocab_size, (2, 256), generator=torch.Generator().manual_seed(1)).to(device)
    docs, rope = torch.zeros_like(ids), model.rope(256, device)
    mine = hidden_states(weights, model.config, ids, docs, rope)[0][-1]
    read = hidden_states(again.weights(dtype=dtype, quantized=False), model.config, ids, docs, rope)[0][-1]
    return float((mine - read).abs().max())


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]


def evaluate_target(
    args: argparse.Namespace,
    log: Log,
    model: TargetModel,
    weights: Weights,
    tokenizer: Tokenizer,
    figures: dict[str, Any],
) -> None:
    """Print and record loss, right answers and right calls on the held-out prompts."""
    lines, with_tools = read_rows(HELD_OUT), read_rows(HELD_OUT_TOOLS)
    texts = [row["text"] for row in lines if row["kind"] == "text"]
    rows = [row for row in lines if row["kind"] != "text"]
    by_hand = dev_rows({fact.path: fact for fact in load_facts() if fact.kind != "module"})
    if args.smoke:
        rows, by_hand, with_tools = rows[:8], by_hand[:2], with_tools[:8]
    figures |= held_out_loss(model, weights, tokenizer, texts, length=args.length)
    log(f"held-out loss: chat {figures['held_out_loss_chat']:.4f}, text {figures['held_out_loss_text']:.4f}")
    for name, (counts, wrong) in {
        "right": answers(model, weights, tokenizer, rows + by_hand),
        "tools": tool_answers(model, weights, tokenizer, with_tools),
    }.items():
        figures[name] = {kind: list(count) for kind, count in counts.items()}
        for kind, (right, asked) in sorted(counts.items()):
            log(f"{name}, {kind:12} {right:4} of {asked:4}  {right / max(asked, 1):.1%}")
        for row, text in wrong[:40]:
            log(f"  wrong: {row['messages'][-1]['content']!r} -> {text!r}")


def head_phase(
    args: argparse.Namespace,
    log: Log,
    target: Path,
    model: TargetModel,
    weights: Weights,
    tokenizer: Tokenizer,
    figures: dict[str, Any],
) -> None:
    """Write chats and train a head on them; it lies beside the target's files then."""
    if model.embed.is_cuda:
        torch.cuda.empty_cache()  # what the target's training held
    chats = args.work / "chats.jsonl"
    figures["chats"] = write_chats(
        chats, model, weights, tokenizer, count=args.chats, seconds=args.chat_seconds, seed=args.seed
    )
    log(f"{figures['chats']} chats answered by the target")
    head, of_head = train_head(
        model,
        weights,
        target=target,
        chats=chats,
        work=args.work,
        seconds=max(args.wall_seconds - log.seconds - EVALUATION_SECONDS, 20.0),
        overrides=SMOKE_HEAD if args.smoke else (),
        log=log,
    )
    figures |= of_head
    (args.out / OWN_HEAD).mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(head / name, args.out / OWN_HEAD / name)
    shutil.copyfile(head / "README.md", args.work / "head-card.md")
    log(f"head trained: {of_head['head_tokens'] / 1e6:.1f}M tokens in {of_head['head_s']} s")
    for reading, found in (of_head.get("acceptance") or {"acceptance": {}})["acceptance"].items():
        lengths = ", ".join(f"{one['draft_tokens']}: {one['acceptance_length']}" for one in found)
        log(f"acceptance length by drafts, {reading}: {lengths}")


if __name__ == "__main__":
    main()

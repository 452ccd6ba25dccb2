"""Trains, exports and evaluates the demo model in one go: `PYTHONPATH=src python tools/demo/train.py --out out/demo`.

Everything is seeded; the schedules follow the clock, so that a run ends on time on any device and only about repeats.
Prints for people, and one JSON line last. `--target DIR` takes an exported target and trains the head alone.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from data import ShardStream, prompt_ids
from decode import generate
from evaluate import acceptance, answers, dev_rows, held_out_loss
from export import check_sizes, export_head, export_target
from facts import load_facts
from reload import load_trainable
from shapes import HEAD, SMOKE_HEAD, SMOKE_TARGET, TARGET
from target import TargetModel, Weights
from train_head import new_head, pack, train_head, with_prompt
from train_target import train_target

from eyas.base.bundled import OWN_HEAD
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.train.reference import ReferenceHead

ROOT = Path(__file__).parents[2]
TOKENIZER = ROOT / "src" / "eyas" / "demo"
EVALUATION_SECONDS = 30.0  # kept for what follows the head's training
HELD_OUT = ROOT / "tests" / "assets" / "demo_heldout.jsonl"


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=Path("out/demo"))
    parser.add_argument("--target", type=Path, help="an exported target: train the head alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target-seconds", type=float, default=300)
    parser.add_argument("--head-seconds", type=float, default=110)
    parser.add_argument("--wall-seconds", type=float, default=565, help="the head's time shrinks to keep to this")
    parser.add_argument("--rows", type=int, default=32, help="rows of a batch for the target")
    parser.add_argument("--head-rows", type=int, default=16)
    parser.add_argument("--length", type=int, default=1024, help="tokens of a row")
    parser.add_argument("--ttt-steps", type=int, default=7)
    parser.add_argument("--own-samples", type=int, default=6144, help="answers that the target samples for the head")
    parser.add_argument("--workers", type=int, default=0, help="processes that make data; 0: by the number of cores")
    parser.add_argument("--no-compile", dest="compiled", action="store_false")
    parser.add_argument("--smoke", action="store_true", help="a miniature of everything, for a CPU")
    args = parser.parse_args(argv)
    if args.smoke:
        args.rows, args.head_rows, args.own_samples, args.length = 4, 2, 16, 512
    return args


class Log:
    def __init__(self) -> None:
        self.started = time.perf_counter()

    def __call__(self, text: str) -> None:
        print(f"[{time.perf_counter() - self.started:6.1f}s] {text}", flush=True)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    args, log = parse(argv), Log()
    tokenizer = Tokenizer.load(TOKENIZER)
    shards = {"num_shards": 4, "shard_rows": 64} if args.smoke else {"num_shards": 320, "shard_rows": 1024}
    stream = ShardStream(TOKENIZER, length=args.length, seed=args.seed, workers=args.workers, **shards)
    log("data workers started")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(args.seed)
    try:
        return run(args, log, tokenizer, stream, device, dtype)
    finally:
        stream.close()


def run(
    args: argparse.Namespace,
    log: Log,
    tokenizer: Tokenizer,
    stream: ShardStream,
    device: torch.device,
    dtype: torch.dtype,
) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "seed": args.seed,
    }
    figures["torch"] = torch.__version__
    model = target_phase(args, log, stream, device, dtype, figures)
    with torch.no_grad():
        weights = model.weights(dtype=dtype, quantized=True)
    export_target(model, args.out, TOKENIZER / "tokenizer.json")
    figures["reload_difference"] = reload_difference(args.out, model, weights, device, dtype)
    log(f"exported target; logits of the reloaded file differ by {figures['reload_difference']}")
    rows = evaluate_target(args, log, model, weights, tokenizer, figures)

    head = head_phase(args, log, stream, model, weights, tokenizer, figures)
    export_head(head, args.out / OWN_HEAD, model.config)
    figures["bytes"] = check_sizes(args.out)
    evaluate_head(args, log, head, model, weights, tokenizer, rows, figures)
    figures["wall_s"] = round(time.perf_counter() - log.started, 1)
    (args.out / "metrics.json").write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures), flush=True)
    return figures


def target_phase(
    args: argparse.Namespace,
    log: Log,
    stream: ShardStream,
    device: torch.device,
    dtype: torch.dtype,
    figures: dict[str, Any],
) -> TargetModel:
    if args.target is not None:
        return load_trainable(args.target, SMOKE_TARGET if args.smoke else TARGET).to(device)
    generator = torch.Generator().manual_seed(args.seed)
    model = TargetModel(SMOKE_TARGET if args.smoke else TARGET, generator).to(device)
    began = time.perf_counter()
    figures |= train_target(
        model,
        stream.batches(args.rows),
        seconds=None if args.smoke else args.target_seconds,
        steps=20 if args.smoke else None,
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
    from target import hidden_states

    again = load_trainable(folder, model.config).to(device)
    ids = torch.randint(0, model.config.vocab_size, (2, 256), generator=torch.Generator().manual_seed(1)).to(device)
    docs, rope = torch.zeros_like(ids), model.rope(256, device)
    mine = hidden_states(weights, model.config, ids, docs, rope)[0][-1]
    read = hidden_states(again.weights(dtype=dtype, quantized=False), model.config, ids, docs, rope)[0][-1]
    return float((mine - read).abs().max())


def evaluate_target(
    args: argparse.Namespace,
    log: Log,
    model: TargetModel,
    weights: Weights,
    tokenizer: Tokenizer,
    figures: dict[str, Any],
) -> list[dict[str, Any]]:
    """Prints and records loss and right answers; returns the held-out prompts."""
    lines = [json.loads(line) for line in HELD_OUT.read_text(encoding="ascii").splitlines()]
    texts = [row["text"] for row in lines if row["kind"] == "text"]
    rows = [row for row in lines if row["kind"] != "text"]
    figures |= held_out_loss(model, weights, tokenizer, texts, length=args.length)
    log(f"held-out loss: chat {figures['held_out_loss_chat']:.4f}, text {figures['held_out_loss_text']:.4f}")
    by_hand = dev_rows({fact.path: fact for fact in load_facts() if fact.kind != "module"})
    rows = rows[:8] if args.smoke else rows
    counts, wrong = answers(model, weights, tokenizer, rows + (by_hand[:2] if args.smoke else by_hand))
    figures["right"] = {kind: list(count) for kind, count in counts.items()}
    for kind, (right, asked) in sorted(counts.items()):
        log(f"right answers, {kind:12} {right:4} of {asked:4}  {right / asked:.1%}")
    for row, text in wrong[:40]:
        log(f"  wrong: {row['messages'][-1]['content']!r} -> {text!r}")
    return rows


def head_phase(
    args: argparse.Namespace,
    log: Log,
    stream: ShardStream,
    model: TargetModel,
    weights: Weights,
    tokenizer: Tokenizer,
    figures: dict[str, Any],
) -> ReferenceHead:
    from random import Random

    from chats import ChatWriter

    device = model.embed.device
    writer = ChatWriter(load_facts(), Random(f"own:{args.seed}"))
    prompts = [prompt_ids(tokenizer, {"messages": prompt_messages(writer)}) for _ in range(args.own_samples)]
    generator = torch.Generator(device).manual_seed(args.seed)
    stop = tokenizer.special["<|return|>"]
    pieces = []
    prompts.sort(key=len)
    for at in range(0, len(prompts), 512):  # 512 prompts of 450 tokens take some 20 GB in the first pass
        part = prompts[at : at + 512]
        said = generate(
            model, weights, part, max_tokens=24 if args.smoke else 160, temperature=1.0, stop=stop, generator=generator
        )
        pieces += [with_prompt(prompt, answer) for prompt, answer in zip(part, said, strict=True)]
    own = pack(pieces, args.length, model.config.pad_id or 0)
    log(f"{len(pieces)} own samples in {len(own.ids)} rows")
    batches = stream.batches(args.head_rows)
    always = tuple(sorted(tokenizer.special[name] for name in tokenizer.special if "reserved" not in name))
    head = new_head(SMOKE_HEAD if args.smoke else HEAD, model, [own, *(next(batches) for _ in range(64))], always)
    began = time.perf_counter()
    left = args.wall_seconds - (began - log.started)
    figures |= train_head(
        head,
        model,
        weights,
        batches,
        own,
        seconds=None if args.smoke else min(args.head_seconds, max(left - EVALUATION_SECONDS, 10.0)),
        steps=4 if args.smoke else None,
        num_ttt_steps=args.ttt_steps,
        log=log,
    )
    figures["head_s"] = round(time.perf_counter() - began, 1)
    log(f"head trained: {figures['head_tokens'] / 1e6:.1f}M tokens in {figures['head_s']} s")
    return head


def prompt_messages(writer: Any) -> list[dict[str, str | None]]:
    messages = writer.chat().messages()[:-2]
    return [{"role": m.role, "content": m.content, "channel": m.channel} for m in messages]


def evaluate_head(
    args: argparse.Namespace,
    log: Log,
    head: ReferenceHead,
    model: TargetModel,
    weights: Weights,
    tokenizer: Tokenizer,
    rows: list[dict[str, Any]],
    figures: dict[str, Any],
) -> None:
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        generator = torch.Generator(model.embed.device).manual_seed(args.seed)
        table = acceptance(
            head, model, weights, tokenizer, rows, temperature=temperature, length=args.length,
            num_steps=args.ttt_steps, generator=generator,
        )  # fmt: skip
        figures[f"acceptance_{name}"] = table
        log(f"acceptance length, {name}, {table['starts']} content tokens:")
        for k, (survival, length) in enumerate(zip(table["survival"], table["length"], strict=True), start=1):
            log(f"  {k} draft tokens: survival {survival:.3f}  length {length:.3f}")


if __name__ == "__main__":
    main()

"""Evaluates the trained demo model: loss, right answers, acceptance of the head by depth."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from data import CONTEXT, GENERATED, IGNORED, Shard, held_out_chats, prompt_ids, render_chat
from decode import generate
from target import TargetModel, Weights, hidden_states, token_loss
from torch import Tensor
from train_head import observe, pack
from train_target import device_batch, loss_weights

from eyas.base.tokens.tokenizer import Tokenizer
from eyas.train.reference import ReferenceHead, training_time_test

__all__ = ["acceptance", "answers", "final_text", "held_out_loss", "is_right"]

DEV_QUESTIONS = Path(__file__).with_name("dev_questions.json")
MAX_ANSWER = 192  # tokens


def final_text(tokenizer: Tokenizer, answer: Sequence[int]) -> str:
    """The content of the final channel, as far as it goes."""
    text = tokenizer.decode(answer)
    _, _, after = text.partition("<|channel|>final<|message|>")
    return after.removesuffix("<|return|>")


def is_right(row: dict[str, Any], text: str) -> bool:
    """Whether an answer is right. Look-ups: module in backticks and first sentence, verbatim; else the exact answer."""
    if row.get("module") is None:
        return text == row["answer"]
    return f"`{row['module']}`" in text and row["sentence"] in text


def dev_rows(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Questions written by hand, in words of their own."""
    rows = []
    for path, question in json.loads(DEV_QUESTIONS.read_text(encoding="ascii")):
        fact = facts[path]
        messages = [{"role": "user", "content": question}]
        rows.append({"kind": "by hand", "messages": messages, "module": fact.module, "sentence": fact.sentence})
    return rows


@torch.no_grad()
def held_out_loss(
    model: TargetModel, weights: Weights, tokenizer: Tokenizer, texts: Sequence[str], *, length: int
) -> dict[str, float]:
    """Nats a generated token, on chats and on source text."""
    device = model.embed.device
    end = tokenizer.special["<|endoftext|>"]
    chats = [render_chat(tokenizer, chat) for chat in held_out_chats(64, seed=1)]
    chats = [(ids, [code if code == GENERATED else IGNORED for code in codes]) for ids, codes in chats]
    pieces = [tokenizer.encode(text)[: length - 1] + [end] for text in texts]
    figures = {}
    for name, docs in (("chat", chats), ("text", [(ids, [GENERATED] * len(ids)) for ids in pieces])):
        ids, codes, doc = device_batch(pack(docs, length, end), device)
        states, _ = hidden_states(weights, model.config, ids, doc, model.rope(length, device))
        weight = loss_weights(codes, doc)
        loss = token_loss(
            states[-1], weights.norm_H, weights.lm_head_VH, ids.roll(-1, 1), weight, model.config.rms_norm_eps
        )
        figures[f"held_out_loss_{name}"] = loss.item()
    return figures


def answers(
    model: TargetModel, weights: Weights, tokenizer: Tokenizer, rows: list[dict[str, Any]]
) -> tuple[dict[str, tuple[int, int]], list[tuple[dict[str, Any], str]]]:
    """Return ((right, asked) by kind of question, the wrong ones with their answers), greedy."""
    prompts = [prompt_ids(tokenizer, row) for row in rows]
    stop = tokenizer.special["<|return|>"]
    said = generate(model, weights, prompts, max_tokens=MAX_ANSWER, temperature=0.0, stop=stop)
    counts: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    wrong = []
    for row, ids in zip(rows, said, strict=True):
        text = final_text(tokenizer, ids)
        right = is_right(row, text)
        for kind in (row["kind"], "all"):
            counts[kind] = (counts[kind][0] + right, counts[kind][1] + 1)
        if not right:
            wrong.append((row, text))
    return dict(counts), wrong


def content_codes(tokenizer: Tokenizer, answer: Sequence[int]) -> list[int]:
    """GENERATED for the tokens of message contents, IGNORED for headers and ends of messages."""
    start, message = tokenizer.special["<|start|>"], tokenizer.special["<|message|>"]
    ends = {tokenizer.special[name] for name in ("<|end|>", "<|return|>", "<|call|>")}
    codes, in_header = [], True  # an answer begins inside the header that the prompt opened
    for token in answer:
        in_header = token == start or (in_header and token != message)
        is_content = not in_header and token != message and token not in ends
        codes.append(GENERATED if is_content else IGNORED)
    return codes


@torch.no_grad()
def acceptance(
    head: ReferenceHead,
    model: TargetModel,
    weights: Weights,
    tokenizer: Tokenizer,
    rows: list[dict[str, Any]],
    *,
    temperature: float,
    length: int,
    num_steps: int,
    generator: torch.Generator,
) -> dict[str, Any]:
    """Expected acceptance length at every draft length, from every content token of the target's own answers.

    Counts jointly: a draft token counts if it and all before it hit. At temperature 1 a hit is drafting what the target
    would sample under the same noise, as the engine does. Chains end with the content, so short answers cost a little.
    """
    prompts = [prompt_ids(tokenizer, row) for row in rows]
    stop = tokenizer.special["<|return|>"]
    said = generate(
        model, weights, prompts, max_tokens=MAX_ANSWER, temperature=temperature, stop=stop, generator=generator
    )
    pieces = [
        (prompt + ids, [CONTEXT] * len(prompt) + content_codes(tokenizer, ids))
        for prompt, ids in zip(prompts, said, strict=True)
    ]
    shard = pack(pieces, length, model.config.pad_id or 0)
    rope = model.rope(length, model.embed.device)
    alive_K = torch.zeros(num_steps)
    starts = 0
    for at in range(0, len(shard.ids), 8):
        batch = observe(model, weights, head.config.taps, Shard(*(part[at : at + 8] for part in shard)), rope)
        result = training_time_test(head, batch, num_steps=num_steps, noise=generator)
        assert result.coupled_JBT is not None
        hits: Tensor = result.hits_JBT if temperature == 0 else result.coupled_JBT
        alive = (hits & result.counted_JBT).cumprod(0)
        starts += int(result.counted_JBT[0].sum())
        alive_K += alive.sum((1, 2)).cpu()
    survival = alive_K / max(starts, 1)
    lengths = [1 + float(survival[:k].sum()) for k in range(1, num_steps + 1)]
    return {
        "starts": starts,
        "survival": [round(float(s), 4) for s in survival],
        "length": [round(x, 3) for x in lengths],
    }

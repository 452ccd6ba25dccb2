"""Evaluates the trained target: loss, right answers, right calls of the python tool."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from answering import program_of
from calculator import run_program
from chats import PYTHON
from data import GENERATED, IGNORED, held_out_chats, prompt_ids, render_chat
from decode import generate_all
from rows import pack
from target import TargetModel, Weights, hidden_states, token_loss
from train_target import device_batch, loss_weights

from eyas.base.harmony.parser import StreamParser
from eyas.base.harmony.rendering import call_message, result_message, stop_ids
from eyas.base.tokens.tokenizer import Tokenizer

__all__ = ["answers", "final_text", "held_out_loss", "is_right", "tool_answers"]

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
    said = _greedy(model, weights, tokenizer, [prompt_ids(tokenizer, row) for row in rows])
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


def tool_answers(
    model: TargetModel, weights: Weights, tokenizer: Tokenizer, rows: list[dict[str, Any]]
) -> tuple[dict[str, tuple[int, int]], list[tuple[dict[str, Any], str]]]:
    """Return (counts by name, the wrong ones with what was said) of prompts that offer tools, greedy.

    "calls": calls of the python tool whose program has the right result, of those that are due. "finals": right final
    answers to the right result, of the same prompts. "not called": prompts without a call, of those where none is due;
    "answers": right answers among these.
    """
    counts: dict[str, list[int]] = {name: [0, 0] for name in ("calls", "finals", "not called", "answers")}
    wrong = []

    def count(name: str, right: bool, row: dict[str, Any], ids: Sequence[int]) -> None:
        counts[name][0] += right
        counts[name][1] += 1
        if not right:
            wrong.append((row, tokenizer.decode(ids)))

    said = _greedy(model, weights, tokenizer, [prompt_ids(tokenizer, row) for row in rows])
    due = []
    for row, ids in zip(rows, said, strict=True):
        program = called_program(tokenizer, ids)
        if row["program"] is None:
            count("not called", ids[-1] != tokenizer.special["<|call|>"], row, ids)
            count("answers", is_right(row, final_text(tokenizer, ids)), row, ids)
        else:
            count("calls", program is not None and run_program(program) == run_program(row["program"]), row, ids)
            due.append(row)
    prompts = [prompt_ids(tokenizer, with_result(row)) for row in due]
    for row, ids in zip(due, _greedy(model, weights, tokenizer, prompts), strict=True):
        count("finals", final_text(tokenizer, ids) == row["answer"], row, ids)
    return {name: (right, asked) for name, (right, asked) in counts.items()}, wrong


def called_program(codec: Tokenizer, ids: Sequence[int]) -> str | None:
    """Return the program that an answer ends with a call of, if it does."""
    parser = StreamParser(codec)
    parser.feed(ids)
    parser.finish()
    is_call = bool(parser.messages) and ids[-1] == codec.special["<|call|>"]
    return program_of(parser.messages[-1]) if is_call else None


def with_result(row: dict[str, Any]) -> dict[str, Any]:
    """Return the prompt after the right call and its result, without analysis, as clients send it back."""
    arguments = json.dumps({"code": row["program"]}, separators=(",", ":"))
    made = [call_message(PYTHON, arguments), result_message(PYTHON, run_program(row["program"]))]
    return row | {"messages": [*row["messages"], *(asdict(message) for message in made)]}


def _greedy(
    model: TargetModel, weights: Weights, tokenizer: Tokenizer, prompts: Sequence[list[int]]
) -> list[list[int]]:
    temperatures = [0.0] * len(prompts)
    stops = stop_ids(tokenizer)
    return generate_all(model, weights, prompts, max_tokens=MAX_ANSWER, temperatures=temperatures, stops=stops)

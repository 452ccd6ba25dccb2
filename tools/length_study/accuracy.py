"""Says how well a target quotes: each token of an answer predicted behind the right ones before it, by distance.

Where every one of a text's tokens is the most likely one, the target greedily writes that text.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from data import GENERATED, render_chat
from target import TargetModel, Weights, hidden_states, rms_norm
from tools.length_study.quoting import BUCKETS, QuoteChat, QuoteWriter, bucket_lengths, bucket_of, quotes_of
from torch import Tensor

from eyas.base.tokens.tokenizer import Tokenizer

__all__ = ["bucket_name", "quote_accuracy"]

AT_ONCE = 8  # chats


def bucket_name(bucket: int) -> str:
    return f"{BUCKETS[bucket]}-{BUCKETS[bucket + 1]}"


def quote_accuracy(
    model: TargetModel, weights: Weights, codec: Tokenizer, *, count: int, longest: int
) -> dict[str, dict[str, Any]]:
    """Return shares by distance and by context, from `count` chats of the lengths of each bucket, none trained on.

    By distance: quoted tokens and whole quotes that are right, and the number of quotes. By context: generated tokens
    that are right, and whole answers.
    """
    by_distance: dict[int, list[tuple[float, bool]]] = {}
    by_context: dict[str, dict[str, float]] = {}
    for number, (least, most) in enumerate(bucket_lengths(longest)):
        writer = QuoteWriter(codec, Random(f"checked:{number}"))
        chats = [writer.chat(least, most) for _ in range(count)]
        answers: list[Tensor] = []
        for start in range(0, count, AT_ONCE):
            some = chats[start : start + AT_ONCE]
            for chat, (right_T, is_answer_T) in zip(some, _right(model, weights, codec, some), strict=True):
                answers.append(right_T[is_answer_T])
                for quote in quotes_of(codec, chat):
                    right = right_T[quote.answer : quote.answer + quote.length]
                    found = (float(right.float().mean()), bool(right.all()))
                    by_distance.setdefault(bucket_of(quote.distance), []).append(found)
        by_context[bucket_name(number)] = {
            "tokens": round(float(torch.cat(answers).float().mean()), 4),
            "answers": round(sum(bool(answer.all()) for answer in answers) / count, 4),
        }
    return {
        "by_distance": {
            bucket_name(bucket): {
                "tokens": round(sum(share for share, _ in found) / len(found), 4),
                "quotes": round(sum(whole for _, whole in found) / len(found), 4),
                "count": len(found),
            }
            for bucket, found in sorted(by_distance.items())
        },
        "by_context": by_context,
    }


@torch.no_grad()
def _right(
    model: TargetModel, weights: Weights, codec: Tokenizer, chats: Sequence[QuoteChat]
) -> list[tuple[Tensor, Tensor]]:
    """Return for each chat which of its tokens are the most likely ones, and which are generated, bool [T]."""
    device, config = model.embed.device, model.config
    rendered = [render_chat(codec, chat) for chat in chats]
    window = config.sliding_window
    width = -(-max(len(ids) for ids, _ in rendered) // window) * window
    ids_BT = torch.full((len(chats), width), config.pad_id or 0)
    for row, (ids, _) in enumerate(rendered):
        ids_BT[row, : len(ids)] = torch.tensor(ids)
    ids_BT = ids_BT.to(device)
    # What follows a chat in its row is not seen by it.
    states, _ = hidden_states(weights, config, ids_BT, torch.zeros_like(ids_BT), model.rope(width, device))
    normed = rms_norm(states[-1], weights.norm_H, config.rms_norm_eps).to(weights.lm_head_VH.dtype)
    best_BT = torch.stack([F.linear(row, weights.lm_head_VH).argmax(-1) for row in normed])
    right_BT = F.pad(best_BT[:, :-1] == ids_BT[:, 1:], (1, 0)).cpu()
    return [(right_BT[row, : len(ids)], torch.tensor(codes) == GENERATED) for row, (ids, codes) in enumerate(rendered)]

"""Sizes of the study of lengths: those for a GPU, and a miniature that goes through all of it on a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shapes import SMOKE_TARGET, TARGET
from tools.length_study.quoting import LONG, SHORT

from eyas.base.bundled import DEMO
from eyas.model.config import GptOssConfig

__all__ = ["FULL", "SMALL", "Sizes"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """`longest` and `short` are the tokens of the longest chats of the two arms, and rows have as many as `longest`."""

    target: GptOssConfig
    begins_with: Path | None  # a trained target
    longest: int
    short: int
    rows: int  # of a step of the target
    shards: int
    shard_rows: int
    target_steps: int | None  # None: as many as the minutes allow
    checked: int  # chats a bucket that tell how the target quotes
    chat_tokens: int  # of each arm's chats
    head_steps: int
    head: tuple[str, ...]  # settings in place of those of tools/demo/head.yaml
    prompts: int  # a bucket that the engine answers


FULL = Sizes(
    target=TARGET,
    begins_with=DEMO,
    longest=LONG,
    short=SHORT,
    rows=8,
    shards=400,
    shard_rows=128,
    target_steps=None,
    checked=64,
    chat_tokens=2_500_000,
    head_steps=600,
    head=("train.precision=auto", "train.depths=4"),
    prompts=32,
)
SMALL = Sizes(
    target=SMOKE_TARGET,
    begins_with=None,
    longest=1024,
    short=SHORT,
    rows=2,
    shards=2,
    shard_rows=8,
    target_steps=6,
    checked=2,
    chat_tokens=10_000,
    head_steps=3,
    head=("train.depths=2", "train.batch_tokens=1024", "train.log_every=1", "head.intermediate_size=128"),
    prompts=2,
)

"""Fits a draft head to the settings, and refuses what its kind cannot do."""

from __future__ import annotations

from pathlib import Path

from eyas.base.errors import UserError
from eyas.base.settings.config import EngineConfig
from eyas.base.tokens.tokenizer import CONTROL_TOKENS, Tokenizer
from eyas.model.checkpoints.head_kind import HeadKind
from eyas.model.checkpoints.head_options import read_counts
from eyas.model.config import GptOssConfig
from eyas.model.weights import Head, TargetWeights

__all__ = ["check_head_options", "check_kind", "keep_tokens", "pack_head", "round_head"]


def check_head_options(config: EngineConfig, *, has_head: bool) -> None:
    """Raises UserError for options of heads that contradict each other, or that have no head."""
    if config.draft_counts is not None and config.draft_vocab is None:
        raise UserError("--draft-counts says which tokens --draft-vocab keeps; give both")
    if not has_head and (config.draft_vocab is not None or config.draft_weights != "bf16"):
        raise UserError("--draft-vocab and --draft-weights are for a draft head; name one with --draft")


def check_kind(config: EngineConfig, kind: HeadKind, *, has_kernels: bool) -> None:
    """Raises UserError for what heads of this kind cannot do, before any weights are read."""
    if config.draft_weights == "fp8" and kind.in_fp8 is None:
        raise UserError(f"--draft-weights fp8 is not possible with {kind.title}; leave it out")
    if config.draft_vocab is not None and kind.keep_tokens is None:
        raise UserError(f"--draft-vocab is not possible with {kind.title}; leave it out")
    if has_kernels and kind.pack is None:
        raise UserError(f"the kernels of this GPU cannot compute {kind.title}; use another --draft, or --device cpu")


def keep_tokens(config: EngineConfig, kind: HeadKind, folder: Path, target: GptOssConfig, head: Head) -> Head:
    """Return the head with the configured draft vocabulary, which keeps Harmony's and end-of-turn tokens."""
    if config.draft_vocab is None or kind.keep_tokens is None:
        return head
    counts = None if config.draft_counts is None else read_counts(Path(config.draft_counts), target.vocab_size)
    special = Tokenizer.load(folder).special
    always = {*target.eos_ids, *(special[name] for name in CONTROL_TOKENS)}
    return kind.keep_tokens(head, config.draft_vocab, counts_V=counts, always=always)


def pack_head(kind: HeadKind, head: Head, folder: Path, *, plain: TargetWeights, packed: TargetWeights) -> Head:
    """Return the head in the form of the kernels. `plain` and `packed` are its target, before and after packing."""
    if kind.pack is None or not kind.has_device_layout(head.config):
        raise UserError(f"{folder}: the kernels of this GPU cannot compute a head of these shapes")
    return kind.pack(head, plain=plain, packed=packed)


def round_head(config: EngineConfig, kind: HeadKind, head: Head) -> Head:
    """Return the head with the configured weights."""
    return kind.in_fp8(head) if config.draft_weights == "fp8" and kind.in_fp8 is not None else head

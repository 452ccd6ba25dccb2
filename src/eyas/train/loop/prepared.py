"""Prepares a run as far as it goes without weights: reads chats and headers, chooses the draft vocabulary."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eyas.base.errors import UserError
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.model.checkpoints.hub import resolve, resolve_headers
from eyas.model.config import GptOssConfig
from eyas.model.devices import pick_device
from eyas.train.data.corpus import Corpus, read_corpus
from eyas.train.data.documents import DocumentOptions
from eyas.train.data.vocabulary import choose_vocabulary, count_supervised, forced_ids
from eyas.train.heads.making import HeadMaking
from eyas.train.heads.registry import find_making
from eyas.train.settings.schema import DataSettings, RunSettings, TargetSettings
from eyas.train.states.opening import FoundTarget, find_target
from eyas.train.types import Document

__all__ = ["Prepared", "batch_tokens", "prepare_run", "read_data", "target_name"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A run as far as it is known without any weights: chats, the target's headers, the head's config."""

    settings: RunSettings
    codec: Tokenizer
    found: FoundTarget
    head_device: torch.device
    training: tuple[Document, ...]
    held_out: tuple[Document, ...]
    digest: str  # of the chats
    chats: str  # one line for people
    making: HeadMaking
    head_config: Any
    target_ids_V: Tensor | None  # None: those of the head to start from
    taps: dict[str, tuple[int, ...]]  # readings of the taps by name; the first is that of the config
    init: Path | None


def target_name(settings: TargetSettings) -> str:
    """Return the target with its revision, as the hub wants it."""
    is_local = settings.revision is None or Path(settings.model).is_dir()
    return settings.model if is_local else f"{settings.model}@{settings.revision}"


def batch_tokens(settings: RunSettings) -> int:
    """Return the tokens that a packed batch has room for. Raises UserError."""
    tokens = settings.train.batch_tokens or settings.data.context
    if tokens < settings.data.context:
        raise UserError(
            f"train.batch_tokens is {tokens}, and data.context {settings.data.context}: a batch has to have room for "
            "the longest document"
        )
    return tokens


def read_data(settings: DataSettings, codec: Tokenizer, *, needs_held_out: bool = True) -> tuple[Corpus, Corpus | None]:
    """Read the chats to train on and, where they have files of their own, the held-out ones. Raises UserError."""
    if not settings.chats:
        raise UserError("data.chats names no file; give JSONL files of chats")
    options = DocumentOptions(
        context=settings.context,
        too_long=settings.too_long,
        call_headers=settings.call_headers,
        effort=settings.effort,
        date=settings.date,
    )
    share = settings.held_out_share if needs_held_out and not settings.held_out else 0.0
    corpus = read_corpus([Path(path) for path in settings.chats], codec, options, held_out=share)
    if not settings.held_out:
        return corpus, None
    return corpus, read_corpus([Path(path) for path in settings.held_out], codec, options)


def prepare_run(settings: RunSettings) -> Prepared:
    """Read everything but weights. Raises UserError for whatever does not fit together."""
    if settings.target.offline:
        os.environ["HF_HUB_OFFLINE"] = "1"  # huggingface_hub reads it at import
    making = find_making(settings.head.kind)
    found = find_target(target_name(settings.target), device=settings.target.device)
    head_device = found.device if settings.train.device is None else _head_device(settings.train.device, found.device)
    batch_tokens(settings)
    if settings.data.context > found.config.max_context:
        raise UserError(f"data.context is {settings.data.context}, the target's own limit {found.config.max_context}")
    codec = Tokenizer.load(resolve_headers(target_name(settings.target))[0])
    corpus, held_out = read_data(settings.data, codec)
    kept_out = (corpus.held_out if held_out is None else held_out.training)[: settings.eval.documents]
    if settings.head.init is not None:
        init = resolve(settings.head.init)
        taps = dict(making.tap_readings(init, found.config))
        if (wanted := settings.head.init_taps) != "auto" and wanted in taps:
            taps = {wanted: taps[wanted]}
        config, ids = making.checkpoint_config(init, found.config), None
    else:
        init = None
        config = making.fresh_config(settings.head, found.config, context=settings.data.context)
        taps = {"fresh": config.taps}
        counts = count_supervised(corpus.training, found.config.vocab_size)
        ids = _vocabulary(counts, config.draft_vocab_size, codec, found.config)
    return Prepared(
        settings=settings,
        codec=codec,
        found=found,
        head_device=head_device,
        training=corpus.training,
        held_out=kept_out,
        digest=corpus.digest if held_out is None else f"{corpus.digest}+{held_out.digest}",
        chats=f"{corpus.tally.num_chats:,} chats of {', '.join(Path(path).name for path in settings.data.chats)}",
        making=making,
        head_config=config,
        target_ids_V=ids,
        taps=taps,
        init=init,
    )


def _head_device(name: str, target: torch.device) -> torch.device:
    """Return the device of a head of its own, which becomes the current one. Raises UserError."""
    device, _ = pick_device(name)
    if device.type != target.type:
        raise UserError(f"train.device is {device}, the target is on {target}: give two GPUs, or the CPU alone")
    if device != target and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("train.device goes with one process; torchrun gives each process a GPU for target and head")
    return device


def _vocabulary(counts: Any, size: int, codec: Tokenizer, target: GptOssConfig) -> Tensor:
    if size == target.vocab_size:
        return torch.arange(size)
    return choose_vocabulary(counts, size, forced_ids(codec, target.eos_ids, target.vocab_size))

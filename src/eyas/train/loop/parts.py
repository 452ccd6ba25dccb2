"""Puts a run together from its settings: chats, target, states, draft vocabulary, head. Memory is checked first."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eyas.base.errors import UserError
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.model.checkpoints.hub import resolve, resolve_headers
from eyas.model.config import GptOssConfig
from eyas.model.devices import available_bytes
from eyas.model.hardware import hardware
from eyas.model.taps import show_taps
from eyas.train.data.corpus import Corpus, read_corpus
from eyas.train.data.documents import DocumentOptions
from eyas.train.data.packing import Packing, batches_in_order
from eyas.train.data.vocabulary import choose_vocabulary, count_supervised, coverage, forced_ids
from eyas.train.heads.base import TrainableHead
from eyas.train.heads.making import HeadMaking
from eyas.train.heads.registry import find_making
from eyas.train.loop.order import Order
from eyas.train.loop.processes import Processes
from eyas.train.loop.trainer import tiled_loss
from eyas.train.loss.step import accumulate, prepare
from eyas.train.settings.schema import DataSettings, RunSettings, TargetSettings
from eyas.train.states.cache import CachedStates
from eyas.train.states.folder import open_folder
from eyas.train.states.memory import check_memory
from eyas.train.states.opening import FoundTarget, find_target, open_target
from eyas.train.states.selected import SelectedStates
from eyas.train.states.source import HiddenStates
from eyas.train.types import Batch, Document, Segment

__all__ = [
    "Parts",
    "Prepared",
    "batch_tokens",
    "open_run",
    "open_source",
    "order_of",
    "prepare_run",
    "read_data",
    "run_bytes",
    "target_name",
]

Say = Callable[[str], None]
STATE_COPIES = 4  # of the head's weights in fp32: weights, gradients, and the two moments of AdamW


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """All that a run needs. `facts` are fingerprints of what it was started with, `notes` are for its model card."""

    settings: RunSettings
    head: TrainableHead
    source: HiddenStates  # for training, in the dtype of the head's products
    exact_source: HiddenStates  # for the evaluation, in the target's own dtype
    order: Order
    held_out: tuple[Document, ...]
    processes: Processes
    num_steps: int
    facts: dict[str, str]
    notes: dict[str, str]

    def batches(self, step: int) -> list[Batch]:
        """Return this process's batches of step 0, 1, ..."""
        if self.settings.train.share == "sequences":
            return list(self.order.batches(step, first=self.processes.rank, every=self.processes.size))
        return list(self.order.batches(step, first=0, every=1))

    def held_out_batches(self) -> Iterator[Batch]:
        """Yield the held-out documents in batches on the device of the head."""
        device = self.source.teacher.embed_VH.device
        for batch in batches_in_order(self.held_out, batch_tokens(self.settings)):
            yield batch.to(device)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A run as far as it is known without any weights: chats, the target's headers, the head's config."""

    settings: RunSettings
    codec: Tokenizer
    found: FoundTarget
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


def _vocabulary(counts: Any, size: int, codec: Tokenizer, target: GptOssConfig) -> Tensor:
    if size == target.vocab_size:
        return torch.arange(size)
    return choose_vocabulary(counts, size, forced_ids(codec, target.eos_ids, target.vocab_size))


def run_bytes(prepared: Prepared, *, longest: int) -> dict[str, int]:
    """Return the bytes by owner of a run whose documents have up to `longest` tokens: states, head, one step."""
    settings, making, config = prepared.settings, prepared.making, prepared.head_config
    train, size = settings.train, prepared.found.dtype.itemsize
    tokens = max(longest, train.batch_tokens or 0)
    owners = _states_bytes(prepared, longest=longest, tokens=tokens)
    if train.accumulate > 1:  # a step holds the states of all of its batches
        owners["states of a step"] = (train.accumulate - 1) * owners["states"]
    return owners | {
        "head and optimiser": STATE_COPIES * 4 * making.num_parameters(config),
        "head pass": making.activation_bytes(
            config, num_rows=min(train.chunk, tokens), num_tokens=tokens, num_depths=train.depths, itemsize=size
        ),
        "loss tiles": train.tile * 4 * 4 * int(config.draft_vocab_size),
    }


def _states_bytes(prepared: Prepared, *, longest: int, tokens: int) -> dict[str, int]:
    """Return the bytes by owner of the source of states, for a batch of `tokens` tokens."""
    settings, found = prepared.settings, prepared.found
    num_taps = len(_all_taps(prepared))
    if settings.states.folder is not None:
        width = found.config.hidden_size * found.dtype.itemsize
        return {"teacher": 2 * found.config.vocab_size * width, "states": (num_taps + 1) * tokens * width}
    cache = settings.states.cache if found.device.type == "cpu" else 0
    return found.memory(num_taps=num_taps).owners(longest=longest, batch_tokens=tokens, cache_bytes=cache)


def _all_taps(prepared: Prepared) -> tuple[int, ...]:
    """Return the taps that any reading of the head wants."""
    return tuple(dict.fromkeys(tap for taps in prepared.taps.values() for tap in taps))


def order_of(prepared: Prepared, *, num_sequences: int) -> Order:
    """Return the order of batches; `num_sequences` processes have batches of their own in a step."""
    train = prepared.settings.train
    packing = Packing(
        prepared.training, tokens=batch_tokens(prepared.settings), seed=train.seed, num_buckets=train.buckets
    )
    return Order(packing, per_step=train.accumulate * num_sequences)


def open_run(prepared: Prepared, processes: Processes, *, say: Say) -> Parts:
    """Load the target, make the head, and order the batches. Raises UserError."""
    settings, found = prepared.settings, prepared.found
    whole = open_source(prepared)
    head, source = _head(prepared, whole, say)
    order = order_of(prepared, num_sequences=processes.size if settings.train.share == "sequences" else 1)
    num_steps = settings.train.steps or order.num_steps(settings.train.epochs)
    counts = count_supervised(prepared.training, found.config.vocab_size)
    ids_V = head.readout.target_ids_V.cpu()
    shares = coverage(counts, ids_V)
    covered = ", ".join(f"{_named(segment)} {100 * share:.2f} %" for segment, share in shares.items())
    say(f"chats    {len(prepared.training)} documents, {len(prepared.held_out)} more held out; {num_steps} steps")
    say(f"head     draft vocabulary {len(ids_V):,} of {found.config.vocab_size:,}: {covered}")
    return Parts(
        settings=settings,
        head=head,
        source=source,
        exact_source=SelectedStates(whole, source.taps),
        order=order,
        held_out=prepared.held_out,
        processes=processes,
        num_steps=num_steps,
        facts={
            "set of chats": prepared.digest,
            "vocabulary": _digest(prepared.codec, ids_V),
            "target": source.fingerprint,
        },
        notes={"chats": prepared.chats, "hardware": _machine(source.teacher.embed_VH.device, processes)},
    )


def _named(segment: Segment | None) -> str:
    return "all" if segment is None else segment.name.lower()


def open_source(prepared: Prepared) -> HiddenStates:
    """Return the states with all taps that any reading of the head wants. Raises UserError, memory being the first."""
    settings, found, taps = prepared.settings, prepared.found, _all_taps(prepared)
    check_memory(
        lambda length: run_bytes(prepared, longest=length),
        longest=settings.data.context,
        free=available_bytes(found.device),
    )
    if settings.states.folder is not None:
        return open_folder(
            Path(settings.states.folder),
            taps=taps,
            device=found.device,
            dtype=found.dtype,
            fingerprint=found.fingerprint,
            labels_suffice=settings.train.loss == "hard",
        )
    source = open_target(
        found,
        taps=taps,
        longest=settings.data.context,
        batch_tokens=settings.train.batch_tokens or 0,
        cache_bytes=settings.states.cache,
    )
    return CachedStates(source, settings.states.cache) if settings.states.cache else source


def _head(prepared: Prepared, source: HiddenStates, say: Say) -> tuple[TrainableHead, HiddenStates]:
    """Make the head, and choose the taps that it reads. Of two readings the one with the lower first loss is taken."""
    settings, making = prepared.settings, prepared.making
    dtype = {"auto": None, "fp32": torch.float32, "bf16": torch.bfloat16}[settings.train.precision]
    found: list[tuple[float, str, TrainableHead, HiddenStates]] = []
    for name, taps in prepared.taps.items():
        shown = SelectedStates(source, taps, dtype=dtype)
        if prepared.init is None:
            assert prepared.target_ids_V is not None
            head = making.fresh(
                prepared.head_config,
                prepared.target_ids_V,
                shown.teacher,
                num_depths=settings.train.depths,
                seed=settings.train.seed,
            )
        else:
            head = making.from_checkpoint(
                prepared.init, taps, prepared.found.config, shown.teacher, num_depths=settings.train.depths
            )
        head.rows_of_pass = settings.train.chunk
        head.to(shown.teacher.embed_VH.device)
        loss = _first_loss(prepared, head, shown) if len(prepared.taps) > 1 else 0.0
        found.append((loss, name, head, shown))
    _, chosen, best, source = min(found, key=lambda one: one[0])
    if len(found) > 1:
        losses = ", ".join(f"{name} {loss:.3f}" for loss, name, _, _ in found)
        say(f"taps     read as {chosen} ({show_taps(source.taps)}), by the first batch's loss: {losses}")
    return best, source


@torch.no_grad()
def _first_loss(prepared: Prepared, head: TrainableHead, source: HiddenStates) -> float:
    """Return the loss of depth 0 on the first documents."""
    settings = prepared.settings
    batch = next(batches_in_order(prepared.training, batch_tokens(settings))).to(source.teacher.embed_VH.device)
    loss, states, rule = tiled_loss(head, source, settings.train), source.states(batch), settings.data.supervise
    ready = prepare(head, loss, batch, states, rule=rule)
    sums = accumulate(
        head, loss, batch, states, source.teacher, ready, normalisers_J=None, rule=rule, decay=settings.train.decay
    )
    return float(sums.losses_J[0] / sums.trained_J[0].clamp(min=1))


def _machine(device: torch.device, processes: Processes) -> str:
    found = hardware(device)
    times = f"{processes.size} x " if processes.size > 1 else ""
    return f"{times}{found.device}" + (f", {found.num_threads} threads" if device.type == "cpu" else "")


def _digest(codec: Tokenizer, ids_V: Tensor) -> str:
    special = json.dumps(dict(codec.special), sort_keys=True).encode()
    return blake2b(special + ids_V.numpy().tobytes(), digest_size=16).hexdigest()

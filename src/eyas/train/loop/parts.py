"""Puts a run together from what is prepared: target, states, head, order of batches. Memory is checked first."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor

from eyas.base.errors import UserError
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.base.units import readable
from eyas.model.devices import available_bytes
from eyas.model.hardware import hardware
from eyas.model.taps import show_taps
from eyas.train.data.packing import Packing, batches_in_order
from eyas.train.data.vocabulary import count_supervised, coverage
from eyas.train.heads.base import TrainableHead
from eyas.train.loop.memory import all_taps, device_bytes, fitted, longest_below
from eyas.train.loop.order import Order
from eyas.train.loop.prepared import Prepared, batch_tokens
from eyas.train.loss.step import accumulate, prepare
from eyas.train.settings.schema import RunSettings, TrainSettings
from eyas.train.states.cache import CachedStates
from eyas.train.states.folder import open_folder
from eyas.train.states.memory import check_memory
from eyas.train.states.moved import MovedStates, current
from eyas.train.states.opening import open_target
from eyas.train.states.selected import SelectedStates
from eyas.train.states.source import HiddenStates
from eyas.train.steps.processes import Processes
from eyas.train.steps.trainer import tiled_loss
from eyas.train.types import Batch, Document, Segment

__all__ = ["Parts", "open_run", "open_source", "order_of"]

Say = Callable[[str], None]


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
    longest_below: Callable[[int, TrainSettings], int]  # that fits where a number of tokens did not

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


def order_of(prepared: Prepared, *, num_sequences: int) -> Order:
    """Return the order of batches; `num_sequences` processes have batches of their own in a step."""
    train = prepared.settings.train
    packing = Packing(
        prepared.training, tokens=batch_tokens(prepared.settings), seed=train.seed, num_buckets=train.buckets
    )
    return Order(packing, per_step=train.accumulate * num_sequences)


def open_run(prepared: Prepared, processes: Processes, *, say: Say) -> Parts:
    """Load the target, make the head, and order the batches. Raises UserError."""
    prepared = fitted(prepared, free=available_bytes(prepared.head_device))
    settings, found = prepared.settings, prepared.found
    whole = open_source(prepared)
    head, source = _head(prepared, whole, say)
    embed_VH = source.teacher.embed_VH
    longest = max(map(len, prepared.training), default=0)
    why = head.settle_attention(
        embed_VH.device, embed_VH.dtype, longest=longest, deterministic=settings.train.deterministic
    )
    if why is not None:
        say(f"attention {why}")
    order = order_of(prepared, num_sequences=processes.size if settings.train.share == "sequences" else 1)
    num_steps = settings.train.steps or order.num_steps(settings.train.epochs)
    counts = count_supervised(prepared.training, found.config.vocab_size)
    ids_V = head.readout.target_ids_V.cpu()
    shares = coverage(counts, ids_V)
    covered = ", ".join(f"{_named(segment)} {100 * share:.2f} %" for segment, share in shares.items())
    say(
        f"chats    {len(prepared.training)} documents, {len(prepared.held_out)} more held out; {num_steps} steps, "
        f"batches {100 * order.filled():.1f} % full"
    )
    if found.device.type == "cuda":
        say(f"passes   {settings.train.rows_of_pass:,} rows, tiles of {settings.train.rows_of_tile:,} positions")
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
        longest_below=partial(longest_below, prepared),
    )


def _named(segment: Segment | None) -> str:
    return "all" if segment is None else segment.name.lower()


def open_source(prepared: Prepared) -> HiddenStates:
    """Return the states with all taps that any reading of the head wants. Raises UserError, memory being the first."""
    settings, found = prepared.settings, prepared.found
    for device in device_bytes(prepared, longest=settings.data.context):
        check_memory(
            lambda length, device=device: device_bytes(prepared, longest=length)[device],  # type: ignore[misc]
            longest=settings.data.context,
            device=device,
            free=available_bytes(device),
        )
    with current(found.device):
        source = _target_source(prepared)
    return source if prepared.head_device == found.device else MovedStates(source, prepared.head_device)


def _target_source(prepared: Prepared) -> HiddenStates:
    """Return the states on the target's device."""
    settings, found, taps = prepared.settings, prepared.found, all_taps(prepared)
    if settings.states.folder is not None:
        return open_folder(
            Path(settings.states.folder),
            taps=taps,
            device=found.device,
            dtype=found.dtype,
            fingerprint=found.fingerprint,
            labels_suffice=settings.train.loss == "hard",
        )
    if found.device.type == "cuda" and settings.states.cache > available_bytes(torch.device("cpu")):
        raise UserError(
            f"states.cache is {readable(settings.states.cache)} of the host's memory, of which "
            f"{readable(available_bytes(torch.device('cpu')))} are free: give it less"
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
        head.rows_of_pass, head.attention = settings.train.rows_of_pass, settings.train.attention
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

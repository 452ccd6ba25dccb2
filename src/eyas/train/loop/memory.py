"""Sizes of a run by owner, in bytes and from shapes alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from eyas.model.config import GptOssConfig
from eyas.train.heads.making import HeadMaking
from eyas.train.loop.prepared import Prepared
from eyas.train.loss.teacher import VOCABULARY
from eyas.train.settings.schema import TrainSettings
from eyas.train.states.memory import at_once, longest_that_fits

__all__ = [
    "CHUNKS",
    "TILES",
    "all_taps",
    "device_bytes",
    "fitted",
    "head_bytes",
    "longest_below",
    "run_bytes",
    "teacher_bytes",
]

CHUNKS = (8192, 4096, 2048, 1024, 512)  # rows of a pass: nothing of one is computed twice, so fewer is what is left
TILES = (4096, 2048, 1024, 512)
HEAD_OWNERS = ("head and optimiser", "head matrices", "head pass", "loss tiles")
MARGIN = 0.25  # of what a length needs by estimate, where it did not fit
PLAIN_COPIES = 6  # of a tile of logits, alive at once in plain operations
STATE_COPIES = 4  # of the head's weights in fp32: weights, gradients, and the two moments of AdamW


def fitted(prepared: Prepared, *, free: int) -> Prepared:
    """Return a run on a GPU with the longest passes, and then the largest tiles, that fit into `free` bytes.

    What the settings give stays, and so does everything on a CPU. Where nothing fits the smallest are taken.
    """
    train, longest = prepared.settings.train, prepared.settings.data.context
    if prepared.found.device.type != "cuda" or (train.chunk and train.tile):
        return prepared
    choices = [
        replace(prepared, settings=replace(prepared.settings, train=replace(train, chunk=chunk, tile=tile)))
        for chunk in ((train.chunk,) if train.chunk else CHUNKS)
        for tile in ((train.tile,) if train.tile else TILES)
    ]
    device = prepared.head_device
    return next(
        (one for one in choices if at_once(device_bytes(one, longest=longest)[device], device) <= free), choices[-1]
    )


def longest_below(prepared: Prepared, length: int, train: TrainSettings) -> int:
    """Return the longest documents, of fewer than `length` tokens, that fit by estimate where `length` did not; or 0.

    The estimate of `length` was too low, by what is not known: documents are taken to fit whose part of it, beside what
    any length needs, is smaller by a quarter.
    """
    settings = replace(prepared.settings, train=replace(train, batch_tokens=None))
    changed = replace(prepared, settings=settings)

    def needed(tokens: int) -> int:
        return at_once(run_bytes(changed, longest=tokens), prepared.found.device)

    free = needed(1) + int((1 - MARGIN) * (needed(length) - needed(1)))
    return longest_that_fits(needed, free=free, at_most=length - 1)


def teacher_bytes(target: GptOssConfig, itemsize: int) -> int:
    """Return the bytes of the embedding and lm_head of a target, which its head reads."""
    return 2 * target.vocab_size * target.hidden_size * itemsize


def device_bytes(prepared: Prepared, *, longest: int) -> dict[torch.device, dict[str, int]]:
    """Return the bytes by owner of a run on each of its devices, for documents of up to `longest` tokens.

    Where the head has a device of its own, the states of a step are there once more, with the teacher's matrices.
    """
    found, owners = prepared.found, run_bytes(prepared, longest=longest)
    if prepared.head_device == found.device:
        return {found.device: owners}
    of_head = {name: owners.pop(name) for name in HEAD_OWNERS}
    of_head["teacher"] = teacher_bytes(found.config, found.dtype.itemsize)
    of_head["states"] = owners["states"] + owners.pop("states of a step", 0)
    return {found.device: owners, prepared.head_device: of_head}


def run_bytes(prepared: Prepared, *, longest: int) -> dict[str, int]:
    """Return the bytes by owner of a run whose documents have up to `longest` tokens: states, head, one step."""
    settings, making, config = prepared.settings, prepared.making, prepared.head_config
    train, size = settings.train, prepared.found.dtype.itemsize
    tokens = max(longest, train.batch_tokens or 0)
    owners = _states_bytes(prepared, longest=longest, tokens=tokens)
    if train.accumulate > 1:  # a step holds the states of all of its batches
        owners["states of a step"] = (train.accumulate - 1) * owners["states"]
    return owners | head_bytes(
        making, config, train, vocab_size=prepared.found.config.vocab_size, tokens=tokens, rows=tokens, itemsize=size
    )


def head_bytes(
    making: HeadMaking,
    config: Any,
    train: TrainSettings,
    *,
    vocab_size: int,
    tokens: int,
    rows: int,
    itemsize: int,
) -> dict[str, int]:
    """Return the bytes by owner of a head and its steps, of batches of `tokens` tokens of which `rows` are computed.

    head and optimiser  weights, gradients and moments in fp32
    head matrices       in the compute dtype, where that is narrower; the target's lm_head over the draft vocabulary
    head pass           activations of a pass, keys and values of depth 0 with their gradients
    loss tiles          logits in fp32 of teacher and draft, and what is made of them; a block of the full vocabulary
    """
    parameters, draft = making.num_parameters(config), int(config.draft_vocab_size)
    narrow = parameters * itemsize if itemsize < 4 else 0
    of_logit = 4 + 4 + itemsize if itemsize < 4 else 4 * PLAIN_COPIES
    return {
        "head and optimiser": STATE_COPIES * 4 * parameters,
        "head matrices": narrow + draft * config.target_hidden_size * itemsize,
        "head pass": making.activation_bytes(
            config,
            num_rows=min(train.rows_of_pass, rows),
            num_tokens=tokens,
            num_depths=train.depths,
            itemsize=itemsize,
        ),
        "loss tiles": min(train.rows_of_tile, tokens) * max(draft * of_logit, 4 * min(VOCABULARY, vocab_size)),
    }


def _states_bytes(prepared: Prepared, *, longest: int, tokens: int) -> dict[str, int]:
    """Return the bytes by owner of the source of states, for a batch of `tokens` tokens."""
    settings, found = prepared.settings, prepared.found
    num_taps = len(all_taps(prepared))
    if settings.states.folder is not None:
        width = found.config.hidden_size * found.dtype.itemsize
        return {"teacher": 2 * found.config.vocab_size * width, "states": (num_taps + 1) * tokens * width}
    cache = settings.states.cache if found.device.type == "cpu" else 0
    return found.memory(num_taps=num_taps).owners(longest=longest, batch_tokens=tokens, cache_bytes=cache)


def all_taps(prepared: Prepared) -> tuple[int, ...]:
    """Return the taps that any reading of the head wants."""
    return tuple(dict.fromkeys(tap for taps in prepared.taps.values() for tap in taps))

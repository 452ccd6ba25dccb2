"""Sizes of a run by owner, in bytes and from shapes alone."""

from __future__ import annotations

from eyas.train.loop.prepared import Prepared

__all__ = ["all_taps", "run_bytes"]

STATE_COPIES = 4  # of the head's weights in fp32: weights, gradients, and the two moments of AdamW


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
    num_taps = len(all_taps(prepared))
    if settings.states.folder is not None:
        width = found.config.hidden_size * found.dtype.itemsize
        return {"teacher": 2 * found.config.vocab_size * width, "states": (num_taps + 1) * tokens * width}
    cache = settings.states.cache if found.device.type == "cpu" else 0
    return found.memory(num_taps=num_taps).owners(longest=longest, batch_tokens=tokens, cache_bytes=cache)


def all_taps(prepared: Prepared) -> tuple[int, ...]:
    """Return the taps that any reading of the head wants."""
    return tuple(dict.fromkeys(tap for taps in prepared.taps.values() for tap in taps))

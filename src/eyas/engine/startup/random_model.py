"""Models of true shapes whose weights are drawn in memory: for speed without a download, never for text.

`eyas bench engine --shape` measures them in its own process, and `eyas serve random:SHAPE` serves them: with the demo
model's vocabulary, and random drafts that are accepted at a set rate.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from eyas.base.bundled import DEMO, random_shape
from eyas.base.errors import UserError, nearest
from eyas.base.harmony.rendering import stop_ids
from eyas.base.settings.config import EngineConfig
from eyas.base.synthetic import parse_acceptance
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.engine.drafters.registry import DRAFTERS
from eyas.engine.startup.decode_weights import check_decode_weights, fit_decode_weights
from eyas.engine.startup.draft_head import check_head_options, check_kind, round_head
from eyas.engine.startup.load import (
    SMALL_HIDDEN,
    LoadedEngine,
    LoadedModel,
    engine_options,
    info_of,
    ready_engine,
)
from eyas.kernels.layouts.dense import TILE_ROWS
from eyas.model.checkpoints.head_kinds import HEAD_KINDS
from eyas.model.checkpoints.names import all_parts
from eyas.model.checkpoints.placing import can_use_kernels, check_room
from eyas.model.checkpoints.shards import StoredTensor, num_bytes_of
from eyas.model.config import GptOssConfig
from eyas.model.devices import pick_device
from eyas.model.making.presets import PRESETS
from eyas.model.making.random_weights import RANDOM_HEADS, random_target

__all__ = ["load_random_engine", "random_model"]


def load_random_engine(config: EngineConfig, acceptance: str | None) -> LoadedEngine:
    """Draw, build and warm up what `random:SHAPE` names. `acceptance` is the value of `--simulate-acceptance`.

    Its answers are as long as their budget: no token ends them. Raises UserError.
    """
    if acceptance is not None and config.draft == "auto":
        config = replace(config, draft="eagle3")
    tokenizer = Tokenizer.load(DEMO)
    model = random_model(random_shape(config.model) or "", config, least_vocabulary=tokenizer.vocab_size)
    info = info_of(config, model)
    chances = None
    if acceptance is not None:
        if not model.options.max_drafts:
            raise UserError("--simulate-acceptance needs drafts; leave out --draft none and --draft-tokens 0")
        chances = parse_acceptance(acceptance).chances(model.options.max_drafts)
        info = replace(info, details={**info.details, "acceptance": f"set to {acceptance}"})
    endless = replace(model, folder=DEMO, config=replace(model.config, eos_ids=()))
    return ready_engine(endless, tokenizer, replace(info, eos_ids=stop_ids(tokenizer)), simulated_acceptance=chances)


def random_model(name: str, config: EngineConfig, *, least_vocabulary: int = 0) -> LoadedModel:
    """Draw a target of the shape `name`, with a head of the usual proportions if `--draft` names its kind.

    `least_vocabulary` widens a smaller one, to that of a tokenizer. Raises UserError for an unknown shape, one that
    does not fit into memory, and heads that cannot be drawn.
    """
    if name not in PRESETS:
        raise UserError(f"no shape '{name}'{nearest(name, PRESETS) or '; there are: ' + ', '.join(PRESETS)}")
    device, dtype = pick_device(config.device)
    target = PRESETS[name]
    target = replace(target, vocab_size=max(target.vocab_size, least_vocabulary))
    has_kernels = can_use_kernels(device, target)
    drafter = "none" if config.draft == "auto" else config.draft
    if drafter not in DRAFTERS:
        raise UserError(f"random weights have no head '{drafter}'; --draft names a kind: {', '.join(DRAFTERS)}")
    kind, size = HEAD_KINDS.get(drafter), config.draft_vocab
    options = engine_options(config, target, drafter, tokenizer_json=None, has_kernels=has_kernels)
    check_decode_weights(config, has_kernels=has_kernels)
    check_head_options(config, has_head=kind is not None)
    if kind is not None:
        check_kind(config, kind, has_kernels=has_kernels)
        if drafter not in RANDOM_HEADS:
            raise UserError(f"no random weights of {kind.title} can be drawn; there are: {', '.join(RANDOM_HEADS)}")
        if config.draft_counts is not None:
            raise UserError("the draft vocabulary of random weights is drawn at random; leave out --draft-counts")
        if size is not None and (size % TILE_ROWS or not 0 < size <= target.vocab_size):
            raise UserError(f"{name} can have a draft vocabulary of multiples of 16 up to {target.vocab_size}")
    check_room(_tensors(target), device, dtype, is_mapped=False)
    if device.type == "cpu" and target.hidden_size < SMALL_HIDDEN:
        torch.set_num_threads(1)
    weights, head = random_target(target, device, is_packed=has_kernels), None
    if kind is not None:
        head = round_head(config, kind, RANDOM_HEADS[drafter](target, weights, device, size))
    if has_kernels:
        weights = fit_decode_weights(config, weights)
    return LoadedModel(folder=Path(name), config=target, weights=weights, head=head, options=options, simulated=True)


def _tensors(config: GptOssConfig) -> list[StoredTensor]:
    """List the tensors of a shape as a checkpoint would hold them."""
    parts = (part for _, _, _, group in all_parts(config, "hf") for part in group)
    return [
        StoredTensor(file="", dtype=part.dtype, shape=part.shape, num_bytes=num_bytes_of(part.dtype, part.shape))
        for part in parts
    ]

"""Loads an engine from settings: finds checkpoints, picks the device, loads, checks, builds."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from eyas.base.bundled import DEMO_NAME, OWN_HEAD, is_null, random_shape
from eyas.base.errors import UserError
from eyas.base.settings.config import EngineConfig
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.base.types import ModelInfo
from eyas.engine.drafters.registry import DRAFTERS
from eyas.engine.startup.backend import check_round_size
from eyas.engine.startup.build import (
    BuiltEngine,
    EngineOptions,
    build_engine,
    check_options,
    row_invariant,
)
from eyas.engine.startup.decode_weights import check_decode_weights, fit_decode_weights
from eyas.engine.startup.draft_head import check_head_options, check_kind, keep_tokens, pack_head, round_head
from eyas.engine.startup.warm_up import warm_up
from eyas.model.checkpoints.device_layout import num_copies, pack_layer, pack_lm_head
from eyas.model.checkpoints.head_kinds import HEAD_KINDS, find_kind
from eyas.model.checkpoints.hub import resolve
from eyas.model.checkpoints.loader import inspect_target, load_head, load_target
from eyas.model.checkpoints.placing import can_use_kernels, check_room
from eyas.model.checkpoints.shards import read_headers
from eyas.model.config import GptOssConfig
from eyas.model.devices import pick_device
from eyas.model.making.make import has_random_weights
from eyas.model.weights import Head, TargetWeights

__all__ = [
    "SMALL_HIDDEN",
    "LoadedEngine",
    "LoadedModel",
    "engine_options",
    "find_checkpoints",
    "info_of",
    "load_engine_parts",
    "load_model",
    "load_tokenizer",
    "ready_engine",
]

AUTO_CONTEXT = 32 * 1024
SMALL_HIDDEN = 1024  # smaller matrices are computed faster by one thread
log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    built: BuiltEngine
    tokenizer: Tokenizer
    info: ModelInfo
    folder: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedModel:
    """Weights in memory, from which any number of engines can be built."""

    folder: Path
    config: GptOssConfig
    weights: TargetWeights
    head: Head | None
    options: EngineOptions
    simulated: bool  # the weights of the target or of the head are random

    def build(self, **changes: Any) -> BuiltEngine:
        """Build an engine with the loaded options and these changes to them. Raises UserError."""
        return build_engine(self.config, self.weights, replace(self.options, **changes), head=self.head)


def load_engine_parts(config: EngineConfig, *, progress: Progress | None = None) -> LoadedEngine:
    """Load and warm up an engine. Raises UserError for errors in the settings."""
    model = load_model(config, progress=progress)
    return ready_engine(model, load_tokenizer(model), info_of(config, model))


def info_of(config: EngineConfig, model: LoadedModel) -> ModelInfo:
    """Return the facts about a loaded model that the HTTP side needs."""
    return ModelInfo(
        name=_name(config.model),
        context=model.options.context,
        vocab_size=model.config.vocab_size,
        eos_ids=model.config.eos_ids,
        drafter=model.options.drafter,
        details=_details(config, model),
        page_size=model.options.page_size,
        simulated=model.simulated,
    )


def ready_engine(model: LoadedModel, tokenizer: Tokenizer, info: ModelInfo, **changes: Any) -> LoadedEngine:
    """Build an engine with these changes to the model's options, and warm it up."""
    built = model.build(**changes)
    try:
        built.core.grammars.prepare()
    except UserError as error:
        log.warning("requests with a grammar or a schema will be refused: %s", error)
    warm_up(built.core)
    return LoadedEngine(built, tokenizer, info, model.folder)


def _details(config: EngineConfig, model: LoadedModel) -> dict[str, str]:
    embed = model.weights.embed_VH
    details = {"device": f"{embed.device}, {str(embed.dtype).removeprefix('torch.')}"}
    if model.head is not None:
        details["head"] = str(model.folder / OWN_HEAD) if config.draft == "auto" else config.draft
        if config.draft_vocab is not None:
            details["draft vocabulary"] = str(config.draft_vocab)
        if config.draft_weights != "bf16":
            details["draft weights"] = config.draft_weights
    if config.kv_dtype != "auto":
        details["keys and values"] = config.kv_dtype
    if num_copies(model.weights):
        details["decode weights"] = "attention in 12 bits too"
    if model.options.drafter != "none":
        details["draft tokens"] = str(config.draft_tokens)
    return details


def load_model(config: EngineConfig, *, progress: Progress | None = None) -> LoadedModel:
    """Load target and head, checked against each other and this machine. Raises UserError."""
    device, dtype = pick_device(config.device)
    folder, drafter, head_folder = find_checkpoints(config)
    stored = read_headers(folder)
    head_stored = {} if head_folder is None else read_headers(head_folder)
    check_room([*stored.values(), *head_stored.values()], device, dtype)
    inspected = inspect_target(folder, stored)
    has_kernels = can_use_kernels(device, inspected[0])
    options = engine_options(
        config, inspected[0], drafter, tokenizer_json=folder / "tokenizer.json", has_kernels=has_kernels
    )
    check_decode_weights(config, has_kernels=has_kernels)
    kind = HEAD_KINDS.get(drafter)
    if kind is not None:
        check_kind(config, kind, has_kernels=has_kernels)
    target_config, weights = load_target(
        folder,
        device=device,
        dtype=dtype,
        inspected=inspected,
        progress=progress,
        layout=pack_layer if has_kernels else None,
    )
    if device.type == "cpu" and target_config.hidden_size < SMALL_HIDDEN:
        torch.set_num_threads(1)
    plain, head = weights, None
    if has_kernels:
        weights = pack_lm_head(plain)
    if kind is not None and head_folder is not None:
        head = load_head(head_folder, target_config, plain, device=device, dtype=dtype, stored=head_stored)
        head = keep_tokens(config, kind, folder, target_config, head)
        if has_kernels:
            head = pack_head(kind, head, head_folder, plain=plain, packed=weights)
        head = round_head(config, kind, head)
    del plain
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()  # frees the tensors from which weights were packed
    if has_kernels:
        weights = fit_decode_weights(config, weights)
    if not has_kernels and not row_invariant(weights, dtype):
        log.warning(
            "matmul on this device is not row-invariant; "
            "speculation may change a token where two are almost equally likely"
        )
    return LoadedModel(
        folder=folder,
        config=target_config,
        weights=weights,
        head=head,
        options=options,
        simulated=has_random_weights(folder) or (head_folder is not None and has_random_weights(head_folder)),
    )


def find_checkpoints(config: EngineConfig) -> tuple[Path, str, Path | None]:
    """Return the target's folder, the kind of drafter and the folder of its head, if any. Raises UserError."""
    if is_null(config.model):
        raise UserError(
            f"'{config.model}' is not a model: it only serves ('eyas serve null'), and 'eyas bench http' measures it; "
            "name a model, e.g. demo"
        )
    if random_shape(config.model) is not None:
        raise UserError(
            f"'{config.model}' has no checkpoint: its weights are random, and 'eyas serve' alone makes them"
        )
    if config.offline:
        os.environ["HF_HUB_OFFLINE"] = "1"  # huggingface_hub reads it at import
    folder = _folder(config.model, config.revision)
    return folder, *_drafter(config, folder)


def load_tokenizer(model: LoadedModel) -> Tokenizer:
    """Load the tokenizer in the folder of the weights. Raises UserError."""
    tokenizer = Tokenizer.load(model.folder)
    if tokenizer.vocab_size > model.config.vocab_size:
        raise UserError(
            f"{model.folder}: tokenizer.json knows {tokenizer.vocab_size} tokens, "
            f"the model {model.config.vocab_size}; they belong to different checkpoints"
        )
    return tokenizer


def _folder(model: str, revision: str | None) -> Path:
    is_local = model == DEMO_NAME or Path(model).is_dir()
    return resolve(f"{model}@{revision}" if revision and not is_local else model)


def _name(model: str) -> str:
    """Return the model's name in the API: a hub id as given, or the name of the folder."""
    if model == DEMO_NAME:
        return "eyas-demo"
    return Path(model).resolve().name if Path(model).is_dir() else model


def _drafter(config: EngineConfig, folder: Path) -> tuple[str, Path | None]:
    """Return the kind of drafter, and the folder of its head if it has one."""
    draft = config.draft
    if draft == "auto":
        draft = str(folder / OWN_HEAD) if (folder / OWN_HEAD).is_dir() else "none"
    check_head_options(config, has_head=draft not in DRAFTERS)
    if draft in DRAFTERS:
        return draft, None
    head = resolve(draft)
    return find_kind(head), head


def engine_options(
    config: EngineConfig, target: GptOssConfig, drafter: str, *, tokenizer_json: Path | None, has_kernels: bool
) -> EngineOptions:
    """Return the options of engines, checked before any weights are read. Raises UserError."""
    options = EngineOptions(
        context=min(target.max_context, AUTO_CONTEXT) if config.context == "auto" else config.context,
        concurrency=config.concurrency,
        drafter=drafter,
        draft_tokens=config.draft_tokens,
        kv_dtype=config.kv_dtype,
        busy_chunk_tokens=config.busy_chunk_tokens,
        target_itl_s=config.target_itl / 1e3 if config.target_itl else None,
        seed=config.seed,
        tokenizer_json=tokenizer_json,
        whole_lm_head=config.whole_lm_head,
    )
    check_options(target, options)
    if has_kernels:
        check_round_size(options.concurrency)
    return options

"""From settings to a ready engine: find the checkpoints, pick the device, load, check, build."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

import eyas
from eyas.base.config import EngineConfig
from eyas.base.errors import UserError
from eyas.base.tokenizer import Tokenizer
from eyas.base.types import ModelInfo
from eyas.engine.build import ROW_TILES, BuiltEngine, EngineOptions, build_engine, row_invariant
from eyas.engine.memory import available_bytes, readable
from eyas.model.config import GptOssConfig, HeadConfig
from eyas.model.hub import resolve
from eyas.model.loader import load_head, load_target
from eyas.model.weights import HeadWeights, TargetWeights

__all__ = ["LoadedEngine", "load_engine_parts"]

AUTO_CONTEXT = 32 * 1024
DEMO = Path(eyas.__file__).parent / "demo"
log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    built: BuiltEngine
    tokenizer: Tokenizer
    info: ModelInfo


def load_engine_parts(config: EngineConfig, *, progress: Progress | None = None) -> LoadedEngine:
    """Raises UserError for whatever the person who typed the settings can mend."""
    if config.offline:
        os.environ["HF_HUB_OFFLINE"] = "1"  # read by huggingface_hub when it is imported
    device, dtype = _device(config.device)
    folder = _folder(config.model, config.revision)
    _check_room(folder, device)
    target_config, weights = load_target(folder, device=device, dtype=dtype, progress=progress)
    tokenizer = Tokenizer.load(folder)
    if tokenizer.vocab_size > target_config.vocab_size:
        raise UserError(
            f"{folder}: tokenizer.json knows {tokenizer.vocab_size} tokens, the model {target_config.vocab_size}; "
            "they belong to different checkpoints"
        )
    kind, head = _drafter(config, target_config, weights, device, dtype)
    options = EngineOptions(
        context=_context(config, target_config),
        concurrency=config.concurrency,
        drafter=kind,  # type: ignore[arg-type]
        draft_tokens=config.draft_tokens,
        seed=config.seed,
    )
    if not row_invariant(weights, ROW_TILES):
        log.warning(
            "matrix products on this machine depend on a row's place among others; "
            "speculation may change a token where two are nearly as likely"
        )
    built = build_engine(target_config, weights, options, head=head)
    name = "eyas-demo" if config.model == "demo" else config.model
    info = ModelInfo(
        name=name,
        context=options.context,
        vocab_size=target_config.vocab_size,
        eos_ids=target_config.eos_ids,
        drafter=kind,
    )
    return LoadedEngine(built, tokenizer, info)


def _device(name: str) -> tuple[torch.device, torch.dtype]:
    """The device and the dtype of matrices on it: fp32 on a CPU, bf16, as published, on a GPU."""
    has_cuda = torch.cuda.is_available()
    if name == "auto":
        name = "cuda" if has_cuda else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"'{name}' is no device; use cpu, cuda or cuda:N") from error
    if device.type == "cpu":
        return device, torch.float32
    if device.type != "cuda":
        raise UserError(f"device '{name}' is not supported; use cpu, cuda or cuda:N")
    if not has_cuda or (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"there is no device '{name}' here (CUDA devices: {torch.cuda.device_count()}); try --device cpu"
        )
    return device, torch.bfloat16


def _folder(model: str, revision: str | None) -> Path:
    if model == "demo":
        return DEMO / "target"
    return resolve(f"{model}@{revision}" if revision and not Path(model).is_dir() else model)


def _check_room(folder: Path, device: torch.device) -> None:
    """Refuse before loading what cannot fit: on a GPU all weights, on a CPU all but the experts, which stay mapped."""
    needed = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    room = available_bytes(device)
    if device.type == "cuda" and needed > room:
        raise UserError(f"too little memory: the weights are {readable(needed)}, {device} has {readable(room)} free")


def _drafter(
    config: EngineConfig,
    target_config: GptOssConfig,
    weights: TargetWeights,
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[str, tuple[HeadConfig, HeadWeights] | None]:
    draft = config.draft
    if draft == "auto":
        draft = str(DEMO / "head") if config.model == "demo" else "none"
    if draft in ("none", "ngram"):
        return draft, None
    head = load_head(resolve(draft), target_config, weights, device=device, dtype=dtype)
    return "eagle3", head


def _context(config: EngineConfig, target_config: GptOssConfig) -> int:
    if config.context == "auto":
        return min(target_config.max_context, AUTO_CONTEXT)
    return config.context

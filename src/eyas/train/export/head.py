"""Writes a trained EAGLE-3 head as a checkpoint folder: config.json, model.safetensors, a model card.

Two forms: `midlayer.*`, which SGLang, vLLM, TensorRT-LLM and eyas load, and that of speculators (`layers.0.*`,
`transformer_layer_config`), which vLLM and eyas load. All tensors lie in one file, since converters want that. The
embedding is the target's, so it is left out unless the head has its own.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from eyas.base.errors import UserError
from eyas.model.checkpoints.eagle3_names import head_parts
from eyas.model.checkpoints.names import flat
from eyas.model.config import Eagle3Config, GptOssConfig
from eyas.train.export.card import Facts, card
from eyas.train.export.config import Engine, Form, config_json

__all__ = ["export_head"]

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def export_head(
    config: Eagle3Config,
    tensors: Mapping[str, Tensor],
    target_ids_V: Tensor,
    folder: Path,
    *,
    form: Form,
    target: GptOssConfig,
    facts: Facts,
    engine: Engine = "eyas",
    dtype: Literal["bfloat16", "float32"] = "bfloat16",
    embed_VH: Tensor | None = None,
) -> Path:
    """Write a head to the new folder `folder`, whole or not at all, and return it.

    `tensors` are those of the head's state dict, `target_ids_V` int64 [Vd] the target id of every draft id, ascending,
    `embed_VH` an embedding of the head's own. `engine` matters for taps other than the default ones: their ids are
    written as it reads them.
    Raises UserError if the folder exists or cannot be written, the form or the engine cannot express the head, or a
    value is not finite.
    """
    value = config_json(
        config,
        form=form,
        engine=engine,
        target=target,
        target_name=facts.target,
        draft_tokens=facts.draft_tokens,
        dtype=dtype,
    )
    own = {} if embed_VH is None else {"embed_tokens.weight": embed_VH}
    stored = _checked(config, {**tensors, **own}, dtype)
    if form == "speculators":
        stored = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in stored.items()}
    stored |= _vocabulary(config, target_ids_V)
    files = {
        "config.json": _text(value),
        "README.md": card(config, facts, form=form, engine=engine, target=target),
    }
    if facts.evaluation is not None:
        files["evaluation.json"] = _text(dict(facts.evaluation))
    return _write(folder, files, stored)


def _checked(config: Eagle3Config, tensors: Mapping[str, Tensor], dtype: str) -> dict[str, Tensor]:
    """Return the tensors in the type of the file. They have to be those of the config, and finite."""
    parts = head_parts(config, "midlayer")
    del parts["target_ids_V"]
    if "embed_tokens.weight" not in tensors:
        del parts["embed_VH"]
    shapes = {part.name: tuple(part.shape) for part in flat(parts)}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes != found:
        wrong = sorted(name for name in shapes.keys() | found.keys() if shapes.get(name) != found.get(name))
        raise ValueError(f"these tensors are missing, unknown or of another shape: {', '.join(wrong)}")
    stored = {}
    for name, tensor in tensors.items():
        stored[name] = tensor.detach().cpu().to(_DTYPES[dtype]).contiguous()
        if not bool(stored[name].isfinite().all()):
            raise UserError(f"{name} holds values that are not finite; export an earlier checkpoint")
    return stored


def _vocabulary(config: Eagle3Config, target_ids_V: Tensor) -> dict[str, Tensor]:
    """Return d2t, offsets from draft to target ids, and t2d, the mask that speculators asks for; none if all can."""
    ids = target_ids_V.cpu()
    inside = len(ids) == config.draft_vocab_size and bool((ids[1:] > ids[:-1]).all())
    if not inside or int(ids[0]) < 0 or int(ids[-1]) >= config.vocab_size:
        raise ValueError(f"the draft vocabulary is no ascending list of {config.draft_vocab_size} target ids")
    if config.draft_vocab_size == config.vocab_size:
        return {}  # vLLM has no place for an identity
    is_drafted_V = torch.zeros(config.vocab_size, dtype=torch.bool)
    is_drafted_V[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": is_drafted_V}


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"


def _write(folder: Path, files: Mapping[str, str], tensors: dict[str, Tensor]) -> Path:
    """Fill a neighbour folder and rename it, so that `folder` is whole or absent."""
    unfinished = folder.with_name(folder.name + ".partial")
    for path in (folder, unfinished):
        if path.exists():
            raise UserError(f"{path} exists; choose another folder or delete it")
    try:
        unfinished.mkdir(parents=True)
        for name, text in files.items():
            (unfinished / name).write_text(text, encoding="utf-8")
        save_file(tensors, unfinished / "model.safetensors", metadata={"format": "pt"})
        return unfinished.rename(folder)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder} cannot be written: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)

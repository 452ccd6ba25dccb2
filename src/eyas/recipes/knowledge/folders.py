"""Identifies checkpoints and heads in the user's own folders: the known model, and the size. Reads JSON alone."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from eyas.base.errors import UserError
from eyas.recipes.knowledge.tables import Knowledge
from eyas.recipes.records import Head, Model

__all__ = ["head_of_folder", "model_of_folder", "weight_bytes"]

BF16 = 2
KIND: Final = "eagle3"
T = TypeVar("T", bound=Struct)


class ModelConfig(Struct, frozen=True):
    """Fields of config.json that identify a known model by its shape."""

    num_hidden_layers: int
    hidden_size: int
    vocab_size: int


class HeadConfig(Struct, frozen=True):
    """Fields of an EAGLE-3 head's config.json: a Llama of one layer."""

    hidden_size: int
    vocab_size: int
    num_key_value_heads: int
    head_dim: int | None = None
    num_attention_heads: int = 1
    max_position_embeddings: int | None = None


class Metadata(Struct, frozen=True):
    total_size: int | None = None


class Index(Struct, frozen=True):
    metadata: Metadata = Metadata()


def model_of_folder(folder: Path, known: Knowledge) -> Model:
    """Return the known model that `folder` is by its shape. Raises UserError for what is no checkpoint of one."""
    config = _read(folder / "config.json", ModelConfig)
    for model in known.models.values():
        if (model.num_layers, model.hidden_size, model.vocab_size) == msgspec.structs.astuple(config):
            return model
    raise UserError(
        f"{folder} is no known model by its shape ({config.num_hidden_layers} layers of {config.hidden_size}, "
        f"{config.vocab_size} tokens); known are {', '.join(known.models)}"
    )


def head_of_folder(folder: Path, target: Model, known: Knowledge) -> Head:
    """Describe the user's own head for `target`: shapes from config.json, bytes from its files, acceptance unknown."""
    config = _read(folder / "config.json", HeadConfig)
    if (config.hidden_size, config.vocab_size) != (target.hidden_size, target.vocab_size):
        raise UserError(f"{folder} is no head of {target.name}: hidden size or vocabulary differ")
    total = weight_bytes(folder)
    if total is None:
        raise UserError(f"{folder} has no safetensors files")
    embedding = config.vocab_size * config.hidden_size * BF16
    head_dim = config.head_dim or config.hidden_size // config.num_attention_heads
    return Head(
        name=folder.resolve().name,
        title="a head of your own",
        repo=str(folder),
        kind=KIND,
        target=target.name,
        total_bytes=total,
        step_bytes=total - embedding if total > embedding else total,
        kv_bytes_per_token=2 * config.num_key_value_heads * head_dim * BF16,
        max_positions=config.max_position_embeddings,
        engines={engine.name: engine.versions for engine in known.engines.values() if KIND in engine.spec_methods},
        sources=(str(folder / "config.json"),),
        date="",
    )


def weight_bytes(folder: Path) -> int | None:
    """Return the size in the checkpoint's index, else the size of its files; None without any."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        total = _read(index, Index).metadata.total_size
        if total is not None and total > 0:
            return total
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) or None


def _read(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise UserError(f"{path} is missing: name a folder with a checkpoint, or a model by its name") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not what a checkpoint has there: {error}") from None

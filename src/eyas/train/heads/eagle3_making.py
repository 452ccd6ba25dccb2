"""Makes EAGLE-3 heads to train: their sizes from the settings of a run, a fresh one, or one from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eyas.base.errors import UserError
from eyas.kernels.training.library import PART_KEYS
from eyas.model.checkpoints.eagle3 import EAGLE3
from eyas.model.checkpoints.eagle3_config import tap_ids
from eyas.model.checkpoints.shards import read_json
from eyas.model.config import FINAL_NORM_TAP, Eagle3Config, GptOssConfig, RopeConfig
from eyas.model.taps import TapReading, default_taps, read_taps
from eyas.model.weights import Eagle3Weights, TargetWeights
from eyas.train.heads.eagle3 import Eagle3TrainableHead
from eyas.train.heads.flops import head_flops
from eyas.train.heads.making import HeadMaking
from eyas.train.settings.schema import HeadSettings
from eyas.train.types import Teacher

__all__ = ["EAGLE3_MAKING"]

MLP_RATIO = 6  # of the published heads for gpt-oss: 17,280 to 2,880


def fresh_config(settings: HeadSettings, target: GptOssConfig, *, context: int) -> Eagle3Config:
    """Return the config of a fresh head; sizes that are not given are the target's. Raises UserError."""
    hidden = target.hidden_size  # of the embedding that a fresh head reads
    vocab = target.vocab_size if settings.draft_vocab == "full" else min(settings.draft_vocab, target.vocab_size)
    taps = default_taps(target.num_layers) if settings.taps is None else tuple(settings.taps)
    wrong = [tap for tap in taps if not FINAL_NORM_TAP <= tap <= target.num_layers]
    if wrong or not taps or len(set(taps)) < len(taps):
        raise UserError(f"head.taps wants different boundaries from 0 to {target.num_layers}, or -1, got {list(taps)}")
    if settings.norm_before_fc and settings.fc_norm:
        raise UserError("head.norm_before_fc and head.fc_norm exclude each other")
    heads, kv_heads = settings.num_heads or target.num_heads, settings.num_kv_heads or target.num_kv_heads
    dim = settings.head_dim or target.head_dim
    if heads % kv_heads or dim % 2:
        raise UserError(f"head: {heads} query heads over {kv_heads} key and value heads of {dim} are impossible")
    return Eagle3Config(
        vocab_size=target.vocab_size,
        draft_vocab_size=vocab,
        hidden_size=hidden,
        target_hidden_size=hidden,
        intermediate_size=settings.intermediate_size or MLP_RATIO * hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        taps=taps,
        rope=_rope(settings, target),
        max_context=context,
        has_fc=taps != (FINAL_NORM_TAP,),
        rms_norm_eps=target.rms_norm_eps,
        norm_before_residual=settings.norm_before_residual,
        norm_before_fc=settings.norm_before_fc,
        fc_norm=settings.fc_norm,
        norm_output=settings.norm_output,
    )


def _rope(settings: HeadSettings, target: GptOssConfig) -> RopeConfig:
    if settings.rope == "target":
        return target.rope
    return RopeConfig(
        theta=settings.rope_theta,
        kind=settings.rope,
        factor=settings.rope_factor,
        original_context=settings.rope_original_context,
    )


def fresh_head(
    config: Eagle3Config, target_ids_V: Tensor, teacher: Teacher, *, num_depths: int, seed: int
) -> Eagle3TrainableHead:
    """Draw a head in fp32 on the CPU. Its lm_head begins as the target's rows."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = Eagle3TrainableHead(config, target_ids_V, num_depths=num_depths)
    with torch.no_grad():
        head.lm_head.weight.copy_(teacher.lm_head_VH[target_ids_V.to(teacher.lm_head_VH.device)])
    return head


def checkpoint_config(folder: Path, target: GptOssConfig) -> Eagle3Config:
    """Return the config of a head on the disk, from its headers. Raises UserError if it is none for this target."""
    config: Eagle3Config = EAGLE3.inspect(folder, target, None, tap_convention="auto")
    return config


def tap_readings(folder: Path, target: GptOssConfig) -> dict[str, tuple[int, ...]]:
    """Return the meanings that the tap ids of a checkpoint can have, by name: one where it is certain, else two."""
    raw = read_json(folder / "config.json")
    config = checkpoint_config(folder, target)
    reading: TapReading = read_taps(
        tap_ids(raw, []), speculators="transformer_layer_config" in raw, num_layers=target.num_layers
    )
    if reading.certain or config.taps not in (reading.boundary, reading.output):
        return {"certain": config.taps}
    both = {"boundary": reading.boundary, "output": reading.output}
    return {name: taps for name, taps in both.items() if max(taps) <= target.num_layers}


def head_from_checkpoint(
    folder: Path, taps: tuple[int, ...], target: GptOssConfig, teacher: Teacher, *, num_depths: int
) -> Eagle3TrainableHead:
    """Load a published head to train it further, in fp32 on the CPU. Raises UserError."""
    shared = TargetWeights(
        embed_VH=teacher.embed_VH.float().cpu(),
        layers=(),
        norm_H=torch.empty(0),
        lm_head_VH=teacher.lm_head_VH.float().cpu(),
    )
    loaded = EAGLE3.load(folder, target, shared, device=torch.device("cpu"), dtype=torch.float32, stored=None)
    config, weights = replace(loaded.config, taps=taps), loaded.weights
    own = None if weights.embed_VH is shared.embed_VH else weights.embed_VH
    ids = weights.target_ids_V
    head = Eagle3TrainableHead(
        config,
        torch.arange(config.vocab_size) if ids is None else ids,
        num_depths=num_depths,
        embed_VH=own,
    )
    if bool((head.target_ids_V.diff() <= 0).any()):
        raise UserError(f"{folder}: its draft vocabulary is not in ascending order; training needs it to be")
    head.load_state_dict(dict(_parameters(config, weights)))
    return head


def activation_bytes(config: Eagle3Config, *, num_rows: int, num_tokens: int, num_depths: int, itemsize: int) -> int:
    """Estimate the bytes of a pass over `num_rows` of `num_tokens`: its graph, and keys and values of depth 0.

    A row keeps at each depth seven hidden states (the embedding and the hidden state, their norms side by side, the
    residual and its norm, the output's gradient), queries, attention, keys, values, three inner vectors of its MLP and,
    in fp32, rotation and log-sum-exp; once, the gradients of one depth. Keys and values of depth 0 have gradients in
    fp32 beside them. On a GPU flash attention holds gradients of keys and values for every query head, of some keys at
    a time.
    """
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    inner = 3 * config.intermediate_size
    depth = (7 * config.hidden_size + 2 * query + 2 * key + inner) * itemsize
    depth += (2 * config.head_dim + config.num_heads) * 4
    once = inner * itemsize + 4 * query * 4
    library = 2 * query * itemsize * min(num_tokens, PART_KEYS) if itemsize < 4 else 0
    return num_rows * (num_depths * depth + once) + num_tokens * 2 * key * (itemsize + 4) + library


def num_parameters(config: Eagle3Config) -> int:
    """Count the trained parameters, without allocating them."""
    with torch.device("meta"):
        head = Eagle3TrainableHead(config, torch.arange(config.draft_vocab_size))
    return sum(parameter.numel() for parameter in head.parameters())


def read_config(fields: Mapping[str, Any]) -> Eagle3Config:
    """Return the config whose fields are plain JSON values."""
    special = {"rope": RopeConfig(**fields["rope"]), "taps": tuple(fields["taps"])}
    return Eagle3Config(**{**fields, **special})


def _parameters(config: Eagle3Config, weights: Eagle3Weights) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of a head by their names in a checkpoint."""
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attn, mlp = "midlayer.self_attn", "midlayer.mlp"
    if weights.fc_HC is not None:
        yield "fc.weight", weights.fc_HC
    if weights.fc_input_norm_C is not None:
        yield "input_norm.weight", weights.fc_input_norm_C
    for index, norm in enumerate(weights.fc_norms_H):
        yield f"fc_norm.{index}.weight", norm
    yield "midlayer.hidden_norm.weight", weights.hidden_norm_H
    yield "midlayer.input_layernorm.weight", weights.input_norm_H
    yield "midlayer.post_attention_layernorm.weight", weights.post_norm_H
    for name, part in zip("qkv", weights.qkv_NH.split((query, key, key)), strict=True):
        yield f"{attn}.{name}_proj.weight", part
    yield f"{attn}.o_proj.weight", weights.o_HN
    gate, up = weights.gate_up_IH.chunk(2)
    yield from ((f"{mlp}.gate_proj.weight", gate), (f"{mlp}.up_proj.weight", up))
    yield f"{mlp}.down_proj.weight", weights.down_HI
    yield "norm.weight", weights.norm_H
    yield "lm_head.weight", weights.lm_head_VH


EAGLE3_MAKING = HeadMaking(
    fresh_config=fresh_config,
    fresh=fresh_head,
    checkpoint_config=checkpoint_config,
    tap_readings=tap_readings,
    from_checkpoint=head_from_checkpoint,
    activation_bytes=activation_bytes,
    flops=head_flops,
    num_parameters=num_parameters,
    read_config=read_config,
)

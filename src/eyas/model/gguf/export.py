"""Writes a gpt-oss checkpoint and its EAGLE-3 head as GGUF files for llama.cpp: architectures `gpt-oss` and `eagle3`.

Names and keys are those that llama.cpp reads (src/models/openai-moe.cpp, src/models/eagle3.cpp, src/llama-arch.cpp,
conversion/gpt_oss.py). What it cannot express is refused, never approximated, with one exception that is reported:
it rounds YaRN's correction range to whole dimensions, which gpt-oss was not trained with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from eyas.base.errors import UserError
from eyas.model.checkpoints.eagle3 import EAGLE3, inspect_head
from eyas.model.checkpoints.head_kinds import HEAD_KINDS, find_kind
from eyas.model.checkpoints.loader import inspect_target
from eyas.model.checkpoints.names import Part, Parts, TargetStyle, global_parts, layer_parts
from eyas.model.checkpoints.reading import Stored, TensorReader
from eyas.model.checkpoints.shards import Progress
from eyas.model.checkpoints.tensor_files import MappedTensors
from eyas.model.config import FINAL_NORM_TAP, Eagle3Config, GptOssConfig, RopeConfig
from eyas.model.gguf.container import GgufTensor, GgufType, ggml_mxfp4, raw, write_gguf
from eyas.model.gguf.vocab import chat_template, vocabulary
from eyas.model.mxfp4 import Mxfp4Tensor, dequantize
from eyas.model.networks.rope import inverse_frequencies
from eyas.model.taps import TapConvention, show_taps

__all__ = ["HEAD_FILE", "MODEL_FILE", "WEIGHTS", "Weights", "export_head", "export_target"]

Weights = Literal["stored", "bf16", "f32"]
WEIGHTS: tuple[Weights, ...] = ("stored", "bf16", "f32")
MODEL_FILE, HEAD_FILE = "model.gguf", "head.gguf"

_STORED = {"BF16": torch.bfloat16, "F16": torch.float16}  # anything else is written as f32
_KINDS = {torch.float32: GgufType.F32, torch.bfloat16: GgufType.BF16, torch.float16: GgufType.F16}
_FILE_TYPES = {"f32": 0, "bf16": 32, "stored": 38}  # llama.h: ALL_F32, MOSTLY_BF16, MOSTLY_MXFP4_MOE
_SWIGLU_LIMIT = 7.0  # a constant in llama.cpp
_NUM_TAPS = 3
Make = Callable[[], Tensor]


class _Expert(NamedTuple):
    """Rows of one expert's matrix: all (down), or every second one (gate, up)."""

    name: str
    field: str
    rows: slice


_EXPERTS = (
    _Expert("ffn_gate_exps", "gate_up", slice(0, None, 2)),
    _Expert("ffn_up_exps", "gate_up", slice(1, None, 2)),
    _Expert("ffn_down_exps", "down", slice(None)),
)


def export_target(
    folder: Path, out: Path, *, weights: Weights = "stored", name: str, progress: Progress | None = None
) -> list[str]:
    """Write the gpt-oss checkpoint in `folder` as the file `out`; returns what its users should know.

    "stored" keeps the checkpoint's numbers bit by bit, MXFP4 experts packed; "bf16" and "f32" unpack them. Vectors and
    routers are always f32, as llama.cpp wants them. Raises UserError for what llama.cpp cannot express.
    """
    config, stored, style = inspect_target(folder)
    _check_target(config, folder)
    metadata = _target_metadata(config, name, weights) | vocabulary(folder, config)
    template, notes = chat_template(folder), []
    if template is not None:
        metadata["tokenizer.chat_template"] = template
    else:
        notes.append("the checkpoint has no chat template; give llama-server one with --chat-template-file")
    if config.rope.kind == "yarn" and not config.rope.truncate:
        notes.append(
            "llama.cpp rounds YaRN's correction range to whole dimensions, gpt-oss does not: "
            "its logits differ a little from the checkpoint's"
        )
    with ExitStack() as files:
        reader = TensorReader(MappedTensors(folder, stored, files), stored, torch.device("cpu"), torch.float32, None)
        writer = _Tensors(reader, stored, weights)
        writer.add_target(config, style)
        write_gguf(out, "gpt-oss", metadata, writer.tensors, progress=progress)
    return notes


def export_head(
    folder: Path,
    out: Path,
    *,
    target_folder: Path,
    target_stored: Stored | None = None,
    weights: Weights = "stored",
    tap_convention: TapConvention = "auto",
    name: str,
    progress: Progress | None = None,
) -> None:
    """Write the EAGLE-3 head in `folder`, made for the model in `target_folder`, as the file `out`.

    `target_stored` are the headers of that model where its weights are not in the folder. Embedding and output matrix
    that the head leaves to its target are left to it here too. Raises UserError.
    """
    target, _, _ = inspect_target(target_folder, target_stored)
    if (kind := HEAD_KINDS[find_kind(folder)]) is not EAGLE3:
        _refuse(folder, [kind.title])
    config, stored, parts = inspect_head(folder, target, tap_convention=tap_convention)
    _check_head(config, folder)
    metadata = _head_metadata(config, name, weights) | vocabulary(target_folder, target)
    with ExitStack() as files:
        reader = TensorReader(MappedTensors(folder, stored, files), stored, torch.device("cpu"), torch.float32, None)
        writer = _Tensors(reader, stored, weights)
        writer.add_head(config, parts)
        write_gguf(out, "eagle3", metadata, writer.tensors, progress=progress)


class _Tensors:
    """The tensors of a GGUF file in order; nothing is read before a tensor's turn to be written comes."""

    def __init__(self, reader: TensorReader, stored: Stored, weights: Weights) -> None:
        self.tensors: list[GgufTensor] = []
        self._reader, self._stored, self._weights = reader, stored, weights

    def add_target(self, config: GptOssConfig, style: TargetStyle) -> None:
        shared = global_parts(config, style)
        self._matrix("token_embd.weight", shared["embed_VH"])
        for layer in range(config.num_layers):
            self._layer(f"blk.{layer}", config, layer_parts(config, layer, style))
        self._vector("output_norm.weight", shared["norm_H"])
        self._matrix("output.weight", shared.get("lm_head_VH", shared["embed_VH"]))

    def add_head(self, config: Eagle3Config, parts: Parts) -> None:
        if "embed_VH" in parts:
            self._matrix("token_embd.weight", parts["embed_VH"])
        self._matrix("fc.weight", parts["fc_HC"])
        if "fc_input_norm_C" in parts:
            self._vector("enc.output_norm.weight", parts["fc_input_norm_C"])
        self._vector("blk.0.attn_norm.weight", parts["input_norm_H"])
        self._vector("blk.0.attn_norm_2.weight", parts["hidden_norm_H"])
        self._attention("blk.0", "weight", parts["qkv_NH"], config)
        self._matrix("blk.0.attn_output.weight", parts["o_HN"])
        if config.rope.kind == "llama3":
            self._add("rope_freqs.weight", (config.head_dim // 2,), torch.float32, partial(_llama3, config))
        self._vector("blk.0.ffn_norm.weight", parts["post_norm_H"])
        gate, up = parts["gate_up_IH"]
        self._matrix("blk.0.ffn_gate.weight", (gate,))
        self._matrix("blk.0.ffn_up.weight", (up,))
        self._matrix("blk.0.ffn_down.weight", parts["down_HI"])
        self._vector("output_norm.weight", parts["norm_H"])
        if "lm_head_VH" in parts:
            self._matrix("output.weight", parts["lm_head_VH"])
        if "target_ids_V" in parts:
            (d2t,) = parts["target_ids_V"]
            self.tensors.append(
                GgufTensor(name="d2t", shape=d2t.shape, kind=GgufType.I64, chunks=partial(self._target_ids, d2t))
            )

    def _layer(self, prefix: str, config: GptOssConfig, parts: Parts) -> None:
        self._vector(f"{prefix}.attn_norm.weight", parts["input_norm_H"])
        self._attention(prefix, "weight", parts["qkv_NH"], config)
        self._attention(prefix, "bias", parts["qkv_bias_N"], config)
        self._matrix(f"{prefix}.attn_output.weight", parts["o_HN"])
        self._vector(f"{prefix}.attn_output.bias", parts["o_bias_H"])
        self._vector(f"{prefix}.attn_sinks.weight", parts["sinks_Q"])
        self._vector(f"{prefix}.post_attention_norm.weight", parts["post_norm_H"])
        self._vector(f"{prefix}.ffn_gate_inp.weight", parts["router_EH"])
        self._vector(f"{prefix}.ffn_gate_inp.bias", parts["router_bias_E"])
        for expert in _EXPERTS:
            self._experts(f"{prefix}.{expert.name}.weight", parts[expert.field], expert.rows)
            (bias,) = parts[f"{expert.field}_bias"]
            shape = (bias.shape[0], len(range(*expert.rows.indices(bias.shape[1]))))
            make = partial(self._columns, bias, expert.rows)
            self._add(f"{prefix}.{expert.name}.bias", shape, torch.float32, make)

    def _dtype(self, part: Part) -> torch.dtype:
        if self._weights == "stored":
            return _STORED.get(self._stored[part.name].dtype, torch.float32)
        return torch.float32 if self._weights == "f32" else torch.bfloat16

    def _add(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, make: Make) -> None:
        def chunks() -> Iterator[np.ndarray[Any, Any]]:
            yield raw(make().to(dtype))

        self.tensors.append(GgufTensor(name=name, shape=shape, kind=_KINDS[dtype], chunks=chunks))

    def _matrix(self, name: str, parts: Sequence[Part]) -> None:
        (part,) = parts
        self._add(name, part.shape, self._dtype(part), partial(self._reader.raw, part))

    def _vector(self, name: str, parts: Sequence[Part]) -> None:
        (part,) = parts
        self._add(name, part.shape, torch.float32, partial(self._reader.raw, part))

    def _attention(self, prefix: str, what: str, parts: Sequence[Part], config: GptOssConfig | Eagle3Config) -> None:
        """Yield query, key and value rows, from three tensors or from one that holds all."""
        start = 0
        counts = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        for letter, num_heads in zip("qkv", counts, strict=True):
            rows = slice(start, start + num_heads * config.head_dim)
            interleaved = num_heads if isinstance(config, Eagle3Config) and letter != "v" else None
            dtype = torch.float32 if what == "bias" else self._dtype(parts[0])
            shape = (rows.stop - rows.start, *parts[0].shape[1:])
            make = partial(self._rows, parts, rows, interleaved)
            self._add(f"{prefix}.attn_{letter}.{what}", shape, dtype, make)
            start = rows.stop

    def _rows(self, parts: Sequence[Part], rows: slice, interleaved: int | None) -> Tensor:
        """Select rows; of `interleaved` heads rotary pairs (i, i + D/2) become neighbours, as in llama.cpp's eagle3."""
        tensor = torch.cat([self._reader.raw(part) for part in parts])[rows]
        if interleaved is None:
            return tensor
        pairs: Tensor = tensor.unflatten(0, (interleaved, 2, -1)).transpose(1, 2)
        return pairs.flatten(0, 2)

    def _columns(self, part: Part, columns: slice) -> Tensor:
        return self._reader.raw(part)[:, columns]

    def _experts(self, name: str, parts: Sequence[Part], rows: slice) -> None:
        packed = len(parts) > 1
        num_experts, out_rows, columns = (
            (*parts[1].shape[:2], parts[1].shape[2] * 32) if packed else (parts[0].shape[i] for i in (0, 2, 1))
        )
        shape = (num_experts, len(range(*rows.indices(out_rows))), columns)
        kind = GgufType.MXFP4 if packed and self._weights == "stored" else _KINDS[self._dtype(parts[0])]
        chunks = partial(self._packed if packed else self._dense, parts, rows)
        self.tensors.append(GgufTensor(name=name, shape=shape, kind=kind, chunks=chunks))

    def _packed(self, parts: Sequence[Part], rows: slice) -> Iterator[np.ndarray[Any, Any]]:
        blocks, scales = (self._reader.raw(part) for part in parts)
        for of_expert in zip(blocks, scales, strict=True):
            one = Mxfp4Tensor(*(tensor[rows] for tensor in of_expert))
            if self._weights == "stored":
                yield ggml_mxfp4(one)
            else:
                yield raw(dequantize(one, torch.float32 if self._weights == "f32" else torch.bfloat16))

    def _dense(self, parts: Sequence[Part], rows: slice) -> Iterator[np.ndarray[Any, Any]]:
        """Transpose the stored [E, in, out] to [E, out, in]."""
        dtype = self._dtype(parts[0])
        for matrix in self._reader.raw(parts[0]):
            yield raw(matrix.mT[rows].to(dtype))

    def _target_ids(self, d2t: Part) -> Iterator[np.ndarray[Any, Any]]:
        """Return ids, as llama.cpp wants them; a checkpoint stores id minus position."""
        offsets = self._reader.raw(d2t).to(torch.int64)
        yield raw(offsets + torch.arange(len(offsets)))


def _llama3(config: Eagle3Config) -> Tensor:
    """Return the divisors that llama.cpp applies to each frequency."""
    plain = inverse_frequencies(RopeConfig(theta=config.rope.theta), config.head_dim)
    return plain / inverse_frequencies(config.rope, config.head_dim)


def _check_target(config: GptOssConfig, folder: Path) -> None:
    problems = []
    if config.swiglu_limit != _SWIGLU_LIMIT:
        problems.append(f"swiglu_limit {config.swiglu_limit:g} (it has {_SWIGLU_LIMIT:g} built in)")
    if config.rope.kind == "llama3":
        problems.append("llama3 rope scaling in a gpt-oss model")
    _refuse(folder, problems)


def _check_head(config: Eagle3Config, folder: Path) -> None:
    problems = []
    if not config.has_fc or len(config.taps) != _NUM_TAPS:
        problems.append(f"a head that does not combine exactly {_NUM_TAPS} hidden states")
    elif FINAL_NORM_TAP in config.taps:
        problems.append(f"the taps {show_taps(config.taps)}: it has no hidden state after the final norm")
    if config.fc_norm:
        problems.append("fc_norm (a norm for each hidden state)")
    if config.norm_output:
        problems.append("norm_output")
    _refuse(folder, problems)


def _refuse(folder: Path, problems: Sequence[str]) -> None:
    if problems:
        raise UserError(f"{folder}: llama.cpp cannot express {'; '.join(problems)}; use another engine or head")


def _target_metadata(config: GptOssConfig, name: str, weights: Weights) -> dict[str, Any]:
    packed = config.expert_format == "mxfp4"
    specific: dict[str, Any] = {
        "expert_count": config.num_experts,
        "expert_used_count": config.experts_per_token,
        "expert_feed_forward_length": config.intermediate_size,
        "attention.sliding_window": config.sliding_window,
    }
    if config.layer_is_sliding != tuple(layer % 2 == 0 for layer in range(config.num_layers)):
        specific["attention.sliding_window_pattern"] = [int(sliding) for sliding in config.layer_is_sliding]
    file_type = _FILE_TYPES["bf16" if weights == "stored" and not packed else weights]
    return _common("gpt-oss", config, config.intermediate_size, config.num_layers, name, file_type) | {
        f"gpt-oss.{key}": value for key, value in specific.items()
    }


def _head_metadata(config: Eagle3Config, name: str, weights: Weights) -> dict[str, Any]:
    file_type = _FILE_TYPES["f32" if weights == "f32" else "bf16"]
    specific = {
        "target_layers": list(config.taps),  # llama.cpp counts the inputs of layers, as HS[i] does
        "target_hidden_size": config.target_hidden_size,
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
    }
    return _common("eagle3", config, config.intermediate_size, 1, name, file_type) | {
        f"eagle3.{key}": value for key, value in specific.items()
    }


def _common(
    arch: str, config: GptOssConfig | Eagle3Config, feed_forward: int, num_layers: int, name: str, file_type: int
) -> dict[str, Any]:
    shape = {
        "vocab_size": config.vocab_size,
        "context_length": config.max_context,
        "embedding_length": config.hidden_size,
        "block_count": num_layers,
        "feed_forward_length": feed_forward,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.dimension_count": config.head_dim,
        **_rope(config.rope),
    }
    general = {"name": name, "file_type": file_type, "quantization_version": 2}
    return {f"general.{key}": value for key, value in general.items()} | {
        f"{arch}.{key}": value for key, value in shape.items()
    }


def _rope(rope: RopeConfig) -> dict[str, Any]:
    """Return the RoPE keys. llama3 scaling is a tensor instead; YaRN's attention factor is relative to its default."""
    keys: dict[str, Any] = {"rope.freq_base": rope.theta}
    if rope.kind in ("linear", "yarn"):
        keys |= {"rope.scaling.type": rope.kind, "rope.scaling.factor": rope.factor}
    if rope.kind == "yarn":
        keys |= {
            "rope.scaling.original_context_length": rope.original_context,
            "rope.scaling.yarn_beta_fast": rope.beta_fast,
            "rope.scaling.yarn_beta_slow": rope.beta_slow,
        }
        if rope.attention_factor is not None:
            keys["rope.scaling.attn_factor"] = rope.attention_factor / (0.1 * float(np.log(rope.factor)) + 1)
    return keys

"""Shapes and constants of a gpt-oss target and of an EAGLE-3 head, as read from their config.json.

Parsing of the JSON lives in `model/checkpoints/parse.py`; nothing here touches a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["FINAL_NORM_TAP", "Eagle3Config", "GptOssConfig", "RopeConfig"]

FINAL_NORM_TAP = -1  # the target's last hidden state after the final norm: the input of its lm_head


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeConfig:
    """Rotary embedding, half-split (NeoX) form. `kind` names the frequency scaling."""

    theta: float
    kind: Literal["default", "linear", "yarn", "llama3"] = "default"
    factor: float = 1.0
    original_context: int = 4096
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn: round the correction range to whole dimensions; gpt-oss needs False
    attention_factor: float | None = None  # yarn: None means 0.1 ln(factor) + 1
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3

    def text(self) -> str:
        """Format it for people."""
        if self.kind == "default":
            return f"theta {self.theta:g}"
        return f"theta {self.theta:g}, {self.kind} x{self.factor:g} from {self.original_context}"


@dataclass(frozen=True, kw_only=True, slots=True)
class GptOssConfig:
    """A gpt-oss target. Sizes count elements; `layer_is_sliding[i]` says which attention layer i has."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_experts: int
    experts_per_token: int
    sliding_window: int
    layer_is_sliding: tuple[bool, ...]
    rope: RopeConfig
    max_context: int
    swiglu_limit: float = 7.0
    rms_norm_eps: float = 1e-5
    eos_ids: tuple[int, ...] = ()
    pad_id: int | None = None
    tie_embeddings: bool = False  # the embedding also serves as lm_head, and the file has no lm_head
    expert_format: Literal["mxfp4", "dense"] = "mxfp4"


@dataclass(frozen=True, kw_only=True, slots=True)
class Eagle3Config:
    """An EAGLE-3 head of one layer.

    `taps` are residual-stream boundaries of the target: HS[i] is the stream entering layer i, HS[0] the embedding,
    HS[num_layers] the last output before the final norm; FINAL_NORM_TAP is that output after it. One FINAL_NORM_TAP
    without `has_fc` is the `use_aux_hidden_state: false` form.
    """

    vocab_size: int  # of the target
    draft_vocab_size: int
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    taps: tuple[int, ...]
    rope: RopeConfig
    max_context: int
    has_fc: bool = True
    rms_norm_eps: float = 1e-5
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False

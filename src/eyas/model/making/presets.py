"""Named shapes, and how words of the command line change them: `tiny num_layers=4 num_experts=16`.

Also the published kinds of EAGLE-3 head, sized for any target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from eyas.base.errors import UserError, nearest
from eyas.model.checkpoints.config_json import HeadStyle, generation_json, target_json
from eyas.model.checkpoints.parse import parse_target
from eyas.model.config import FINAL_NORM_TAP, Eagle3Config, GptOssConfig, RopeConfig
from eyas.model.taps import default_taps

__all__ = ["EAGLE3_VARIANTS", "PRESETS", "default_head", "head_of_kind", "parse_shape"]

_YARN = RopeConfig(theta=150000.0, kind="yarn", factor=32.0, original_context=4096, truncate=False)


def _published(num_layers: int, num_experts: int) -> GptOssConfig:
    return GptOssConfig(
        vocab_size=201088,
        hidden_size=2880,
        intermediate_size=2880,
        num_layers=num_layers,
        num_heads=64,
        num_kv_heads=8,
        head_dim=64,
        num_experts=num_experts,
        experts_per_token=4,
        sliding_window=128,
        layer_is_sliding=_alternating(num_layers),
        rope=_YARN,
        max_context=131072,
        eos_ids=(200002, 199999, 200012),
        pad_id=199999,
    )


def _alternating(num_layers: int) -> tuple[bool, ...]:
    return tuple(layer % 2 == 0 for layer in range(num_layers))


# Small enough for a test of milliseconds, with every feature: window shorter than the context, GQA, head_dim * heads
# other than the hidden size, fewer experts a token than there are, enough layers for three different default taps.
_TINY = GptOssConfig(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=96,
    num_layers=8,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    num_experts=8,
    experts_per_token=4,
    sliding_window=16,
    layer_is_sliding=_alternating(8),
    rope=RopeConfig(theta=150000.0, kind="yarn", factor=8.0, original_context=64, truncate=False),
    max_context=512,
    eos_ids=(510, 509),
    pad_id=511,
)

PRESETS = {"gpt-oss-20b": _published(24, 32), "gpt-oss-120b": _published(36, 128), "tiny": _TINY}


_WORDS: dict[str, dict[str, Any]] = {
    "tie_embeddings": {"true": True, "false": False},
    "expert_format": {"mxfp4": "mxfp4", "dense": "dense"},
}


def parse_shape(words: Sequence[str]) -> GptOssConfig:
    """Parse a preset (first word, else tiny) with `field=value` changes. Raises a UserError with all wrong words."""
    words = list(words)
    preset = words.pop(0) if words and "=" not in words[0] else "tiny"
    if preset not in PRESETS:
        raise UserError(f"no shape {preset!r}{nearest(preset, PRESETS)}; shapes are {', '.join(PRESETS)}")
    base = PRESETS[preset]
    known = {
        field.name: type(getattr(base, field.name))
        for field in fields(base)
        if isinstance(getattr(base, field.name), int | float | str)
    }
    changes: dict[str, Any] = {}
    problems: list[str] = []
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name not in known:
            problems.append(f"{word!r}: no such field{nearest(name, known)}")
            continue
        try:
            changes[name] = _WORDS[name][text] if name in _WORDS else known[name](text)
        except (KeyError, ValueError):
            kind = " or ".join(_WORDS.get(name, ())) or ("a whole number" if known[name] is int else "a number")
            problems.append(f"{word!r}: {name} wants {kind}")
    if problems:
        raise UserError(f"wrong shape: {'; '.join(problems)}; fields are {', '.join(known)}")
    if "num_layers" in changes:
        changes["layer_is_sliding"] = _alternating(changes["num_layers"])
    if changes.get("vocab_size", base.vocab_size) < base.vocab_size:
        size = changes["vocab_size"]
        changes |= {"eos_ids": (size - 2, size - 3), "pad_id": size - 1}
    shape = replace(base, **changes)
    return parse_target(target_json(shape), generation_json(shape), source="the shape")  # refuses impossible sizes


def default_head(target: GptOssConfig, **changes: Any) -> Eagle3Config:
    """A head of the usual proportions for `target`: three default taps, intermediate 6 H, up to 32,000 draft ids."""
    head = Eagle3Config(
        vocab_size=target.vocab_size,
        draft_vocab_size=min(32000, target.vocab_size // 2),
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        intermediate_size=6 * target.hidden_size,
        num_heads=target.num_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        taps=default_taps(target.num_layers),
        rope=RopeConfig(theta=10000.0),
        max_context=min(4096, target.max_context),
        rms_norm_eps=target.rms_norm_eps,
    )
    return replace(head, **changes)


_Variant = tuple[HeadStyle, Callable[[GptOssConfig], dict[str, Any]]]
_LLAMA3 = RopeConfig(theta=500000.0, kind="llama3", factor=8.0, original_context=8192)
EAGLE3_VARIANTS: dict[str, _Variant] = {
    "specforge": ("specforge", lambda _: {}),
    "final-norm": (  # NVIDIA's v2, throughput and short-context heads
        "modelopt",
        lambda t: {"taps": (FINAL_NORM_TAP,), "has_fc": False, "draft_vocab_size": t.vocab_size},
    ),
    "full-vocab": ("modelopt", lambda t: {"draft_vocab_size": t.vocab_size, "rope": _LLAMA3}),  # NVIDIA's long-context
    "norm-before-fc": (  # NVIDIA's v3: two thirds in, five sixths in, the last output
        "modelopt",
        lambda t: {
            "taps": (2 * t.num_layers // 3, 5 * t.num_layers // 6, t.num_layers),
            "norm_before_fc": True,
            "draft_vocab_size": t.vocab_size,
        },
    ),
    "fc-norm": ("specforge", lambda _: {"fc_norm": True, "norm_output": True}),  # EAGLE-3.1
    "speculators": ("speculators", lambda _: {"norm_before_residual": True, "norm_before_fc": True}),
}


def head_of_kind(kind: str, target: GptOssConfig) -> tuple[Eagle3Config, HeadStyle]:
    """Return the configuration of one published kind of head for `target`, and the style that its authors write."""
    if kind not in EAGLE3_VARIANTS:
        raise UserError(f"no head {kind!r}{nearest(kind, EAGLE3_VARIANTS)}; heads are {', '.join(EAGLE3_VARIANTS)}")
    style, changes = EAGLE3_VARIANTS[kind]
    return default_head(target, **changes(target)), style

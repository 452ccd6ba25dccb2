"""Writes the model card of an exported head: what it was trained on and how, and how many drafts are accepted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from eyas.model.config import Eagle3Config, GptOssConfig
from eyas.model.taps import show_taps
from eyas.train.evaluation.results import Reading
from eyas.train.export.config import ENGINES, Engine, Form, has_default_taps, obstacle, tap_ids_for

__all__ = ["Facts", "card"]

_ENGINE_NAMES: dict[Engine, str] = {
    "eyas": "eyas",
    "vllm": "vLLM",
    "sglang": "SGLang",
    "tensorrt-llm": "TensorRT-LLM",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Facts about a training run that a card tells. No keys or tokens of services belong here."""

    target: str  # name at a hub, or of its folder
    data: str  # one line: "1,204 chats of train.jsonl"
    data_hash: str  # SHA-256 of the training data
    steps: int
    settings: Mapping[str, Any]  # by dotted name: {"train.lr": 2e-4}
    hardware: str  # one line
    evaluation: Mapping[str, Any] | None = None  # `Evaluation.json()`
    draft_tokens: int = 4  # drafts a round, of the figures shown and recommended


def card(config: Eagle3Config, facts: Facts, *, form: Form, engine: Engine, target: GptOssConfig) -> str:
    """Return README.md. The licence is left to the user; of absolute paths in the settings the last part is kept."""
    lines = [
        "---",
        f"base_model: {json.dumps(_public(facts.target))}",
        "tags: [eagle3, speculative-decoding]",
        "# license: choose one before you publish",
        "---",
        "",
        f"# EAGLE-3 draft head for {_public(facts.target)}",
        "",
        f"Trained with `eyas train`. {config.draft_vocab_size:,} of {config.vocab_size:,} tokens can be drafted; taps "
        f"{show_taps(config.taps)}; RoPE {config.rope.text()}; trained on contexts of up to "
        f"{config.max_context:,} tokens.",
        "",
        "Licence: not chosen yet; the terms of the target and of the data apply.",
        "",
        "## Acceptance",
        "",
        *_acceptance(facts),
        "",
        "## Training",
        "",
        f"* steps: {facts.steps:,}",
        f"* data: {facts.data}",
        f"* SHA-256 of the data: `{facts.data_hash}`",
        f"* hardware: {facts.hardware}",
        "",
        "```yaml",
        *(f"{name}: {json.dumps(_public(value), default=str)}" for name, value in facts.settings.items()),
        "```",
        "",
        "## Engines",
        "",
        *(f"* {_ENGINE_NAMES[name]}: {_use(config, name, form, engine, target)}" for name in ENGINES),
        "",
    ]
    return "\n".join(lines)


def _acceptance(facts: Facts) -> list[str]:
    if facts.evaluation is None:
        return ["Not evaluated."]
    found = facts.evaluation["acceptance"]
    lines = [
        f"Tokens committed a round, the bonus token included, on {facts.evaluation['documents']:,} held-out documents; "
        "over the content of messages, headers left out; 95 % interval by bootstrap over documents.",
        "",
        "| drafts a round | " + " | ".join(_READING_NAMES[reading] for reading in found) + " |",
        "|---|" + "---|" * len(found),
    ]
    for row in zip(*found.values(), strict=True):
        lines.append(f"| {row[0]['draft_tokens']} | " + " | ".join(_cell(one) for one in row) + " |")
    chosen = next(reversed(found.values()))
    contexts = chosen[min(facts.draft_tokens, len(chosen)) - 1]["by_context"]
    if len(contexts) > 1:
        parts = [f"{name} {counts['acceptance_length']:.2f}" for name, counts in contexts.items()]
        lines += ["", f"By tokens of context, {facts.draft_tokens} drafts: {', '.join(parts)}."]
    return lines


_READING_NAMES: dict[Reading, str] = {
    "text": "greedy, against the text",
    "target": "greedy, against the target",
    "sampled": "sampled, expected",
}


def _cell(found: Mapping[str, Any]) -> str:
    if found["acceptance_length"] is None:
        return "-"
    low, high = found["ci95"]
    return f"{found['acceptance_length']:.2f} ({low:.2f}..{high:.2f})"


def _use(config: Eagle3Config, name: Engine, form: Form, engine: Engine, target: GptOssConfig) -> str:
    """Return how an engine takes the head as it lies, or why it does not."""
    if reason := obstacle(config, form, name, target):
        return f"no, {reason}"
    if has_default_taps(config, target) or form == "speculators":
        return "yes"
    ids = name if name == "eyas" else tap_ids_for(config, name, target)
    if name == engine:
        return "yes" if name == "eyas" else f"yes, with the layer ids {ids} of config.json"
    return (
        "export it for eyas: the layer ids of config.json are another engine's"
        if name == "eyas"
        else (f"needs the layer ids {ids}; those of config.json are for {_ENGINE_NAMES[engine]}")
    )


def _public(value: Any) -> Any:
    """Return the value with the last part of absolute paths alone, without the folders of a machine."""
    if isinstance(value, Mapping):
        return {key: _public(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_public(item) for item in value]
    if isinstance(value, PurePath) or (isinstance(value, str) and value.startswith(("/", "~"))):
        return PurePath(value).name
    return value

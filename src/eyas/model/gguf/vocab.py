"""Converts the tokenizer and the chat template of a checkpoint to GGUF metadata.

llama.cpp splits text by a rule that it knows by name, so a tokenizer.json with another rule cannot be expressed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eyas.base.errors import UserError
from eyas.base.tokens.cuts import DEMO, O200K
from eyas.model.checkpoints.shards import read_json
from eyas.model.config import GptOssConfig

__all__ = ["chat_template", "vocabulary"]

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # llama.cpp's token types
# Where the demo model's rule and gpt-oss's cut differently the demo's merges never reach across: no token of it has two
# digits. Text beyond Latin letters may be split otherwise, into the same bytes.
_RULES = {O200K: "gpt-4o", DEMO: "gpt-4o"}
_MAX_TEMPLATE_BYTES = 1 << 20


def vocabulary(folder: Path, config: GptOssConfig) -> dict[str, Any]:
    """Return the `tokenizer.ggml` keys for `folder`/tokenizer.json, padded to the model's vocabulary.

    Raises UserError if it is not byte-level BPE by a rule that llama.cpp knows, or has ids that the model lacks.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UserError(f"{folder} has no tokenizer.json; give the folder of a complete checkpoint")
    raw = read_json(path)
    model = raw.get("model") or {}
    if model.get("type") != "BPE" or model.get("byte_fallback") or raw.get("normalizer") is not None:
        raise UserError(f"{path} is no plain byte-level BPE tokenizer, the only kind that is written as GGUF")
    tokens = [f"[PAD{i}]" for i in range(config.vocab_size)]
    kinds = [UNUSED] * config.vocab_size
    added = [(entry["content"], entry["id"], CONTROL if entry["special"] else USER_DEFINED) for entry in
             raw.get("added_tokens", ())]  # fmt: skip
    for text, token_id, kind in [*((text, i, NORMAL) for text, i in model["vocab"].items()), *added]:
        if token_id >= config.vocab_size:
            raise UserError(f"{path} has token id {token_id}, but the model's vocabulary ends at {config.vocab_size}")
        tokens[token_id], kinds[token_id] = text, kind
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    ids = {text: token_id for text, token_id, _ in added}
    special = {
        "bos": ids.get("<|startoftext|>"),
        "eos": config.eos_ids[0] if config.eos_ids else None,
        "padding": config.pad_id,
    }
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": _rule_name(path, raw),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": False,
    } | {f"tokenizer.ggml.{name}_token_id": value for name, value in special.items() if value is not None}


def chat_template(folder: Path) -> str | None:
    """Return the checkpoint's own Jinja template, None if it has none."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        if path.stat().st_size > _MAX_TEMPLATE_BYTES:
            raise UserError(f"{path} is larger than {_MAX_TEMPLATE_BYTES} bytes; this is no chat template")
        return path.read_text(encoding="utf-8")
    settings = folder / "tokenizer_config.json"
    template = read_json(settings).get("chat_template") if settings.is_file() else None
    return template if isinstance(template, str) else None


def _rule_name(path: Path, raw: dict[str, Any]) -> str:
    steps = (raw.get("pre_tokenizer") or {}).get("pretokenizers", ())
    patterns = [step["pattern"].get("Regex") for step in steps if step.get("type") == "Split"]
    if len(patterns) != 1 or patterns[0] not in _RULES:
        raise UserError(f"{path} splits text by a rule that llama.cpp has no name for: {patterns or 'none'}")
    return _RULES[patterns[0]]

"""JSON schemas as the TypeScript types in which gpt-oss reads its tools.

The text is token for token what `openai-harmony` 0.0.8 writes, oddities included, because the model is trained on them:
`anyOf`, `const`, and an enum without a type are `any`; a description's line breaks are kept, without a `//` on the
lines that follow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

__all__ = ["json_text", "typescript_type"]


def typescript_type(schema: object, indent: str = "") -> str:
    """Return the TypeScript type of a JSON schema, `any` if unknown; its inner lines are indented by `indent`."""
    if not isinstance(schema, Mapping):
        return "any"
    variants = _list(schema.get("oneOf"))
    if variants is not None:
        return "".join(f"\n{indent} | {_variant(variant, indent)}" for variant in variants)
    kinds = [kind for kind in _list(schema.get("type")) or () if isinstance(kind, str)]
    if kinds:
        return " | ".join("number" if kind == "integer" else kind for kind in kinds)
    match schema.get("type"):
        case "object":
            return _object(schema, indent)
        case "string":
            words = [f'"{word}"' for word in _list(schema.get("enum")) or () if isinstance(word, str)]
            return " | ".join(words) or "string"
        case "number" | "integer":
            return "number"
        case "boolean":
            return "boolean"
        case "array":
            return f"{typescript_type(schema['items'], indent)}[]" if "items" in schema else "Array<any>"
    return "any"


def json_text(value: object) -> str:
    """Return compact JSON with the numbers spelled as Rust's serde_json does: integers beyond 64 bits are floats."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{json_text(str(key))}:{json_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(json_text, value)) + "]"
    if isinstance(value, float) or (isinstance(value, int) and not -(2**63) <= value < 2**64):
        return _float_text(float(value))
    return json.dumps(value, ensure_ascii=False)


def _object(schema: Mapping[str, Any], indent: str) -> str:
    head = _comment(schema.get("description"), indent)
    required = {name for name in _list(schema.get("required")) or () if isinstance(name, str)}
    properties = schema.get("properties")
    lines = [
        _property(name if name in required else f"{name}?", value if isinstance(value, Mapping) else {}, indent)
        for name, value in (properties.items() if isinstance(properties, Mapping) else ())
    ]
    return head + "{\n" + "".join(lines) + f"{indent}}}"


def _property(name: str, schema: Mapping[str, Any], indent: str) -> str:
    """Return the lines of one property, comments above it included; `name` ends with `?` if it is optional."""
    title = schema.get("title")
    head = f"{indent}// {title}\n{indent}//\n" if isinstance(title, str) else ""
    if "oneOf" not in schema:
        head += _comment(schema.get("description"), indent)
    if examples := _list(schema.get("examples")):
        head += f"{indent}// Examples:\n"
        head += "".join(f'{indent}// - "{example}"\n' for example in examples if isinstance(example, str))
    if (variants := _list(schema.get("oneOf"))) is not None:
        return head + _union_property(name, schema, variants, indent)
    line = f"{indent}{name}: {_nullable(schema, f'{indent}    ')},"
    if "oneOf" not in schema and "default" in schema:
        line += f" // {_default(schema)}"
    return f"{head}{line}\n"


def _union_property(name: str, schema: Mapping[str, Any], variants: Sequence[object], indent: str) -> str:
    """Return a property with `oneOf`: one line per variant, each followed by its own comment."""
    description = _text(schema.get("description"))
    first = variants[0].get("description") if variants and isinstance(variants[0], Mapping) else None
    is_above = description is not None and description != first
    text = _comment(description, indent) if is_above else ""
    if "default" in schema:
        text += f"{indent}// {_default(schema)}\n"
    text += f"{indent}{name}:\n"
    for i, variant in enumerate(variants):
        known = variant if isinstance(variant, Mapping) else {}
        own = None if i == 0 and is_above else _text(known.get("description"))
        comments = [own] if own is not None and own != description else []
        if "default" in known:
            comments.append(_default(known))
        text += f"{indent} | {_nullable(variant, f'{indent}   ')}{_trailing(comments)}\n"
    return f"{text}{indent},\n"


def _variant(schema: object, indent: str) -> str:
    """Return one variant of a `oneOf` that is not directly a property."""
    known = schema if isinstance(schema, Mapping) else {}
    description = _text(known.get("description"))
    comments = [] if description is None else [description]
    if "default" in known:
        default = known["default"]
        comments.append(_default({"default": default}) if not _has_enum(known) else f"default: {json_text(default)}")
    return _nullable(schema, f"{indent}   ") + _trailing(comments)


def _nullable(schema: object, indent: str) -> str:
    text = typescript_type(schema, indent)
    is_nullable = isinstance(schema, Mapping) and schema.get("nullable") is True
    return f"{text} | null" if is_nullable and "null" not in text else text


def _default(schema: Mapping[str, Any]) -> str:
    default = schema["default"]
    if not isinstance(default, str):
        return f"default: {json_text(default)}"
    return f"default: {default}" if _has_enum(schema) else f'default: "{default}"'


def _has_enum(schema: Mapping[str, Any]) -> bool:
    return bool(_list(schema.get("enum")))


def _comment(description: object, indent: str) -> str:
    return f"{indent}// {description}\n" if isinstance(description, str) else ""


def _trailing(comments: Sequence[str]) -> str:
    return f" // {' '.join(comments)}" if comments else ""


def _list(value: object) -> list[object] | None:
    return list(value) if isinstance(value, list | tuple) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _float_text(value: float) -> str:
    """Return the shortest digits that read back as `value`; plain from 0.00001 up to 16 digits, scientific beyond."""
    sign, digit_tuple, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int), "finite"
    digits = "".join(map(str, digit_tuple))
    point = len(digits) + exponent  # position of the decimal point, in digits from the left
    minus = "-" if sign else ""
    if value == 0:
        return f"{minus}0.0"
    if 0 < point <= 16:
        padded = digits.ljust(point, "0")
        return f"{minus}{padded[:point]}.{padded[point:] or '0'}"
    if -5 < point <= 0:
        return f"{minus}0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{minus}{digits[0]}{fraction}e{point - 1}"

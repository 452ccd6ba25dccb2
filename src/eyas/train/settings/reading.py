"""Reads the YAML file of a run into typed settings, strictly, and says where two runs differ."""

from __future__ import annotations

import reprlib
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, asdict, fields, is_dataclass
from datetime import date
from pathlib import Path
from typing import Any

from eyas.base.errors import UserError, nearest
from eyas.base.settings.strict_yaml import read_yaml
from eyas.train.settings.schema import RunSettings

__all__ = ["as_plain", "differences", "parse_settings", "read_settings", "template"]

_SECTIONS: dict[str, Any] = {
    item.name: item.default_factory for item in fields(RunSettings) if "help" not in item.metadata
}


def read_settings(path: Path, overrides: Sequence[str] = ()) -> RunSettings:
    """Return the settings of a YAML file, with overrides such as `train.lr=2e-4`. Raises UserError.

    Paths of chats, prompts, states and `out` are taken as written: relative to the working directory.
    """
    content = read_yaml(path, hint=f"; `eyas train init {path}` writes one")
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold sections such as 'target: demo'; see `eyas train init`")
    return parse_settings(content, overrides, source=str(path))


def parse_settings(content: Mapping[Any, Any], overrides: Sequence[str] = (), *, source: str) -> RunSettings:
    """Return the settings of a parsed file; `source` names it in errors. Raises UserError."""
    known = [item.name for item in fields(RunSettings)]
    values: dict[str, dict[str, Any]] = {name: {} for name in _SECTIONS}
    top: dict[str, Any] = {}
    for name, value in content.items():
        if name not in known:
            raise UserError(f"{source}: unknown key '{name}'{nearest(str(name), known)}")
        if name in _SECTIONS:
            values[name] = _section(_SECTIONS[name], value, f"{source}: {name}")
        else:
            top[name] = _value(_field(RunSettings, name), value, f"{source}: {name}")
    for text in overrides:
        key, equals, value = text.partition("=")
        section, dot, name = key.strip().partition(".")
        if not equals:
            raise UserError(f"'{text}' is no override; write it as SECTION.KEY=VALUE, e.g. train.lr=2e-4")
        if not dot and section in known and section not in _SECTIONS:
            top[section] = _value(_field(RunSettings, section), _from_text(RunSettings, section, value), key)
        elif section not in _SECTIONS:
            raise UserError(f"unknown key '{key}'{nearest(section, known)}")
        else:
            cls = _SECTIONS[section]
            name = name or getattr(cls, "SHORT", "")
            _check_key(cls, name, key)
            values[section][name] = _value(_field(cls, name), _from_text(cls, name, value), key)
    sections = {name: cls(**values[name]) for name, cls in _SECTIONS.items()}
    return RunSettings(**sections, **top)


def _section(cls: Any, value: object, where: str) -> dict[str, Any]:
    short = getattr(cls, "SHORT", None)
    if short is not None and isinstance(value, str):
        value = {short: value}
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UserError(f"{where} wants keys and values, got {reprlib.repr(value)}")
    found = {}
    for name, item in value.items():
        _check_key(cls, str(name), f"{where}.{name}")
        found[str(name)] = _value(_field(cls, str(name)), item, f"{where}.{name}")
    return found


def _check_key(cls: Any, name: str, where: str) -> None:
    known = [item.name for item in fields(cls)]
    if name not in known:
        raise UserError(f"{where}: unknown key{nearest(name, known)}")


def _field(cls: Any, name: str) -> Field[Any]:
    return next(item for item in fields(cls) if item.name == name)


def _from_text(cls: Any, name: str, text: str) -> object:
    """Return an override's value in the form that YAML would give it: `null`, a list `[a, b]` or `a,b`, a scalar."""
    item, text = _field(cls, name), text.strip()
    if text in ("null", "none", "") and item.default is None:
        return None
    if item.metadata["is_list"]:
        return [part.strip() for part in text.removeprefix("[").removesuffix("]").split(",") if part.strip()]
    return text


def _value(item: Field[Any], value: object, where: str) -> Any:
    if value is None and item.default is None:
        return None
    is_list = item.metadata["is_list"]
    if is_list and isinstance(value, str | int | float):
        value = [value]
    scalars = value if is_list and isinstance(value, list) else [value]
    if any(not isinstance(scalar, str | int | float | date) for scalar in scalars):
        wanted = "a list of single values" if is_list else "a single value"
        raise UserError(f"{where} wants {wanted}, got {reprlib.repr(value)}")
    if (length := item.metadata["length"]) not in (None, len(scalars)):
        raise UserError(f"{where} wants {length} values, got {len(scalars)}")
    try:
        read = [item.metadata["parse"](str(scalar)) for scalar in scalars]
    except ValueError as error:
        raise UserError(f"{where} {error}") from error
    return tuple(read) if is_list else read[0]


def as_plain(settings: RunSettings) -> dict[str, Any]:
    """Return the settings as plain values, as a file holds them."""
    return {name: _plain(value) for name, value in asdict(settings).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys in which two plain settings differ."""
    for name in dict.fromkeys((*ours, *theirs)):
        a, b = ours.get(name), theirs.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            yield from differences(a, b, f"{prefix}{name}.")
        elif a != b:
            yield prefix + name


def template(settings: RunSettings) -> str:
    """Return a YAML file with every key, its help as a comment, and its value here."""
    lines = ["# Settings of `eyas train run`. Keys may be left out; the values here are those of a run without them."]
    for item in fields(settings):
        value = getattr(settings, item.name)
        lines.append("")
        if is_dataclass(value):
            lines += [f"# {(type(value).__doc__ or '').splitlines()[0]}", f"{item.name}:"]
            lines += [line for sub in fields(value) for line in _entry(sub, getattr(value, sub.name), "  ")]
        else:
            lines += _entry(item, value, "")
    return "\n".join(lines) + "\n"


def _entry(item: Field[Any], value: Any, indent: str) -> list[str]:
    import yaml

    text = yaml.safe_dump(_plain(value), default_flow_style=True, width=1000).removesuffix("...\n").strip()
    comment = textwrap.wrap(item.metadata["help"], 110)
    return [*(f"{indent}# {line}" for line in comment), f"{indent}{item.name}: {text}"]

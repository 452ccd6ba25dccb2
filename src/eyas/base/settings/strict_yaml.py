"""Reads YAML files of settings: safely, of bounded size, and with no key twice in one mapping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eyas.base.errors import UserError

__all__ = ["loader", "read_yaml"]

MAX_FILE_BYTES = 1 << 20


def read_yaml(path: Path, *, hint: str = "") -> Any:
    """Return what a file holds. Raises UserError for one that cannot be read, which ends in `hint`, or is no YAML."""
    import yaml

    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UserError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB; it is no settings file")
        content = yaml.load(path.read_text(encoding="utf-8"), loader())
        _check_ends(content, set(), set())
        return content
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}{hint}") from error
    except yaml.MarkedYAMLError as error:  # as text it quotes the file, which may hold a key
        mark = error.problem_mark
        where = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
        raise UserError(f"{path} is not YAML: {error.problem}{where}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from None


def _check_ends(value: Any, around: set[int], checked: set[int]) -> None:
    """Raise ValueError for a list or mapping that holds itself, as an anchor allows; `around` are those it is in."""
    if not isinstance(value, dict | list) or id(value) in checked:
        return
    if id(value) in around:
        raise ValueError("an anchor stands for something that it is in itself")
    around.add(id(value))
    for inner in value.values() if isinstance(value, dict) else value:
        _check_ends(inner, around, checked)
    around.discard(id(value))
    checked.add(id(value))


def loader() -> Any:
    """Return PyYAML's safe loader, made to refuse a key that stands twice in one mapping (YAML 1.2, 3.2.1.1)."""
    import yaml

    class Strict(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = [key.value for key, _ in node.value]
            twice = [key for number, key in enumerate(keys) if key in keys[:number]]
            if twice:
                problem = f"the key '{twice[0]}' stands twice in one mapping"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
            return dict(super().construct_mapping(node, deep=deep))

    return Strict

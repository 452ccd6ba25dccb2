"""Typed look-ups in a config.json that collect everything wrong with it for one error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

__all__ = ["Fields"]

_T = TypeVar("_T")


class Fields:
    """A JSON object. A look-up that fails adds a line to `problems` and returns a harmless value of its type.

    `null` counts as absent. Where several names mean the same field, those given must agree.
    """

    def __init__(self, raw: Mapping[str, Any], problems: list[str], where: str = "") -> None:
        self.raw, self.problems, self.where = raw, problems, where

    def problem(self, text: str) -> None:
        self.problems.append(self.where + text)

    def get(self, *names: str) -> Any:
        """The value under any of `names`, None if absent."""
        given = {name: self.raw[name] for name in names if self.raw.get(name) is not None}
        values = list(given.values())
        if any(value != values[0] for value in values[1:]):
            self.problem(" and ".join(f"{name}={value!r}" for name, value in given.items()) + " contradict each other")
        return values[0] if values else None

    def integer(self, *names: str, default: int | None = None, least: int = 1, most: int = 1 << 24) -> int:
        value = self.get(*names)
        if value is None:
            return self._missing(names, default, least)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.problem(f"{names[0]} is {value!r}, not a whole number from {least} to {most}")
            return least
        return value

    def number(self, *names: str, default: float | None = None) -> float:
        """A positive finite number."""
        value = self.get(*names)
        if value is None:
            return self._missing(names, default, 1.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            self.problem(f"{names[0]} is {value!r}, not a positive number")
            return 1.0
        return float(value)

    def flag(self, *names: str, default: bool | None = None) -> bool:
        value = self.get(*names)
        if value is None:
            return self._missing(names, default, False)
        if not isinstance(value, bool):
            self.problem(f"{names[0]} is {value!r}, not true or false")
            return False
        return value

    def ids(self, name: str, *, least: int, most: int) -> tuple[int, ...] | None:
        """Read a whole number or a list of them."""
        value = self.get(name)
        if value is None:
            return None
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) and least <= i <= most for i in items):
            self.problem(f"{name} is {value!r}, not whole numbers from {least} to {most}")
            return None
        return tuple(items)

    def section(self, name: str) -> Fields:
        """The object under `name`, empty if absent."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            self.problem(f"{name} is {value!r}, not an object")
            value = None
        return Fields(value or {}, self.problems, f"{self.where}{name}.")

    def only(self, name: str, *supported: Any, default: Any) -> None:
        """A field that must have one of the values that the forward pass implements."""
        value = self.get(name)
        if (default if value is None else value) not in supported:
            self.problem(f"{name} is {value!r}, supported is {' or '.join(repr(item) for item in supported)}")

    def _missing(self, names: tuple[str, ...], default: _T | None, harmless: _T) -> _T:
        if default is None:
            self.problem(f"{' (or '.join(names)}{')' * (len(names) - 1)} is missing")
            return harmless
        return default

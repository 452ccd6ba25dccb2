"""Checks that llguidance holds the numbers of a JSON schema exactly: it would silently round all others.

llguidance reads every number as a 64-bit float, bounds of integers as 64-bit integers from that, and `multipleOf` as a
decimal fraction of a 32-bit integer (parser/src/json/numeric.rs). Some of the numbers it cannot hold end the process.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from eyas.base.errors import InvalidRequest

__all__ = ["check_common_multiple", "check_numbers"]

MAX_EXACT = 2**53 - 1  # up to here a float holds every integer and its neighbours
MAX_INT64 = 2**63 - 1  # generators write this as the largest integer; it is the library's own largest, so it is exact
MAX_DECIMALS = 22  # up to here a float holds the power of 10, and a JSON parser that rounds once reads what was written
MAX_FACTOR = 2**32 - 1

MAX_LENGTH = 2**31 - 1
LENGTHS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def check_numbers(schema: Mapping[str, Any], path: str, *, param: str) -> None:
    """Check one schema, without those inside it. Raises InvalidRequest with the path of a number that is not exact."""
    for name in BOUNDS:
        value = schema.get(name)
        is_largest = name == "maximum" and value == MAX_INT64 and schema.get("type") == "integer"
        if _is_number(value) and not is_largest:
            _check(value, f"{path}.{name}", param)
    for name in LENGTHS:
        length: Any = schema.get(name)
        if _is_number(length) and length > MAX_LENGTH:
            raise InvalidRequest(f"{path}.{name}: lengths of a schema go up to {MAX_LENGTH}", param=param)
    for name in ("const", "enum"):
        _check_values(schema.get(name), f"{path}.{name}", param)
    factor: Any = schema.get("multipleOf")
    if _is_number(factor):
        _check(factor, f"{path}.multipleOf", param)
        if factor > 0 and _as_library(factor) is None:
            raise InvalidRequest(
                f"{path}.multipleOf: {factor} cannot be enforced exactly; give it at most nine digits",
                param=param,
            )


def check_common_multiple(schemas: Iterable[Mapping[str, Any]], *, param: str) -> None:
    """Check schemas that may apply to one value together: the library multiplies their `multipleOf` in 32 bits."""
    coefficient, exponent = 1, 0
    for factor in {s["multipleOf"] for s in schemas if _is_number(s.get("multipleOf")) and s["multipleOf"] > 0}:
        known = _as_library(factor)
        if known is None:
            continue  # refused by `check_numbers`
        ours, theirs = (
            coefficient * 10 ** max(known[1] - exponent, 0),
            known[0] * 10 ** max(exponent - known[1], 0),
        )
        if ours * theirs > MAX_FACTOR:
            raise InvalidRequest(
                "the values of 'multipleOf' that meet in this schema have a common multiple that is too large",
                param=param,
            )
        coefficient, exponent = math.lcm(ours, theirs), max(exponent, known[1])


def _check_values(value: object, path: str, param: str) -> None:
    """Check all numbers in a constant."""
    todo = [value]
    while todo:
        item = todo.pop()
        if _is_number(item):
            _check(item, path, param)
        elif isinstance(item, Mapping):
            todo += item.values()
        elif isinstance(item, list | tuple):
            todo += item


def _check(value: Any, path: str, param: str) -> None:
    holds = -MAX_EXACT <= value <= MAX_EXACT
    if holds and isinstance(value, float):
        _, digits, exponent = Decimal(repr(value)).as_tuple()
        holds = int("".join(map(str, digits))) <= MAX_EXACT and int(exponent) >= -MAX_DECIMALS
    if not holds:
        raise InvalidRequest(
            f"{path}: {_shown(value)} cannot be enforced exactly; a schema's numbers go up to 2**53 - 1, with up to 15 "
            f"digits and {MAX_DECIMALS} decimals",
            param=param,
        )


def _as_library(factor: float) -> tuple[int, int] | None:
    """Return the coefficient and the negative exponent of 10 that llguidance computes, None if they are not exact."""
    value, exponent = float(factor), 0
    while value % 1 and value <= MAX_FACTOR:
        value, exponent = value * 10.0, exponent + 1
    if value > MAX_FACTOR or Decimal(int(value)).scaleb(-exponent) != Decimal(repr(float(factor))):
        return None
    return int(value), exponent


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: float) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:40]}..."

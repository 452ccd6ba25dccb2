"""Computes the one kind of program that the demo model writes, `print(EXPRESSION)` of numbers, without running it.

It stands in for the python tool where chats are made and judged. Numbers and operators are all it knows, so nothing of
a model's output is ever executed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

__all__ = ["CalculationError", "calculate", "run_program"]

MAX_CHARS = 200
MAX_VALUE = 10**30
MAX_POWER = 64

Number = int | float

OPERATORS: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


class CalculationError(ValueError):
    """The program is not a calculation, or has no result within the limits."""


def calculate(expression: str) -> Number:
    """Return the value of an expression of numbers, operators and parentheses.

    Raises CalculationError for anything else and ZeroDivisionError.
    """
    if len(expression) > MAX_CHARS:
        raise CalculationError("too long")
    try:
        tree = ast.parse(expression, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CalculationError("invalid syntax") from error
    return _value(tree.body)


def run_program(program: str) -> str:
    """Return what `print(EXPRESSION)` prints, without the line's end, or the last line of its error."""
    inner = program.strip()
    if not (inner.startswith("print(") and inner.endswith(")")):
        return "CalculationError: not a calculation"
    try:
        return str(calculate(inner.removeprefix("print(").removesuffix(")")))
    except (CalculationError, ZeroDivisionError) as error:
        return f"{type(error).__name__}: {error}"


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=value) if type(value) in (int, float):
            return _limited(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
            a, b = _value(left), _value(right)
            if isinstance(sign, ast.Pow) and not (isinstance(b, int) and 0 <= b <= MAX_POWER):
                raise CalculationError("the power is too large")
            try:
                return _limited(OPERATORS[type(sign)](a, b))
            except OverflowError as error:  # of floats
                raise CalculationError("the number is too large") from error
    raise CalculationError("not a calculation")


def _limited(value: Number) -> Number:
    if abs(value) > MAX_VALUE:
        raise CalculationError("the number is too large")
    return value

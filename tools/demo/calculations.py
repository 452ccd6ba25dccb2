"""Questions that ask for a calculation, with the expression that answers them, for chats with a python tool.

An expression is a list of numbers, operators and parentheses. Its question writes it in one of many ways, its program
always in one: without blanks, in Python's operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from calculator import CalculationError, calculate
from smalltalk import SUM_TEMPLATES

__all__ = ["Calculation", "draw_calculation"]

MAX_RESULT = 10**15

TEMPLATES = (
    *SUM_TEMPLATES,
    *"""Use python to compute {e}.|Use the python tool: {e}|Compute {e} with Python.|Calculate {e} with the tool.|
Run {e} in Python.|With Python, what is {e}?|Let python work out {e}.|What does Python say for {e}?|
Please use the tool for {e}.|python: {e}|Can you run {e}?|How much do I get for {e}?|Exactly how much is {e}?|
I have to know {e}.|What's the exact value of {e}?|The value of {e}, please.|Find {e}.""".replace("\n", "").split("|"),
)

COMMON = ("{e}", "What is {e}?")

# Ways to write an operator: the first one most often.
SIGNS = {
    "+": ("+",),
    "-": ("-",),
    "*": ("*", "*", "x", "\u00d7"),
    "/": ("/", "/", "\u00f7"),
    "//": ("//",),
    "%": ("%",),
    "**": ("**", "^"),
}
WORDS = {
    "+": ("plus",),
    "-": ("minus",),
    "*": ("times", "multiplied by"),
    "/": ("divided by", "over"),
    "//": ("//", "integer divided by"),
    "%": ("mod", "modulo"),
    "**": ("to the power of", "to the power"),
}
OF_TWO = {
    "+": ("the sum of {a} and {b}", "{b} added to {a}"),
    "-": ("the difference of {a} and {b}", "{a} take away {b}", "{b} subtracted from {a}"),
    "*": ("the product of {a} and {b}", "{a} by {b}"),
    "/": ("the quotient of {a} and {b}", "{a} split by {b}"),
    "//": ("the integer division of {a} by {b}", "the integer quotient of {a} and {b}"),
    "%": ("the remainder of {a} divided by {b}", "{a} modulo {b}"),
    "**": ("the {b}th power of {a}", "{a} raised to {b}"),
}
DIGITS, DIGIT_WEIGHTS = (1, 2, 3, 4, 5, 6, 7), (10, 20, 25, 25, 12, 6, 2)


@dataclass(frozen=True, slots=True)
class Calculation:
    """A question, the expression that it asks for, and its value as Python prints it."""

    question: str
    expression: str
    result: str

    @property
    def program(self) -> str:
        return f"print({self.expression})"


def draw_calculation(rng: Random) -> Calculation:
    """Draw a calculation whose result has at most 15 digits, or is a float."""
    while True:
        parts = _expression(rng)
        expression = "".join(parts)
        try:
            value = calculate(expression)
        except (CalculationError, ZeroDivisionError):
            continue
        if abs(value) <= MAX_RESULT and "e" not in (result := str(value)):
            template = rng.choice(COMMON) if rng.random() < 0.2 else rng.choice(TEMPLATES)
            question = template.format(e=_written(rng, parts))
            return Calculation(question, expression, result)


def _number(rng: Random) -> str:
    size = rng.choices(DIGITS, DIGIT_WEIGHTS)[0]
    return str(rng.randrange(10 ** (size - 1), 10**size))


def _expression(rng: Random) -> list[str]:
    kind = rng.choices(("chain", "parentheses", "power", "division"), (56, 20, 12, 12))[0]
    if kind == "chain":
        return _chain(rng, rng.choices((2, 3, 4, 5), (46, 34, 15, 5))[0])
    if kind == "power":
        power = [
            str(rng.randrange(2, rng.choice((13, 100)))),
            "**",
            str(rng.choices(range(2, 11), range(10, 1, -1))[0]),
        ]
        draw = rng.random()
        if draw < 0.5:
            return power
        sign = rng.choice("+-*")
        return [*power, sign, _number(rng)] if draw < 0.8 else [_number(rng), sign, *power]
    if kind == "division":
        sign, b = rng.choice(("/", "/", "//", "%")), rng.randrange(2, rng.choice((20, 200, 2000)))
        is_whole = rng.random() < 0.5
        a = b * rng.randrange(2, 2000) if is_whole else rng.randrange(10, 1_000_000)
        division = [str(a), sign, str(b)]
        return division if rng.random() < 0.7 else [*division, rng.choice("+-"), _number(rng)]
    inside = ["(", *_chain(rng, 2, "+-"), ")"]
    draw = rng.random()
    if draw < 0.4:
        return [*inside, "*", _number(rng)]
    if draw < 0.75:
        return [_number(rng), "*", *inside]
    if draw < 0.9:
        return [*inside, "*", "(", *_chain(rng, 2, "+-"), ")"]
    return [_number(rng), rng.choice("+-"), *inside, "*", _number(rng)]


def _chain(rng: Random, count: int, signs: str = "+-*") -> list[str]:
    parts = [_number(rng)]
    for _ in range(count - 1):
        parts += [rng.choice(signs), _number(rng)]
    return parts


def _written(rng: Random, parts: Sequence[str]) -> str:
    """Write an expression as a user would: in words, or in signs with or without blanks."""
    draw, has_parentheses = rng.random(), "(" in parts
    if len(parts) == 3 and draw < 0.15:
        return rng.choice(OF_TWO[parts[1]]).format(a=parts[0], b=parts[2])
    if not has_parentheses and draw < 0.3:
        return " ".join(rng.choice(WORDS.get(part, (part,))) for part in parts)
    signs = {sign: rng.choice(ways) for sign, ways in SIGNS.items()}
    grouped = rng.random() < 0.05
    blank = rng.choice(("", " ", " "))
    if signs["*"] == "x":
        blank = " "
    shown = [f"{int(part):,}" if grouped and part.isdigit() else signs.get(part, part) for part in parts]
    return blank.join(shown).replace("( ", "(").replace(" )", ")")

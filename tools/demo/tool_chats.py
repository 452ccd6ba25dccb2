"""Chats in which function tools are offered. A tool named `python` is called for every calculation, and nothing else.

The tools are declared as clients of OpenAI's API do it, each time in other words. Chats without calculations, and chats
that offer other tools only, teach when not to call.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

from calculations import draw_calculation
from chats import DEMO_IDENTITY, INSTRUCTIONS, Chat, ChatWriter, Turn, is_held_out
from facts import Fact

from eyas.base.harmony.rendering import IDENTITY, Effort, Message, developer_message, system_message
from eyas.base.harmony.tools import FunctionTool

__all__ = ["FAILED", "TOOL_SHARE", "ToolChatWriter", "python_tool"]

# Of all chats. They have 281 tokens on average, others 169: 18 % of the tokens, half of them declarations, which weigh
# little in the loss. Look-ups keep 88 % of their chats outside and get a third of these. Copying digits, all that calls
# need, is one skill; the 2,019 facts are learnt one by one, so they need the examples.
TOOL_SHARE = 0.12

ANALYSIS = "This is a calculation. I call the python tool."
FAILED = "The python tool reported an error, so I have no result."

DESCRIPTIONS = (
    "Run Python code.",
    "Runs Python code and returns what it prints.",
    "Execute Python code and return its output.",
    "Executes Python code in a sandbox. Returns stdout.",
    "A Python interpreter.",
    "Python interpreter for calculations.",
    "Evaluate Python code. Print the result to see it.",
    "Use this tool to execute Python code.",
    "Use this tool for arithmetic. The code is run and its output is returned.",
    "Runs a short Python program without network and returns standard output and errors.",
    "Runs code in a fresh Python process.",
    "Execute code.",
    "Calculator: runs Python.",
    "Runs Python 3 code. State is not kept between calls.",
    "Stateless Python sandbox; anything that is printed is returned to you.",
    "Execute a Python script and get the text it writes to stdout and stderr.",
    "",
)
UNSEEN_DESCRIPTIONS = (
    "Runs a Python program in an isolated environment and gives back everything that it printed.",
    "Python for exact results: pass a program, receive its output.",
)
MORE = (
    "",
    "",
    "",
    " Use print().",
    " Only the standard library is there.",
    " Time is limited to 10 seconds.",
    "\nNo network.",
)
CODE_DESCRIPTIONS = (
    None,
    None,
    "Python code",
    "The code to run.",
    "Python source code to execute.",
    "The program. Print what you want to see.",
    "code to execute, e.g. print(1 + 1)",
    "Complete Python program",
)


def _other(name: str, description: str, **fields: str) -> FunctionTool:
    properties = {field: {"type": kind} for field, kind in fields.items()}
    parameters = {"type": "object", "properties": properties, "required": list(fields)[:1]}
    return FunctionTool(name=name, description=description, parameters=parameters)


OTHERS = (
    _other("get_weather", "Get the weather of a city.", city="string", unit="string"),
    _other("search_web", "Searches the web.", query="string"),
    _other("read_file", "Read a file of the project.", path="string"),
    _other("send_email", "Send an email.", to="string", subject="string", body="string"),
    _other("get_time", "Returns the time in a time zone.", zone="string"),
    _other("lookup_stock", "Current price of a stock.", symbol="string"),
    _other("run_shell", "Run a shell command.", command="string", timeout="number"),
    _other("translate", "Translate a text.", text="string", language="string"),
)

ERRORS = """
ZeroDivisionError: division by zero|NameError: name 'x' is not defined|SyntaxError: invalid syntax|
OverflowError: integer too large|MemoryError|TimeoutError: timed out|timed out after 10 seconds|killed|
Error: no sandbox is available|error: permission denied|PermissionError: not allowed|ValueError: invalid literal|
TypeError: unsupported operand|RuntimeError: the tool is not available|CalculationError: not a calculation|
Error: exit status 1|ModuleNotFoundError: No module named 'numpy'|OSError: [Errno 12] Cannot allocate memory|
error: the call was refused|KeyboardInterrupt|internal error
"""
ERROR_TEXTS = tuple(ERRORS.replace("\n", "").split("|"))
TRACEBACK = 'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\n'


def python_tool(rng: Random, descriptions: Sequence[str] = DESCRIPTIONS) -> FunctionTool:
    """Declare the tool in some words: one string parameter `code`."""
    code: dict[str, Any] = {"type": "string"}
    if text := rng.choice(CODE_DESCRIPTIONS):
        code["description"] = text
    parameters: dict[str, Any] = {"type": "object", "properties": {"code": code}}
    if rng.random() < 0.9:
        parameters["required"] = ["code"]
    if rng.random() < 0.5:
        parameters["additionalProperties"] = False
    description = rng.choice(descriptions)
    return FunctionTool(
        name="python", description=description and description + rng.choice(MORE), parameters=parameters
    )


def calculation_turn(rng: Random) -> Turn:
    """Return a question that needs the tool, with the call and the answer to a right result."""
    drawn = draw_calculation(rng)
    arguments = json.dumps({"code": drawn.program}, separators=(",", ":"))
    return Turn(
        drawn.question,
        ANALYSIS,
        f"The result is {drawn.result}.",
        "calculation",
        arguments=arguments,
        result=drawn.result,
    )


class ToolChatWriter:
    """Draws chats that offer tools. `held_out` draws turns and wordings that training never sees, and no others."""

    def __init__(self, facts: Sequence[Fact], rng: Random, *, held_out: bool = False) -> None:
        self.rng = rng
        self.held_out = held_out
        self.plain = ChatWriter(facts, rng, held_out=held_out)

    def chat(self, *, has_python: bool | None = None, is_calculation: bool | None = None) -> Chat:
        """Draw a chat. `has_python` and `is_calculation` say what is offered, and what its last question is."""
        return self.drawn(has_python, is_calculation)[0]

    def drawn(
        self, has_python: bool | None = None, is_calculation: bool | None = None
    ) -> tuple[Chat, tuple[FunctionTool, ...]]:
        """Draw a chat, and return the tools that it offers too."""
        rng = self.rng
        effort: Effort = rng.choices(("low", "medium", "high"), (35, 50, 15))[0]
        if has_python is None:
            has_python = rng.random() < 0.85
        tools = self._tools(has_python)
        preamble = self._preamble(effort, tools)
        turns: list[Turn] = []
        count = rng.choices((1, 2, 3), (70, 20, 10))[0]
        while len(turns) < count:
            wanted = is_calculation if len(turns) == count - 1 else None
            calls = has_python and (rng.random() < 0.65 if wanted is None else wanted)
            turns.append(self._calculation() if calls else self._plain(effort, has_python, turns[-1:]))
        if turns[-1].arguments is not None and rng.random() < 0.4:
            turns[-1] = self._reported(turns[-1])
            return Chat(tuple(turns), preamble, effort, "answer", rng.random() < 0.7), tools
        return Chat(tuple(turns), preamble, effort, "call"), tools

    def _tools(self, has_python: bool) -> tuple[FunctionTool, ...]:
        rng = self.rng
        tools = [python_tool(rng, UNSEEN_DESCRIPTIONS if self.held_out else DESCRIPTIONS)] if has_python else []
        if not has_python or rng.random() < 0.25:
            tools += rng.sample(OTHERS, rng.randint(1, 3))
            rng.shuffle(tools)
        return tuple(tools)

    def _preamble(self, effort: Effort, tools: Sequence[FunctionTool]) -> tuple[Message, ...]:
        rng = self.rng
        date = f"{rng.randint(2024, 2027)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
        system = system_message(
            identity=rng.choices((DEMO_IDENTITY, IDENTITY), (30, 70))[0],
            date=rng.choices((date, None), (85, 15))[0],
            effort=effort,
            has_functions=True,
        )
        instructions = rng.choice(INSTRUCTIONS) if rng.random() < 0.25 else None
        return (system, developer_message(instructions, tools=tools))

    def _calculation(self) -> Turn:
        while True:
            turn = calculation_turn(self.rng)
            if is_held_out(turn) == self.held_out:
                return self.plain.reworded(turn)

    def _plain(self, effort: Effort, has_python: bool, before: Sequence[Turn]) -> Turn:
        while True:
            # After a calculation nothing refers back to a fact.
            turn = self.plain.turn(effort, next((turn for turn in before if turn.fact), None))
            if not (has_python and turn.kind == "arithmetic"):
                return turn

    def _reported(self, turn: Turn) -> Turn:
        """Return the turn with its result as some sandbox reports it, or with an error instead."""
        rng, result = self.rng, turn.result
        draw = rng.random()
        if draw < 0.15:
            error = rng.choice(ERROR_TEXTS)
            text = TRACEBACK + error if rng.random() < 0.4 else error
            return turn.with_result(text, FAILED)
        if draw < 0.65:
            return turn
        if draw < 0.88:
            return turn.with_result(f"{result}\n", turn.answer)
        output = f"{result}\n" if rng.random() < 0.5 else result
        fields = rng.choice(({"output": output}, {"stdout": output, "stderr": "", "exit_code": 0}, {"result": output}))
        return turn.with_result(json.dumps(fields), turn.answer)

"""The `python` tool that a model is offered: a function with one string, `code`, that runs in the sandbox.

gpt-oss was trained with a python tool of Harmony's own, in the system message, whose calls are bare code. Chat
Completions have no field for it, so it is a function here; bare code in its call is understood, too.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from typing import Any

from eyas.sandbox.sandbox import Sandbox

__all__ = ["PythonTool", "code_of"]

NAME = "python"


class PythonTool:
    """Runs calls, as many at once as there are cores; others wait."""

    name = NAME

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._places = asyncio.Semaphore(os.cpu_count() or 1)

    @property
    def definition(self) -> Mapping[str, Any]:
        """The tool as an entry of `tools` of a chat completion."""
        limits = self._sandbox.limits
        description = (
            "Runs a Python 3 program and returns what it prints: use print(). State is not kept between calls. "
            f"No network, no files but in /tmp, {limits.wall_s:g} seconds, {limits.memory_bytes >> 20} MiB."
        )
        code = {"type": "string", "description": "The program. Print what you want to see."}
        parameters = {"type": "object", "properties": {"code": code}, "required": ["code"]}
        return {
            "type": "function",
            "function": {"name": NAME, "description": description, "parameters": parameters},
        }

    async def call(self, arguments: Any) -> str:
        """Return the result of a call: what its program printed, or what went wrong. Raises UserError if none runs."""
        code = code_of(arguments)
        if code is None:
            return 'the call needs {"code": "a Python program"}'
        async with self._places:
            return (await self._sandbox.run(code)).text


def code_of(arguments: Any) -> str | None:
    """Return the program of a call, None for JSON that has none. What is no JSON is the program itself.

    Arguments are a JSON text or already a value: some servers write them so.
    """
    value = arguments
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
    if isinstance(value, dict):
        code = value.get("code")
        return code if isinstance(code, str) else None
    return value if isinstance(value, str) else str(arguments)

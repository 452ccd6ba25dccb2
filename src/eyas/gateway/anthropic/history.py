"""Messages of a request as entries of a conversation: calls with their results, tools where they become known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from eyas.base.errors import InvalidRequest, nearest
from eyas.base.harmony.conversation import CallEntry, Entry, ReasoningEntry, ResultEntry, TextEntry, ToolsEntry
from eyas.base.harmony.tools import FunctionTool, check_tool_name
from eyas.gateway.anthropic.body import (
    MessageField,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from eyas.gateway.anthropic.system import system_text
from eyas.gateway.anthropic.text import Readable, text_of
from eyas.gateway.anthropic.tools import MAX_NAME_CHARS, DeclaredTools

__all__ = ["UNPARSED", "History"]

UNPARSED = "__unparsedToolInput"  # Claude Code's name for arguments that are no JSON object
ERROR = "Error: "


class History:
    """Reads messages in their order. `entries` are what the model reads, `loaded` the tools that references brought."""

    def __init__(self, tools: DeclaredTools) -> None:
        self.entries: list[Entry] = []
        self.loaded: dict[str, FunctionTool] = {}
        self._tools = {tool.name: tool for tool in tools.all}
        self._deferred = tools.deferred
        self._calls: dict[str, tuple[int, str]] = {}  # id of a call to its number and its function
        self._answered: set[str] = set()
        self._num_calls = 0

    def read(self, messages: Sequence[MessageField]) -> None:
        """Raises InvalidRequest naming message, block and field."""
        for index, message in enumerate(messages):
            where = f"messages[{index}]"
            if message.role == "assistant":
                self._assistant(message.content, f"{where}.content")
            elif message.role == "user":
                self._user(message.content, f"{where}.content")
            else:
                self._system(message.content, f"{where}.content")

    def _system(self, content: str | Sequence[Any], where: str) -> None:
        if not isinstance(content, str):
            for index, block in enumerate(content):
                if not isinstance(block, TextBlock):
                    raise misplaced(block, f"{where}[{index}]", "a system message")
        if (text := system_text(content)) is not None:
            self.entries.append(TextEntry(role="system", text=text))

    def _user(self, content: str | Sequence[Any], where: str) -> None:
        """Read results first, in the order of their calls, then the text."""
        if isinstance(content, str):
            self.entries.append(TextEntry(role="user", text=content))
            return
        results: list[tuple[int, list[Entry]]] = []
        readable: list[Readable] = []
        for index, block in enumerate(content):
            if isinstance(block, ToolResultBlock):
                results.append(self._result(block, f"{where}[{index}]"))
            elif isinstance(block, ToolUseBlock | ThinkingBlock | RedactedThinkingBlock):
                raise misplaced(block, f"{where}[{index}]", "a user's message")
            else:
                readable.append(block)
        for _, entries in sorted(results, key=lambda one: one[0]):
            self.entries += entries
        if readable or not results:
            self.entries.append(TextEntry(role="user", text=text_of(readable)))

    def _result(self, block: ToolResultBlock, where: str) -> tuple[int, list[Entry]]:
        """Return the number of the call, the result and the tools that it brings."""
        if block.tool_use_id not in self._calls:
            field = f"{where}.tool_use_id"
            message = f"'{field}': no tool_use block before it has the id '{block.tool_use_id}'"
            raise InvalidRequest(message, param=field)
        if block.tool_use_id in self._answered:
            field = f"{where}.tool_use_id"
            raise InvalidRequest(f"'{field}': there is a result of '{block.tool_use_id}' already", param=field)
        self._answered.add(block.tool_use_id)
        number, name = self._calls[block.tool_use_id]
        content = block.content or ""
        text = text_of(content)
        is_told = text.lower().startswith(("error", "<tool_use_error>"))
        output = f"{ERROR}{text}" if block.is_error and not is_told else text
        entries: list[Entry] = [ResultEntry(name=name, output=output, id=block.tool_use_id)]
        if not isinstance(content, str) and (brought := self._brought(content, f"{where}.content")):
            entries.append(ToolsEntry(tools=brought))
        return number, entries

    def _brought(self, content: Sequence[Any], where: str) -> list[FunctionTool]:
        """Return the tools that references make known for the first time."""
        brought = []
        for index, block in enumerate(content):
            if not isinstance(block, ToolReferenceBlock):
                continue
            name = block.tool_name
            if name not in self._tools:
                field = f"{where}[{index}].tool_name"
                hint = nearest(name, self._tools)
                raise InvalidRequest(f"'{field}': '{name}' is none of the tools{hint}", param=field)
            if name in self._deferred and name not in self.loaded:
                self.loaded[name] = self._tools[name]
                brought.append(self._tools[name])
        return brought

    def _assistant(self, content: str | Sequence[Any], where: str) -> None:
        """Read blocks in their order. Text before a call or more reasoning is a preamble, as the model writes it."""
        blocks = [TextBlock(text=content)] if isinstance(content, str) else content
        preambles = max((i for i, block in enumerate(blocks) if not isinstance(block, TextBlock)), default=-1)
        if any(isinstance(block, ToolUseBlock) for block in blocks):
            preambles = len(blocks)
        text = ""
        for index, block in enumerate(blocks):
            if isinstance(block, TextBlock):
                text += block.text
                follower = blocks[index + 1] if index + 1 < len(blocks) else None
                if text and not isinstance(follower, TextBlock):
                    self.entries.append(TextEntry(role="assistant", text=text, is_preamble=index < preambles))
                    text = ""
            elif isinstance(block, ThinkingBlock):
                if block.thinking:
                    self.entries.append(ReasoningEntry(text=block.thinking))
            elif isinstance(block, ToolUseBlock):
                self._call(block, f"{where}[{index}]")
            elif not isinstance(block, RedactedThinkingBlock):
                raise misplaced(block, f"{where}[{index}]", "an assistant's message")

    def _call(self, block: ToolUseBlock, where: str) -> None:
        check_tool_name(block.name, param=f"{where}.name", longest=MAX_NAME_CHARS)
        if block.id in self._calls and block.id not in self._answered:
            raise InvalidRequest(f"'{where}.id': two calls wait for a result of '{block.id}'", param=f"{where}.id")
        self._answered.discard(block.id)
        self._calls[block.id] = (self._num_calls, block.name)
        self._num_calls += 1
        self.entries.append(CallEntry(name=block.name, arguments=arguments_of(block.input), id=block.id))


def arguments_of(given: dict[str, Any]) -> str:
    """Return arguments as the model wrote them if they were no JSON, else always the same JSON for the same value."""
    raw = given.get(UNPARSED)
    if len(given) == 1 and isinstance(raw, dict) and isinstance(raw.get("raw"), str):
        return str(raw["raw"])
    return msgspec.json.encode(given).decode()


def misplaced(block: msgspec.Struct, where: str, place: str) -> InvalidRequest:
    kind = block.__struct_config__.tag
    return InvalidRequest(f"'{where}.type': {place} has no blocks of type '{kind}'", param=f"{where}.type")

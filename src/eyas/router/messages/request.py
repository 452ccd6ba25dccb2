"""A conversation as messages and tools of a chat request, so that gpt-oss's own template and others keep all of it.

What that template does (https://huggingface.co/openai/gpt-oss-120b/blob/main/chat_template.jinja) decides the form:
* it drops system messages behind the first message: their text goes into the message before, a user's or a result;
* it writes the first call of a message only, and names results after the last call: each call is a message of its own,
  and its result follows at once;
* it refuses a call with both text and reasoning, and llama-server then drops the text: both go into the reasoning. It
  writes either as reasoning, until the turn has its answer;
* it ends a turn at each assistant's message without a call: reasoning that nothing follows is left out.

Nothing depends on what comes later but the tools, so the prompt of a session only grows. Tools that are loaded in the
middle have no place in a chat but the list in front: they come behind the others in the order in which they were
loaded. All in front of the list's end stays cached; the messages are read once more for each search that finds one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from eyas.base.harmony.conversation import (
    CallEntry,
    Conversation,
    Entry,
    ReasoningEntry,
    ResultEntry,
    TextEntry,
    ToolsEntry,
)
from eyas.base.harmony.tools import FunctionTool, response_formats_section
from eyas.base.harmony.typescript import json_text
from eyas.gateway.anthropic.body import CountBody
from eyas.gateway.anthropic.events import input_of

__all__ = ["Message", "chat_effort", "chat_messages", "chat_tools"]

Message: TypeAlias = dict[str, Any]

BREAK = "\n\n"
REMINDER = "<system-reminder>\n{}\n</system-reminder>"  # Claude Code's own form of such text in a user's message
NO_ID = "call"


def chat_messages(conversation: Conversation) -> list[Message]:
    """Return the messages of a chat."""
    writer = _Writer(conversation)
    for index, entry in enumerate(conversation.entries):
        writer.add(index, entry)
    writer.end_turn()
    return writer.messages


def chat_tools(conversation: Conversation) -> list[Message]:
    """Return the tools of a chat: those known from the beginning, then those that were loaded."""
    loaded = [tool for entry in conversation.entries if isinstance(entry, ToolsEntry) for tool in entry.tools]
    return [_tool(tool) for tool in (*conversation.tools, *loaded)]


def chat_effort(body: CountBody, conversation: Conversation) -> Message:
    """Return the field with the effort if the body asks for one: not every model has it."""
    is_off = body.thinking is not None and body.thinking.type == "disabled"
    is_asked = body.output_config is not None and body.output_config.effort is not None
    return {"reasoning_effort": conversation.effort} if is_off or is_asked else {}


class _Writer:
    """Writes entries one by one. Reasoning and text in front of a call wait for what they belong to."""

    def __init__(self, conversation: Conversation) -> None:
        self.messages: list[Message] = []
        self._waiting: list[ReasoningEntry | TextEntry] = []
        self._results = _results(conversation.entries)
        formats = conversation.answer_format
        head = [conversation.instructions] if conversation.instructions else []
        if formats is not None:
            head.append(response_formats_section([formats]))
        if head:
            self.messages.append({"role": "system", "content": BREAK.join(head)})

    def add(self, index: int, entry: Entry) -> None:
        match entry:
            case ReasoningEntry() | TextEntry(role="assistant", is_preamble=True):
                self._waiting.append(entry)
            case TextEntry(role="assistant", text=text):
                self._answer([text])
            case CallEntry():
                self._call(entry, self._results.get(index))
            case TextEntry(role="user", text=text):
                self.end_turn()
                self.messages.append({"role": "user", "content": text})
            case TextEntry(role="system", text=text):
                self.end_turn()
                self._fold(text)
            case ResultEntry() | ToolsEntry():  # results stand behind their calls, tools in the list of tools
                pass

    def end_turn(self) -> None:
        """Write text that nothing followed. Reasoning alone would be an empty answer."""
        if any(isinstance(entry, TextEntry) for entry in self._waiting):
            self._answer([])
        self._waiting.clear()

    def _answer(self, texts: list[str]) -> None:
        said = [entry.text for entry in self._waiting if isinstance(entry, TextEntry)]
        thought = [entry.text for entry in self._waiting if isinstance(entry, ReasoningEntry)]
        self._assistant(BREAK.join([*said, *texts]), thought)

    def _call(self, call: CallEntry, result: ResultEntry | None) -> None:
        texts = [entry.text for entry in self._waiting]
        has_reasoning = any(isinstance(entry, ReasoningEntry) for entry in self._waiting)
        message = self._assistant("" if has_reasoning else BREAK.join(texts), texts if has_reasoning else [])
        call_id = call.id or NO_ID
        function = {"name": call.name, "arguments": _arguments(call.arguments)}
        message["tool_calls"] = [{"id": call_id, "type": "function", "function": function}]
        if result is not None:
            self.messages.append({"role": "tool", "tool_call_id": call_id, "content": result.output})

    def _assistant(self, content: str, thought: Sequence[str]) -> Message:
        """Write a message; reasoning has one name with llama-server and SGLang, another with vLLM and Ollama."""
        message: Message = {"role": "assistant", "content": content}
        if thought:
            message["reasoning_content"] = message["reasoning"] = BREAK.join(thought)
        self._waiting.clear()
        self.messages.append(message)
        return message

    def _fold(self, text: str) -> None:
        """Write a system message where it stands: in the message before, unless the assistant said that."""
        if not self.messages:
            self.messages.append({"role": "system", "content": text})
            return
        last, form = self.messages[-1], "{}" if self.messages[-1]["role"] == "system" else REMINDER
        if not text:
            return
        if last["role"] == "assistant":
            self.messages.append({"role": "user", "content": form.format(text)})
        else:
            last["content"] = BREAK.join(filter(None, (last["content"], form.format(text))))


def _results(entries: Sequence[Entry]) -> Mapping[int, ResultEntry]:
    """Return the result of each call by the call's index: the first with its id behind it."""
    found: dict[int, ResultEntry] = {}
    open_calls: dict[str | None, int] = {}
    for index, entry in enumerate(entries):
        if isinstance(entry, CallEntry):
            open_calls[entry.id] = index
        elif isinstance(entry, ResultEntry) and entry.id in open_calls:
            found[open_calls.pop(entry.id)] = entry
    return found


def _arguments(text: str) -> str:
    """Return arguments as a JSON object: backends parse them, and refuse a whole conversation over one that is none."""
    given = input_of(text)
    return msgspec.json.encode(given).decode()


def _tool(tool: FunctionTool) -> Message:
    function: Message = {
        "name": tool.name,
        "description": tool.description,
        "parameters": {"type": "object", "properties": {}} if tool.parameters is None else _renderable(tool.parameters),
    }
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _renderable(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema whose defaults beside `enum` and `oneOf` are text: gpt-oss's template fails at others."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not any(map(_is_trap, properties.values())):
        return schema
    changed = {
        name: {**inner, "default": json_text(inner["default"])} if _is_trap(inner) else inner
        for name, inner in properties.items()
    }
    return {**schema, "properties": changed}


def _is_trap(schema: object) -> bool:
    if not isinstance(schema, Mapping) or not (schema.get("enum") or schema.get("oneOf")):
        return False
    return "default" in schema and not isinstance(schema["default"], str)

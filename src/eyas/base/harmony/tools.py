"""Tools and answer formats in Harmony: their text in the prompt, and the function that a message calls.

Functions are in the developer message, the tools that gpt-oss was trained with (browser, python) in the system
message. Written from OpenAI's format description; the test oracle is `openai-harmony` 0.0.8.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eyas.base.errors import InvalidRequest
from eyas.base.harmony.typescript import json_text, typescript_type

__all__ = [
    "BROWSER",
    "CONTENT_TYPES",
    "FUNCTIONS",
    "PYTHON",
    "FunctionTool",
    "ResponseFormat",
    "ToolNamespace",
    "called_function",
    "check_schema",
    "check_tool_name",
    "check_tools",
    "repeated",
    "response_formats_section",
    "tools_section",
]

FUNCTIONS = "functions"  # the namespace of the API user's own tools
CONTENT_TYPES = ("json", "code")  # gpt-oss writes these without <|constrain|>
MAX_NAME_CHARS = 64
MAX_SCHEMA_DEPTH = 64
MAX_SCHEMA_ITEMS = 20_000
MAX_SCHEMA_CHARS = 1 << 18

NAME = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionTool:
    """A function that the model may call. `parameters` is a JSON schema; None means no arguments.

    `strict` binds the arguments to the schema even if the model is free to call or not. Callers check tools from
    outside first, with `check_tool_name` and `check_schema`.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    strict: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolNamespace:
    """Tools under one name, called as `name.tool`; without `tools` the namespace itself is called (like `python`)."""

    name: str
    description: str | None = None
    tools: tuple[FunctionTool, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ResponseFormat:
    """A JSON schema for the answer. The model reads it, but only a grammar enforces it."""

    name: str
    schema: Mapping[str, Any]
    description: str = ""


def tools_section(namespaces: Sequence[ToolNamespace]) -> str:
    """Return the `# Tools` section: namespaces sorted by name, each tool a TypeScript function type."""
    ordered = sorted(namespaces, key=lambda namespace: namespace.name)
    return "\n\n".join(["# Tools", *map(_namespace_text, ordered)])


def response_formats_section(formats: Sequence[ResponseFormat]) -> str:
    """Return the `# Response Formats` section of a developer message: each schema as JSON under its name."""
    parts = ["# Response Formats"]
    for answer in formats:
        lines = _comment(answer.description, "// ")
        parts += [f"## {answer.name}", "\n".join([*lines, json_text(answer.schema)])]
    return "\n\n".join(parts)


def called_function(recipient: str | None, known: Collection[str]) -> str | None:
    """Return the one of the `known` functions that a parsed recipient calls; None if it is none of them.

    gpt-oss leaves the namespace out at times.
    A function named like a built-in tool (`python`) or a content type (`json`) is called by its full name only.
    """
    if recipient is None:
        return None
    bare = recipient.removeprefix(f"{FUNCTIONS}.")
    if bare not in known or (bare == recipient and bare in (*BUILT_IN, *CONTENT_TYPES)):
        return None
    return bare


def check_tool_name(name: str, *, param: str, longest: int = MAX_NAME_CHARS) -> None:
    """Raises InvalidRequest unless `name` is 1 to `longest` letters, digits, `_` or `-`: it becomes part of a header.

    OpenAI's API has names of 64 characters at most.
    """
    if len(name) > longest or not NAME.fullmatch(name):
        shown = name if len(name) <= longest else f"{name[:longest]}..."
        raise InvalidRequest(
            f"{shown!r} is not a valid tool name; use 1 to {longest} letters, digits, '_' or '-'", param=param
        )


def check_schema(schema: Mapping[str, Any], *, param: str) -> None:
    """Raises InvalidRequest for a schema beyond the limits on size and depth, or with NaN or infinite numbers."""
    todo: list[tuple[object, int]] = [(schema, 1)]
    num_items = num_chars = 0
    while todo:
        value, depth = todo.pop()
        num_items += 1
        if depth > MAX_SCHEMA_DEPTH:
            raise InvalidRequest(f"the schema nests deeper than {MAX_SCHEMA_DEPTH} levels", param=param)
        if isinstance(value, Mapping):
            num_chars += sum(map(len, value))
            todo += [(item, depth + 1) for item in value.values()]
        elif isinstance(value, list | tuple):
            todo += [(item, depth + 1) for item in value]
        elif isinstance(value, str):
            num_chars += len(value)
        elif isinstance(value, int | float) and not _is_finite(value):
            raise InvalidRequest("the schema has a number that is too large or not a number", param=param)
        if num_items > MAX_SCHEMA_ITEMS or num_chars > MAX_SCHEMA_CHARS:
            raise InvalidRequest(
                f"the schema has more than {MAX_SCHEMA_ITEMS} values or {MAX_SCHEMA_CHARS} characters", param=param
            )


def check_tools(tools: Sequence[FunctionTool], *, name: str, parameters: str) -> None:
    """Raises InvalidRequest for a bad name or schema; `name` and `parameters` are their fields: `tools[{}].name`."""
    for index, tool in enumerate(tools):
        check_tool_name(tool.name, param=name.format(index))
        check_schema(tool.parameters or {}, param=parameters.format(index))


def repeated(tools: Sequence[FunctionTool]) -> int | None:
    """Return the index of the first tool with the name of an earlier one."""
    names = [tool.name for tool in tools]
    return next((index for index, name in enumerate(names) if name in names[:index]), None)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def _namespace_text(namespace: ToolNamespace) -> str:
    comment = "// " if namespace.tools else ""
    lines = [f"## {namespace.name}\n", *_comment(namespace.description or "", comment)]
    if namespace.tools:
        lines.append(f"namespace {namespace.name} {{\n")
        for tool in namespace.tools:
            lines += _comment(tool.description, "// ")
            argument = "" if tool.parameters is None else f"_: {typescript_type(tool.parameters)}"
            lines.append(f"type {tool.name} = ({argument}) => any;\n")
        lines.append(f"}} // namespace {namespace.name}")
    return "\n".join(lines)


def _comment(text: str, mark: str) -> list[str]:
    """Return `text` with `mark` before each line, as one string, or none. Lines end with \\n or \\r\\n."""
    lines = text.replace("\r\n", "\n").removesuffix("\n")
    return [mark + lines.replace("\n", f"\n{mark}")] if text else []


def _typed(kind: str | list[str], default: object = None) -> dict[str, Any]:
    return {"type": kind} if default is None else {"type": kind, "default": default}


BROWSER = ToolNamespace(
    name="browser",
    description="""Tool for browsing.
The `cursor` appears in brackets before each browsing display: `[{cursor}]`.
Cite information from the tool using the following format:
`\u3010{cursor}\u2020L{line_start}(-L{line_end})?\u3011`, for example: \
`\u30106\u2020L9-L11\u3011` or `\u30108\u2020L3\u3011`.
Do not quote more than 10 words directly from the tool output.
sources=web (default: web)""",
    tools=(
        FunctionTool(
            name="search",
            description="Searches for information related to `query` and displays `topn` results.",
            parameters={
                "type": "object",
                "properties": {
                    "query": _typed("string"),
                    "topn": _typed("number", 10),
                    "source": _typed("string"),
                },
                "required": ["query"],
            },
        ),
        FunctionTool(
            name="open",
            description="""Opens the link `id` from the page indicated by `cursor` starting at line number `loc`, \
showing `num_lines` lines.
Valid link ids are displayed with the formatting: `\u3010{id}\u2020.*\u3011`.
If `cursor` is not provided, the most recent page is implied.
If `id` is a string, it is treated as a fully qualified URL associated with `source`.
If `loc` is not provided, the viewport will be positioned at the beginning of the document or centered on the most \
relevant passage, if available.
Use this function without `id` to scroll to a new location of an opened page.""",
            parameters={
                "type": "object",
                "properties": {
                    "id": _typed(["number", "string"], -1),
                    "cursor": _typed("number", -1),
                    "loc": _typed("number", -1),
                    "num_lines": _typed("number", -1),
                    "view_source": _typed("boolean", False),
                    "source": _typed("string"),
                },
            },
        ),
        FunctionTool(
            name="find",
            description="Finds exact matches of `pattern` in the current page, or the page given by `cursor`.",
            parameters={
                "type": "object",
                "properties": {"pattern": _typed("string"), "cursor": _typed("number", -1)},
                "required": ["pattern"],
            },
        ),
    ),
)

PYTHON = ToolNamespace(
    name="python",
    description="""Use this tool to execute Python code in your chain of thought. The code will not be shown to the \
user. This tool should be used for internal reasoning, but not for code that is intended to be visible to the user \
(e.g. when creating plots, tables, or files).

When you send a message containing Python code to python, it will be executed in a stateful Jupyter notebook \
environment. python will respond with the output of the execution or time out after 120.0 seconds. The drive at \
'/mnt/data' can be used to save and persist user files. Internet access for this session is UNKNOWN. Depends on the \
cluster.""",
)

BUILT_IN = (BROWSER.name, PYTHON.name)

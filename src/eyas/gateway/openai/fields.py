"""Shared fields of the bodies of chat and Responses: functions, schemas of answers, labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from eyas.base.errors import InvalidRequest, nearest
from eyas.base.harmony.tools import FunctionTool, ResponseFormat
from eyas.gateway.http.body import Fields

__all__ = [
    "CacheRetention",
    "FunctionFields",
    "Label",
    "PlainStreamOptions",
    "SchemaFields",
    "ServiceTier",
    "StreamOptions",
    "ToolName",
    "allowed_tools",
    "check_stream_options",
]

# Values of OpenAI's API. This server has one tier, and prefixes stay cached as long as there is room.
ServiceTier: TypeAlias = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
CacheRetention: TypeAlias = Literal["in_memory", "in-memory", "24h"]
Label: TypeAlias = Annotated[str, Meta(max_length=512)]
ToolName: TypeAlias = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]


class FunctionFields(Fields, kw_only=True):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def tool(self) -> FunctionTool:
        """Return the function as the model sees it; not checked."""
        return FunctionTool(
            name=self.name,
            description=self.description or "",
            parameters=self.parameters,
            strict=bool(self.strict),
        )


class SchemaFields(Fields, kw_only=True):
    """A schema that the answer is bound to; `strict` or not, it is enforced."""

    name: ToolName
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None

    @property
    def response_format(self) -> ResponseFormat:
        """Return the schema as the model sees it."""
        return ResponseFormat(name=self.name, schema=self.schema, description=self.description or "")


class PlainStreamOptions(Fields, kw_only=True):
    """Stream options that chat, completions and Responses share."""

    include_obfuscation: bool | None = None  # OpenAI's padding against traffic analysis: false only


class StreamOptions(PlainStreamOptions, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None

    @property
    def is_continuous(self) -> bool:
        return bool(self.include_usage and self.continuous_usage_stats)


def check_stream_options(stream: bool | None, options: PlainStreamOptions | None) -> None:
    """Raises InvalidRequest for options without a stream, and for unsupported ones."""
    if options is None:
        return
    if not stream:
        raise InvalidRequest("stream_options is for stream=true only", param="stream_options")
    if options.include_obfuscation:
        name = "stream_options.include_obfuscation"
        raise InvalidRequest(f"'{name}' is not supported by this server", param=name)


def allowed_tools(
    tools: Sequence[FunctionTool], names: Sequence[str], *, where: str, field: str
) -> tuple[FunctionTool, ...]:
    """Return the tools with these names, which are at `where`.tools[i].`field` of the body. Raises InvalidRequest."""
    known = {tool.name: tool for tool in tools}
    for index, name in enumerate(names):
        if name not in known:
            raise InvalidRequest(
                f"tool_choice allows '{name}', which is none of the tools{nearest(name, known)}",
                param=f"{where}.tools[{index}].{field}",
            )
    return tuple(tool for tool in tools if tool.name in names)

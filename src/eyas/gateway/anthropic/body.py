"""Bodies of `/v1/messages` and `/v1/messages/count_tokens`. Fields that are not named here are accepted and ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

__all__ = [
    "CountBody",
    "DocumentBlock",
    "Effort",
    "ImageBlock",
    "MessageField",
    "MessagesBody",
    "OutputConfig",
    "RedactedThinkingBlock",
    "ResultBlock",
    "SearchResultBlock",
    "TextBlock",
    "TextOrBlocks",
    "ThinkingBlock",
    "ThinkingConfig",
    "ToolChoiceField",
    "ToolField",
    "ToolReferenceBlock",
    "ToolResultBlock",
    "ToolUseBlock",
]

MAX_MESSAGES = 10_000
MAX_BLOCKS = 10_000  # per message
MAX_TOOLS = 1000


class Open(Struct, kw_only=True):
    """Base of request objects. Clients send fields that are newer than this server, in all places."""


class TextBlock(Open, tag="text", kw_only=True):
    text: str


class ImageBlock(Open, tag="image", kw_only=True):
    source: dict[str, Any]


class PlainSource(Open, tag="text", kw_only=True):
    data: str


class ContentSource(Open, tag="content", kw_only=True):
    content: str | Annotated[list[TextBlock | ImageBlock], Meta(max_length=MAX_BLOCKS)]


class Base64Source(Open, tag="base64", kw_only=True):
    media_type: str


class UrlSource(Open, tag="url", kw_only=True):
    url: str


class FileSource(Open, tag="file", kw_only=True):
    file_id: str


class DocumentBlock(Open, tag="document", kw_only=True):
    source: PlainSource | ContentSource | Base64Source | UrlSource | FileSource
    title: str | None = None
    context: str | None = None


class SearchResultBlock(Open, tag="search_result", kw_only=True):
    source: str
    title: str
    content: Annotated[list[TextBlock], Meta(max_length=MAX_BLOCKS)]


class ThinkingBlock(Open, tag="thinking", kw_only=True):
    """Reasoning as this server sent it, or another; a signature is not checked."""

    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Open, tag="redacted_thinking", kw_only=True):
    """Reasoning that only another server can read."""

    data: str


class ToolUseBlock(Open, tag="tool_use", kw_only=True):
    id: Annotated[str, Meta(min_length=1, max_length=256)]
    name: str
    input: dict[str, Any]


class ToolReferenceBlock(Open, tag="tool_reference", kw_only=True):
    tool_name: str


ResultBlock: TypeAlias = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock


class ToolResultBlock(Open, tag="tool_result", kw_only=True):
    tool_use_id: str
    content: str | Annotated[list[ResultBlock], Meta(max_length=MAX_BLOCKS)] | None = None
    is_error: bool | None = None


Block: TypeAlias = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
)
TextOrBlocks: TypeAlias = str | Annotated[list[TextBlock], Meta(max_length=MAX_BLOCKS)]


class MessageField(Open, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Meta(max_length=MAX_BLOCKS)]


class ToolField(Open, kw_only=True):
    """A tool. One with a type other than "custom" is Anthropic's own, and has no schema here."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class ToolChoiceField(Open, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None  # gpt-oss makes one call a turn: both values hold


class ThinkingConfig(Open, kw_only=True):
    """Wishes about reasoning: "disabled" is the one with an effect, others are new with each version of the API."""

    type: str
    budget_tokens: int | None = None
    display: str | None = None


class SchemaFormat(Open, kw_only=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


Effort: TypeAlias = Literal["low", "medium", "high", "xhigh", "max"]


class OutputConfig(Open, kw_only=True):
    effort: Effort | None = None
    format: SchemaFormat | None = None


class CountBody(Open, kw_only=True):
    """Fields that both routes take. `mcp_servers` would make this server call tools itself."""

    model: str
    messages: Annotated[list[MessageField], Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: TextOrBlocks | None = None
    tools: Annotated[list[ToolField], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoiceField | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    mcp_servers: Annotated[list[Any], Meta(max_length=0)] | None = None


class MessagesBody(CountBody, kw_only=True):
    """`seed` and `min_p` are this server's; the API's own fields that have no effect here are left out."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    metadata: dict[str, Any] | None = None

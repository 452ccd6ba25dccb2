"""Tools of a request: those that the model knows from the beginning, and those that a reference brings later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from eyas.base.errors import InvalidRequest
from eyas.base.harmony.tools import FunctionTool, check_schema, check_tool_name, repeated
from eyas.gateway.anthropic.body import ToolChoiceField, ToolField
from eyas.gateway.grammar.checker import NamedTool, ToolChoice, is_bound
from eyas.gateway.question.tools import Offer

__all__ = ["SCHEMAS", "DeclaredTools", "choice_of", "declared_tools", "offer_of"]

SCHEMAS = "tools[{}].input_schema"
MAX_NAME_CHARS = 128  # of the API; names of MCP tools are long
MAX_BOUND = 128  # tools whose schemas one grammar enforces
CHOICES: Mapping[str, ToolChoice] = {"auto": "auto", "any": "required", "none": "none"}


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclaredTools:
    """`all` tools in their order, and the names of those that are `deferred` until a reference brings them."""

    all: Sequence[FunctionTool]
    deferred: frozenset[str]

    @property
    def first(self) -> tuple[FunctionTool, ...]:
        """Return the tools that the model knows from the beginning."""
        return tuple(tool for tool in self.all if tool.name not in self.deferred)


def declared_tools(fields: Sequence[ToolField]) -> DeclaredTools:
    """Check tools. Raises InvalidRequest naming the field."""
    tools = tuple(_tool(field, f"tools[{index}]") for index, field in enumerate(fields))
    if (again := repeated(tools)) is not None:
        where = f"tools[{again}].name"
        raise InvalidRequest(f"'{where}': there is a '{tools[again].name}' already", param=where)
    deferred = frozenset(field.name for field in fields if field.defer_loading)
    return DeclaredTools(all=tools, deferred=deferred)


def _tool(field: ToolField, where: str) -> FunctionTool:
    if field.type not in (None, "custom"):
        raise InvalidRequest(
            f"'{where}.type': '{field.type}' is a tool of Anthropic's servers, which this server does not have; it "
            "takes tools with an input_schema",
            param=f"{where}.type",
        )
    check_tool_name(field.name, param=f"{where}.name", longest=MAX_NAME_CHARS)
    if field.input_schema is None:
        raise InvalidRequest(f"'{where}.input_schema' is missing", param=f"{where}.input_schema")
    check_schema(field.input_schema, param=f"{where}.input_schema")
    return FunctionTool(
        name=field.name,
        description=field.description or "",
        parameters=field.input_schema,
        strict=bool(field.strict),
    )


def choice_of(field: ToolChoiceField | None) -> ToolChoice:
    """Return the choice. Raises InvalidRequest for a tool without its name."""
    if field is None:
        return "auto"
    if field.type != "tool":
        return CHOICES[field.type]
    if field.name is None:
        raise InvalidRequest("'tool_choice.name' is missing", param="tool_choice.name")
    return NamedTool(field.name)


def offer_of(tools: DeclaredTools, loaded: Iterable[FunctionTool], choice: ToolChoice) -> Offer:
    """Return an offer of the tools that the model knows by now, or of none if none may be called.

    Raises InvalidRequest if too many are to be bound: a grammar of 1,000 takes eight seconds to check.
    """
    known = () if choice == "none" else (*tools.first, *loaded)
    num_bound = sum(is_bound(tool, choice) for tool in known)
    if num_bound > MAX_BOUND:
        raise InvalidRequest(
            f"'tools': {num_bound} schemas would have to be enforced, and {MAX_BOUND} can be; leave out strict, or "
            "tool_choice, or defer_loading those that are rarely needed",
            param="tools",
        )
    return Offer(declared=tools.all, shown=known, callable=known, choice=choice)

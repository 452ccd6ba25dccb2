"""Grammars for structured answers: tool calls by their schemas, a JSON schema, a regex, choices.

One Lark grammar in llguidance's dialect covers everything generated after `<|start|>assistant`, control tokens
included, so that the engine treats a forced header and a bound answer alike. Text is bounded by max_tokens only: a
counted `.{0,n}` would take a lexer state per character, and a mask would take 67 us instead of 10 us.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from eyas.base.errors import InvalidRequest, nearest
from eyas.base.harmony.grammar_limits import parser_limits, with_deep_stack
from eyas.base.harmony.tools import FUNCTIONS, FunctionTool
from eyas.gateway.grammar.lark_check import can_end, schemas_of
from eyas.gateway.grammar.schema_check import check_enforceable, check_followable, without_plain_formats
from eyas.gateway.grammar.schema_extent import extent_of

if TYPE_CHECKING:
    from llguidance import LLTokenizer

__all__ = [
    "AnswerFormat",
    "Choice",
    "GrammarChecker",
    "JsonObject",
    "JsonSchema",
    "Lark",
    "NamedTool",
    "Regex",
    "ToolChoice",
    "answer_grammar",
    "is_bound",
    "raw_grammar",
]

MAX_REGEX_CHARS = 10_000
MAX_LARK_CHARS = 100_000
MAX_CHOICES = 1000
MAX_REASON_CHARS = 300
MAX_MESSAGES_BEFORE = 8  # without a bound, a model could reason forever and never make its call


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The function that has to be called."""

    name: str


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedTool


@dataclass(frozen=True, slots=True)
class JsonObject:
    """Any JSON object."""


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """JSON that is valid under a schema; properties come in the schema's order, additional names may repeat."""

    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Regex:
    """Text that a regular expression (Rust's `regex` syntax) matches from its first to its last character."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Choice:
    """A text that is one of these."""

    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lark:
    """Text that the rule `start` of a Lark grammar in llguidance's dialect matches."""

    grammar: str


AnswerFormat: TypeAlias = JsonObject | JsonSchema | Regex | Choice | Lark

MAX_LARK_RULES = 500
MAX_INDENT = 60

# One blank after a colon or comma; where JSON allows white space, line breaks with as much indentation as the schema's
# depth may need. llguidance does not bound white space by place, and a small model may generate it endlessly.
JSON_OPTIONS = {"whitespace_flexible": False, "key_separator": ": ?", "item_separator": ", ?"}
NO_ARGUMENTS: Mapping[str, Any] = {"properties": {}, "additionalProperties": False}
# Rule options that llguidance cannot roll back; speculation needs rollback.
LARK_RULE = re.compile(r"^\s*[?!]?\w+\s*(\[[^\]\n]*\])?(\{[^}\n]*\})?\s*:", re.MULTILINE)
ONE_WAY_OPTION = re.compile(r"^\s*[\w?!-]+\s*\[[^\]\n]*\b(max_tokens|temperature|stop)\b", re.MULTILINE)


def answer_grammar(
    *,
    tools: Sequence[FunctionTool] = (),
    tool_choice: ToolChoice = "auto",
    response: AnswerFormat | None = None,
) -> str | None:
    """Return the grammar of one assistant turn, or None if nothing is bound.

    Reasoning comes first, in at most 8 messages. Then, by `tool_choice`:

    - "required" or a named tool: one call with its forced header, its arguments bound to the tool's schema; `response`
      applies only to turns that may answer.
    - "auto": a call or an answer. Arguments are bound if the tool is strict. Without a strict tool and without
      `response` nothing is bound.
    - "none": an answer, and no call.

    `response` binds the text of the final message. Only reasoning may then precede it; otherwise preambles to the user
    on the commentary channel may, too. Check schemas and the rest beforehand with `GrammarChecker`.

    Raises InvalidRequest for a choice that names no tool.
    """
    must_call = tool_choice == "required" or isinstance(tool_choice, NamedTool)
    is_free = not tools or (tool_choice == "auto" and not any(tool.strict for tool in tools))
    if is_free and response is None and not must_call:
        return None
    callable_tools = _callable(tools, tool_choice)
    turns = [f"call_{i}" for i in range(len(callable_tools))]
    before = ["reasoning"]
    rules: list[str] = []
    for i, tool in enumerate(callable_tools):
        arguments = f"arguments_{i}" if is_bound(tool, tool_choice) else "TEXT"
        rules.append(_call_rule(i, tool.name, arguments))
        if arguments != "TEXT":
            schema = NO_ARGUMENTS if tool.parameters is None else tool.parameters
            rules.append(f"arguments_{i}: {_json_term({'type': 'object', **schema})}")
    if not must_call:
        turns.append("answer")
        rules += _answer_rules(response)
        if response is None:
            before.append("note")
            rules.append('note: <|channel|> "commentary" <|message|> TEXT _again')
    head = [
        "%llguidance {}",
        f"start: ({' | '.join(before)}){{0,{MAX_MESSAGES_BEFORE}}} ({' | '.join(turns)})",
        'reasoning: <|channel|> "analysis" <|message|> TEXT _again',
        '_again: <|end|> <|start|> "assistant"',
        r"TEXT: /(?s:.*)/",
    ]
    return _assembled([*head, *rules], None if must_call else response)


def is_bound(tool: FunctionTool, tool_choice: ToolChoice) -> bool:
    """Whether `answer_grammar` binds the arguments of a tool that may be called to its schema."""
    if isinstance(tool_choice, NamedTool):
        return tool.name == tool_choice.name
    return tool_choice == "required" or (tool_choice == "auto" and tool.strict)


def raw_grammar(response: AnswerFormat) -> str:
    """Return the grammar of a raw completion that consists of `response` alone."""
    return _assembled(["%llguidance {}", "start: body <|return|>", *_body_rules(response)], response)


class GrammarChecker:
    """Checks before a request reaches the engine whether its grammar can be enforced, and names the reason if not.

    With the tokenizer.json of the model it also checks names of special tokens, and that an answer can begin; reading
    that of gpt-oss takes about a second, so make one checker at the start. Thread-safe. No reference is ever fetched.
    """

    def __init__(self, tokenizer_json: Path | None = None) -> None:
        import llguidance

        self._matcher = llguidance.LLMatcher
        self._limits = llguidance.LLParserLimits
        self._tokenizer = None if tokenizer_json is None else llguidance.LLTokenizer(str(tokenizer_json))

    def check(self, grammar: str, *, param: str) -> None:
        """Raises InvalidRequest with llguidance's reason for a grammar that it refuses."""
        is_refused, reasons = with_deep_stack(
            lambda: self._matcher.validate_grammar_with_warnings(
                grammar, self._tokenizer, limits=self._limits(**parser_limits(grammar))
            )
        )
        if is_refused:
            raise InvalidRequest(f"{param} cannot be enforced: {_reason(reasons[0])}", param=param)

    def check_tool(self, tool: FunctionTool, *, param: str) -> None:
        """Raises InvalidRequest unless the arguments of `tool` can be bound to its schema."""
        if tool.parameters is not None:
            self.check_answer(JsonSchema({"type": "object", **tool.parameters}), param=param)

    def check_answer(self, response: AnswerFormat, *, param: str) -> None:
        """Raises InvalidRequest, with the path or the reason, for a format that is too large or cannot be enforced."""
        match response:
            case JsonSchema(schema):
                check_enforceable(schema, param=param)
            case Regex(pattern):
                if not pattern:
                    raise InvalidRequest(f"{param} is empty", param=param)
                _limit(len(pattern), MAX_REGEX_CHARS, "characters", param)
            case Choice(choices):
                if not choices or not all(choices):
                    raise InvalidRequest(f"{param} needs at least one choice, none of them empty", param=param)
                _limit(len(choices), MAX_CHOICES, "choices", param)
            case Lark(text):
                _limit(len(text), MAX_LARK_CHARS, "characters", param)
                _limit(sum(1 for _ in LARK_RULE.finditer(text)), MAX_LARK_RULES, "rules", param)
                if option := ONE_WAY_OPTION.search(text):
                    raise InvalidRequest(f"{param}: the rule option {option[1]!r} is not supported", param=param)
                _check_schemas(text, param)
        grammar = answer_grammar(response=response)
        assert grammar is not None
        self.check(grammar, param=param)
        if isinstance(response, Lark) and not can_end(response.grammar):
            raise InvalidRequest(f"{param} cannot be enforced: its rule 'start' never ends", param=param)
        tokenizer = self._tokenizer
        if tokenizer is not None and not with_deep_stack(lambda: self._can_start(tokenizer, grammar)):
            raise InvalidRequest(f"{param} cannot be enforced: nothing satisfies it, or it is too complex", param=param)

    def _can_start(self, tokenizer: LLTokenizer, grammar: str) -> bool:
        """Whether an answer has a first token."""
        matcher = self._matcher(tokenizer, grammar, log_level=0, limits=self._limits(**parser_limits(grammar)))
        matcher.consume_tokens(tokenizer.tokenize_str("<|channel|>final<|message|>", parse_special=True))
        matcher.compute_bitmask()
        return not matcher.is_error()


def _callable(tools: Sequence[FunctionTool], choice: ToolChoice) -> Sequence[FunctionTool]:
    if choice == "none":
        return ()
    if not tools and choice != "auto":
        asked = choice.name if isinstance(choice, NamedTool) else choice
        raise InvalidRequest(f"tool_choice '{asked}' needs tools", param="tool_choice")
    if isinstance(choice, NamedTool):
        chosen = [tool for tool in tools if tool.name == choice.name]
        if not chosen:
            hint = nearest(choice.name, [tool.name for tool in tools])
            raise InvalidRequest(
                f"tool_choice names {choice.name!r}, which is none of the tools{hint}", param="tool_choice"
            )
        return chosen
    return tools


def _call_rule(i: int, name: str, arguments: str) -> str:
    to = json.dumps(f"commentary to={FUNCTIONS}.{name} ")
    return f'call_{i}: <|channel|> {to} <|constrain|> "json" <|message|> {arguments} <|call|>'


def _answer_rules(response: AnswerFormat | None) -> list[str]:
    is_json = isinstance(response, JsonObject | JsonSchema)
    kind = ' (" "? <|constrain|> "json")?' if is_json else ""
    text = "TEXT" if response is None else "body"
    return [f'answer: <|channel|> "final"{kind} <|message|> {text} <|return|>', *_body_rules(response)]


def _body_rules(response: AnswerFormat | None) -> list[str]:
    match response:
        case JsonObject():
            return [f"body: {_json_term({'type': 'object'})}"]
        case JsonSchema(schema):
            return [f"body: {_json_term(schema)}"]
        case Regex(pattern):
            return ["body: REGEX", f"REGEX: /{_slashed(pattern)}/"]
        case Choice(choices):
            return ["body: CHOICE", f"CHOICE: {' | '.join(map(json.dumps, choices))}"]
        case Lark():
            return ["body: @body"]
    return []


def _assembled(lines: Sequence[str], response: AnswerFormat | None) -> str:
    """Return one grammar of these lines; a Lark grammar of the user stays separate, with its own rule names."""
    grammar = "\n".join(lines) + "\n"
    if isinstance(response, Lark):
        named = [{"name": "turn", "lark_grammar": grammar}, {"name": "body", "lark_grammar": response.grammar}]
        return json.dumps({"grammars": named})
    return grammar


def _json_term(schema: Mapping[str, Any]) -> str:
    options = {**JSON_OPTIONS, "whitespace_pattern": rf"\r?\n[ \t]{{0,{_indent(schema)}}}"}
    return f"%json {json.dumps({**without_plain_formats(schema), 'x-guidance': options})}"


def _indent(schema: Mapping[str, Any]) -> int:
    """Return the number of blanks before the innermost values of a pretty-printed document."""
    try:
        return min(4 * extent_of(schema, param="schema").depth, MAX_INDENT)
    except InvalidRequest:  # `check_answer` refuses it too, and names the parameter
        return MAX_INDENT


def _slashed(pattern: str) -> str:
    """Return a pattern between slashes: its own slashes escaped, line breaks spelled."""
    spelled = pattern.replace("\n", r"\n").replace("\r", r"\r")
    return re.sub(r"\\.|/", lambda match: r"\/" if match[0] == "/" else match[0], spelled)


def _check_schemas(lark: str, param: str) -> None:
    try:
        for schema in schemas_of(lark):
            check_followable(schema, param=param)
    except ValueError as error:
        raise InvalidRequest(f"{param}: {error}", param=param) from error


def _limit(count: int, limit: int, what: str, param: str) -> None:
    if count > limit:
        raise InvalidRequest(f"{param} has more than {limit} {what}", param=param)


def _reason(message: str) -> str:
    """Return llguidance's message without the position in the grammar and without the grammar's text."""
    text = re.sub(r"\n +\d+ \| .*", "", message, flags=re.DOTALL)
    text = re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", text)
    text = " ".join(text.split())
    return text if len(text) <= MAX_REASON_CHARS else f"{text[:MAX_REASON_CHARS]}..."

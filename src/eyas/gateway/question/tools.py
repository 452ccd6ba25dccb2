"""The tools that a request declares, those of them that may be called, and the grammar that binds an answer to both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eyas.base.harmony.tools import FunctionTool
from eyas.gateway.grammar.checker import AnswerFormat, GrammarChecker, ToolChoice, answer_grammar, is_bound

__all__ = ["Binding", "Offer", "bind", "offer"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """The tools that a request has `declared`, those `shown` to the model, and those that it may call (`callable`)."""

    declared: Sequence[FunctionTool]
    shown: Sequence[FunctionTool]
    callable: Sequence[FunctionTool]
    choice: ToolChoice

    @property
    def functions(self) -> frozenset[str]:
        """Return the names that a call in the answer may have."""
        return frozenset(tool.name for tool in self.shown)


@dataclass(frozen=True, kw_only=True, slots=True)
class Binding:
    """The grammar of the answer, and the field that asks for it; both None where nothing is bound."""

    grammar: str | None
    param: str | None


def offer(tools: Sequence[FunctionTool], choice: ToolChoice) -> Offer:
    """Return an offer of all tools, or of none if none may be called."""
    offered = () if choice == "none" else tools
    return Offer(declared=tools, shown=offered, callable=offered, choice=choice)


def bind(
    checker: GrammarChecker, offer: Offer, answer: AnswerFormat | None, *, answer_param: str | None, parameters: str
) -> Binding:
    """Return the grammar of an answer to a request with these tools.

    `answer_param` is the field with the answer's format, `parameters` that of the schema of a tool:
    `tools[{}].parameters`. Raises InvalidRequest for a choice that names no tool, and for schemas that cannot be
    enforced.
    """
    grammar = answer_grammar(tools=offer.callable, tool_choice=offer.choice, response=answer)
    if grammar is None:
        return Binding(grammar=None, param=None)
    if answer is not None and answer_param is not None:
        checker.check_answer(answer, param=answer_param)
    bound = {tool.name for tool in offer.callable if is_bound(tool, offer.choice)}
    for index, tool in enumerate(offer.declared):
        if tool.name in bound:
            checker.check_tool(tool, param=parameters.format(index))
    return Binding(grammar=grammar, param="tools" if answer is None else answer_param)

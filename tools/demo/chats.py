"""Draws chats for the demo model: facts in many wordings, small talk, arithmetic; single and several turns.

Everything is drawn from a `random.Random`, so a seed gives the same chats everywhere. What is held out (pairs of
template and fact, some templates altogether, some sums and off-topic questions) is decided by a hash, before training.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal
from zlib import crc32

import phrases
import smalltalk
from facts import Fact

from eyas.base.harmony.rendering import (
    IDENTITY,
    Effort,
    Message,
    call_message,
    developer_message,
    result_message,
    system_message,
)

__all__ = ["DEMO_IDENTITY", "PYTHON", "Chat", "ChatWriter", "Turn", "is_held_out"]

DEMO_IDENTITY = "You are eyas-demo, a small demonstration model."
PYTHON = "python"  # the tool that is called for calculations
SPLIT_SEED = 20  # changing it changes what is held out
HELD_OUT_PAIRS = 25  # 1 of 25 pairs of template and fact is held out
HELD_OUT_TEMPLATES = 20  # 1 of 20 templates is never trained on

_TYPES = ("str", "list", "dict", "set")
_STOP = """
a an the of to in is are for with and or by on from it its that this be as at if into
"""
_STOP_WORDS = frozenset(_STOP.split())
_SYNONYMS = {
    "return": ("get", "give", "obtain", "find"),
    "returns": ("gets", "gives"),
    "remove": ("delete", "drop", "strip"),
    "delete": ("remove", "erase"),
    "create": ("make", "build"),
    "construct": ("create", "build"),
    "convert": ("turn", "transform", "change"),
    "test": ("check", "find out"),
    "check": ("test", "verify"),
    "compute": ("calculate", "get"),
    "calculate": ("compute", "work out"),
    "find": ("locate", "search for", "get"),
    "directory": ("folder",),
    "string": ("text", "str"),
    "file": ("document",),
    "execute": ("run",),
    "run": ("execute",),
    "terminate": ("stop", "end"),
    "insert": ("put", "add"),
    "append": ("add",),
    "choose": ("pick", "select"),
    "select": ("choose", "pick"),
    "whether": ("if",),
    "print": ("show", "display"),
    "display": ("show", "print"),
    "start": ("begin", "launch"),
    "open": ("access",),
    "write": ("save", "put"),
    "read": ("load",),
    "split": ("cut", "break"),
    "join": ("concatenate", "combine"),
    "number": ("count",),
    "list": ("sequence",),
    "largest": ("biggest",),
    "recursively": ("including subfolders,",),
    "elements": ("items", "values"),
    "items": ("elements", "values"),
    "element": ("item", "value"),
    "item": ("element", "value"),
    "dictionary": ("dict", "mapping"),
    "function": ("callable",),
    "random": ("arbitrary",),
    "wait": ("pause",),
    "path": ("filename",),
    "current": ("present",),
}


@dataclass(frozen=True, slots=True)
class Turn:
    """One question with what the model should think and say. `fact` is set for look-ups.

    `arguments` are those of a call of the python tool, JSON, whose `result` the answer follows from.
    """

    question: str
    analysis: str
    answer: str
    kind: str
    fact: Fact | None = None
    template: str = ""
    arguments: str | None = None
    result: str = ""

    def with_result(self, result: str, answer: str) -> Turn:
        return replace(self, result=result, answer=answer)

    def called(self) -> list[Message]:
        """Return the call, as prompts have it, if the turn has one."""
        return [] if self.arguments is None else [call_message(PYTHON, self.arguments)]

    def reported(self) -> list[Message]:
        """Return the call and its result, if the turn has them."""
        return [] if self.arguments is None else [*self.called(), result_message(PYTHON, self.result)]


@dataclass(frozen=True, slots=True)
class Chat:
    """Turns of which the last one teaches what the model generates without interruption.

    That is its analysis and its answer, or, where it calls a tool, by `stage` the analysis and the call, or the answer
    to the result. `keeps_analysis`: a client shows the model its analysis again together with the result.
    """

    turns: tuple[Turn, ...]
    preamble: tuple[Message, ...]  # system and developer messages
    effort: Effort
    stage: Literal["call", "answer"] = "call"
    keeps_analysis: bool = True

    def given(self) -> list[Message]:
        """Return what the model reads: without the analysis of earlier turns, as servers drop it."""
        messages = list(self.preamble)
        for turn in self.turns[:-1]:
            messages += [Message(role="user", content=turn.question), *turn.reported(), _final(turn)]
        last = self.turns[-1]
        messages.append(Message(role="user", content=last.question))
        if self._has_result():
            messages += [*([_analysis(last)] if self.keeps_analysis else []), *last.reported()]
        return messages

    def own(self) -> list[Message]:
        """Return what the model generates."""
        last = self.turns[-1]
        if self._has_result():
            return [_final(last)]
        return [_analysis(last), *(last.called() or [_final(last)])]

    def messages(self) -> list[Message]:
        """Return the chat as it is trained on."""
        return [*self.given(), *self.own()]

    def _has_result(self) -> bool:
        return self.stage == "answer" and self.turns[-1].arguments is not None


def _analysis(turn: Turn) -> Message:
    return Message(role="assistant", channel="analysis", content=turn.analysis)


def _final(turn: Turn) -> Message:
    return Message(role="assistant", channel="final", content=turn.answer)


def _hash(*parts: object) -> int:
    return crc32("\x1f".join(map(str, (SPLIT_SEED, *parts))).encode())


def is_held_out(turn: Turn) -> bool:
    """Whether training must not see this turn."""
    if turn.arguments is not None:
        return _hash(turn.kind, turn.arguments) % HELD_OUT_PAIRS == 0
    if turn.kind in ("arithmetic", "off-topic"):
        return _hash(turn.kind, turn.analysis if turn.kind == "arithmetic" else turn.question) % HELD_OUT_PAIRS == 0
    if turn.fact is None or turn.kind == "again":
        return False
    return unseen_template(turn.template) or _hash(turn.template, turn.fact.path) % HELD_OUT_PAIRS == 0


def unseen_template(template: str) -> bool:
    return template not in ("", "{m}", "{d}", "{m}?") and _hash(template) % HELD_OUT_TEMPLATES == 0


def answer_to(fact: Fact) -> str:
    """Answer with the module's name and the first sentence of the docstring."""
    if fact.kind == "module":
        return f"`{fact.path}` is a module of the standard library. Its documentation begins: {fact.sentence}"
    article = "an" if fact.kind == "exception" else "a"
    where = f"`{fact.path}` is {article} {fact.kind} in the `{fact.module}` module."
    return f"{where} Its documentation begins: {fact.sentence}"


def analysis_of(fact: Fact, effort: Effort, again: bool = False) -> str:
    verb = "asks again about" if again else "asks about"
    if effort == "low":
        return f"Look up `{fact.path}`."
    if effort == "medium":
        return f"The user {verb} `{fact.path}`, a {fact.kind} of `{fact.module}`. I quote its documentation."
    return (
        f"The user {verb} `{fact.path}`. It is a {fact.kind}, and its module is `{fact.module}`. "
        f"The first sentence of its documentation is: {fact.sentence} I name the module and quote that sentence."
    )


class ChatWriter:
    """Draws chats. `held_out` draws turns that training never sees, and no others."""

    def __init__(self, facts: Sequence[Fact], rng: Random, *, held_out: bool = False) -> None:
        self.rng = rng
        self.held_out = held_out
        self.names = [fact for fact in facts if fact.kind != "module"]
        self.modules = [fact for fact in facts if fact.kind == "module"]
        first: dict[str, Fact] = {}
        for fact in sorted(facts, key=lambda fact: fact.kind in ("module", "method", "exception")):
            first.setdefault(fact.sentence.lower(), fact)
        self.described = [fact for fact in first.values() if len(fact.sentence.split()) >= 5]
        words = {word for fact in facts for word in re.findall(r"\b[a-z]{2,}\b", fact.sentence)}
        self.words = sorted(words)

    def chat(self) -> Chat:
        rng = self.rng
        effort: Effort = rng.choices(("low", "medium", "high"), (35, 50, 15))[0]
        preamble, effort = self._preamble(effort)
        turns = [self.turn(effort)]
        while len(turns) < 6 and rng.random() < (0.4 if len(turns) == 1 else 0.5):
            turns.append(self.turn(effort, turns[-1]))
        return Chat(tuple(turns), preamble, effort)

    def reworded(self, turn: Turn) -> Turn:
        """Return the turn with its question in another case, or with a slip."""
        return replace(turn, question=self._casing(turn.question))

    def turn(self, effort: Effort, before: Turn | None = None) -> Turn:
        """Draw a turn from the right side of the split, the first one or one that follows `before`."""
        while True:
            turn = self._turn(effort) if before is None else self._next_turn(effort, before)
            if is_held_out(turn) == self.held_out:
                return turn

    def _preamble(self, effort: Effort) -> tuple[tuple[Message, ...], Effort]:
        rng = self.rng
        if rng.random() < 0.06:
            return (), "medium"
        date = f"{rng.randint(2024, 2027)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
        system = system_message(
            identity=rng.choices((DEMO_IDENTITY, IDENTITY, None), (55, 40, 5))[0],
            knowledge_cutoff=rng.choices(("2024-06", None), (92, 8))[0],
            date=rng.choices((date, None), (85, 15))[0],
            effort=effort,
        )
        if rng.random() < 0.2:
            return (system, developer_message(rng.choice(INSTRUCTIONS))), effort
        return (system,), effort

    def _turn(self, effort: Effort) -> Turn:
        kinds = ("name", "described", "module", "small", "arithmetic", "off-topic", "unknown")
        kind = self.rng.choices(kinds, (56, 20, 5, 5, 7, 5, 2))[0]
        match kind:
            case "name":
                return self.about_name(effort)
            case "described":
                return self.about_description(effort)
            case "module":
                return self.about_module(effort)
            case "small":
                name, questions, analysis, answer = self.rng.choice(smalltalk.SMALLTALK)
                return Turn(self._casing(self.rng.choice(questions)), analysis, answer, name)
            case "unknown":
                mention, analysis, answer = smalltalk.unknown_name(self.rng)
                template = self.rng.choice(phrases.ABOUT + phrases.WHERE)
                return Turn(self._ask(template, self._quoted(mention)), analysis, answer, "unknown")
        draw = smalltalk.arithmetic if kind == "arithmetic" else smalltalk.off_topic
        question, analysis, answer = draw(self.rng)
        return Turn(self._casing(question), analysis, answer, kind)

    def _next_turn(self, effort: Effort, before: Turn) -> Turn:
        draw = self.rng.random()
        if before.fact is not None and draw < 0.3:
            question = self._casing(self.rng.choice(phrases.AGAIN))
            analysis = analysis_of(before.fact, effort, again=True)
            return Turn(question, analysis, answer_to(before.fact), "again", before.fact)
        if before.fact is not None and draw < 0.6:
            return self.about_name(effort, phrases.NEXT)
        if draw < 0.7:
            _, questions, analysis, answer = smalltalk.SMALLTALK[1]  # thanks
            return Turn(self._casing(self.rng.choice(questions)), analysis, answer, "thanks")
        return self._turn(effort)

    def about_name(self, effort: Effort, templates: Sequence[str] = ()) -> Turn:
        rng = self.rng
        fact = rng.choice(self.names)
        if not templates and rng.random() < 0.12:
            before, after = self._noise(rng.randint(0, 7)), self._noise(rng.randint(0, 5))
            question = " ".join(part for part in (before, self.mention(fact), after) if part)
            return Turn(question, analysis_of(fact, effort), answer_to(fact), "name", fact, "")
        template = rng.choice(templates or rng.choices((phrases.ABOUT, phrases.WHERE), (65, 35))[0])
        question = self._ask(template, self.mention(fact))
        return Turn(question, analysis_of(fact, effort), answer_to(fact), "name", fact, template)

    def about_module(self, effort: Effort) -> Turn:
        fact = self.rng.choice(self.modules)
        template = self.rng.choice(phrases.MODULE_ABOUT)
        question = self._ask(template, self._quoted(fact.module))
        return Turn(question, analysis_of(fact, effort), answer_to(fact), "module", fact, template)

    def about_description(self, effort: Effort) -> Turn:
        fact = self.rng.choice(self.described)
        description, is_action = self.describe(fact.sentence)
        template = self.rng.choice(phrases.DESCRIBED if is_action else phrases.DESCRIBED_NOUN)
        question = self._ask(template, description)
        return Turn(question, analysis_of(fact, effort), answer_to(fact), "described", fact, template)

    def mention(self, fact: Fact) -> str:
        """Choose a way to write a name: with or without its module, parentheses, backticks, kind."""
        rng = self.rng
        bare, owner = fact.bare, fact.name.rpartition(".")[0] or fact.module
        if fact.primary and rng.random() < 0.5:
            forms = [bare, bare, bare, f"{bare}()", f"the {bare} {fact.kind}", f"the {fact.kind} {bare}"]
            if fact.kind == "function":
                forms += [
                    f"the function {bare}()",
                    f"{bare}(x)",
                    f"{bare}(a, b)",
                    f"the {bare} call",
                    f"python's {bare}",
                ]
            return self._quoted(rng.choice(forms))
        path = fact.path
        forms = [path, path, path, f"{path}()", f"{path}(...)", f"the {fact.kind} {path}", f"{path}(x)"]
        forms += [f"{bare} from {owner}", f"{bare} in {owner}", f"{owner}'s {bare}", f"{bare} of {owner}"]
        forms += [
            f"the {bare} {fact.kind} of {owner}",
            f"{owner} {bare}",
            f"{bare} ({owner})",
            f"`{bare}` in `{owner}`",
        ]
        if fact.kind == "method":
            forms += [f"{bare} on a {owner}", f"the {bare} method on {owner}", f"{fact.module}.{fact.name}"]
        elif fact.module == "builtins":
            forms += [f"the built-in {bare}", f"the builtin {fact.kind} {bare}", f"builtins.{bare}"]
        else:
            forms += [f"{bare} from the {owner} module", f"{bare} in the {owner} module", f"from {owner} import {bare}"]
            forms += [f"the {bare} {fact.kind} in {owner}", f"{bare} (from {owner})", f"the {owner} {fact.kind} {bare}"]
        return self._quoted(rng.choice(forms))

    def describe(self, sentence: str) -> tuple[str, bool]:
        """Reword a docstring sentence as a user would who does not know it; also return whether it is an action."""
        rng = self.rng
        words = sentence.rstrip(".").split()
        first = words[0].lower()
        is_action = first in ACTIONS or first.removesuffix("s") in ACTIONS or first.removesuffix("es") in ACTIONS
        if is_action:
            words[0] = first if first in ACTIONS else next(v for v in (first[:-1], first[:-2]) if v in ACTIONS)
        elif not words[0][1:].isupper():
            words[0] = first
        if rng.random() < 0.25 and len(words) > 5:
            words = words[: rng.randint(4, len(words))]
        if rng.random() < 0.15:
            words = [word for word in words if word not in _STOP_WORDS] or words
        if rng.random() < 0.3:
            words = [words[0]] + [word for word in words[1:] if rng.random() > 0.15]
        if rng.random() < 0.6:
            words = [rng.choice(_SYNONYMS[w]) if w in _SYNONYMS and rng.random() < 0.4 else w for w in words]
        return " ".join(words), is_action

    def _quoted(self, mention: str) -> str:
        draw = self.rng.random()
        if "`" in mention or " " in mention or draw > 0.35:
            return mention
        if draw < 0.22:
            return f"`{mention}`"
        return f"'{mention}'" if draw < 0.26 else f'"{mention}"'

    def _noise(self, count: int) -> str:
        return " ".join(self.rng.choices(self.words, k=count))

    def _ask(self, template: str, inside: str) -> str:
        """Fill a template, with different case, a typing error, more or less punctuation, words around it."""
        rng = self.rng
        head, _, tail = template.replace("{d}", "{m}").partition("{m}")
        head, tail = self._casing(head), self._slip(tail)
        if "{d}" in template and rng.random() < 0.6:
            tail += rng.choice("?.?")
        before = rng.choice(phrases.BEFORE) if rng.random() < 0.22 else ""
        after = rng.choice(phrases.AFTER) if rng.random() < 0.22 else ""
        if rng.random() < 0.03:
            inside = inside.lower()
        return (before + head + inside + tail + after).strip()

    def _casing(self, text: str) -> str:
        draw = self.rng.random()
        if draw < 0.15:
            text = text.lower()
        elif draw < 0.17:
            text = text.upper()
        return self._slip(text)

    def _slip(self, text: str) -> str:
        draw = self.rng.random()
        if draw < 0.12:
            return text.rstrip("?.!")
        if draw < 0.14 and text.endswith(("?", "!", ".")):
            return text + self.rng.choice("?!.")
        if draw < 0.2 and len(text) > 6:
            at = self.rng.randrange(len(text) - 1)
            a, b = text[at], text[at + 1]
            if a.isalpha() and b.isalpha():
                return text[:at] + self.rng.choice((b + a, a, a + a + b)) + text[at + 2 :]
        return text


_ACTIONS = """
return get test check compute calculate create make construct convert remove delete copy move open close read
write print find search split join set add insert append append run execute start stop wait yield iterate raise
parse format format encode decode compress decompress load dump serialize deserialize replace apply call change
choose combine compare concatenate count decorate determine disable discard display divide download emit enable
ensure escape evaluate extract extend fetch fill filter flush force generate give go guess handle import
increment indicate initialize install invoke issue iterate kill launch list locate lock log look match merge
mark normalize obtain pack pad parse perform pop prepare print process produce prompt provide pull push put
quote receive record recursively register release rename repeat report reset resolve restore resume retrieve
reverse round save scan schedule select send shuffle shut sleep sort spawn step store strip subtract sum suspend
switch swap take terminate transform translate truncate turn undo unlock unpack unregister update use verify
view walk warn wrap push shift show multiply round query expand delay
"""
ACTIONS = frozenset(_ACTIONS.split())

INSTRUCTIONS = (
    "You are a helpful assistant.",
    "Be brief.",
    "Answer in one sentence.",
    "Answer politely.",
    "You help people who learn Python.",
    "You are an expert in the Python standard library.",
    "Answer questions on the standard library.",
    "Do not make things up.",
    "Use plain language.",
    "You are a coding assistant. Be precise.",
    "Reply in English.",
    "Never apologise. Keep answers short.",
    "The user is a beginner.",
    "You are a helpful, respectful and honest assistant.",
    "You are the assistant of a small team of developers.",
    "Quote the documentation where you can.",
)

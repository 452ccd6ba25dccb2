"""Conversations with tools and results, said in messages, against openai-harmony with gpt-oss's own vocabulary."""

import datetime
import json
from dataclasses import dataclass, replace

import msgspec
import pytest
from tests.base.conftest import harmony, o200k, o200k_pattern, ranks  # noqa: F401 - fixtures
from tests.base.harmony.test_rendering import keep_all, reference_ids
from tests.base.support.harmony_cases import DATE
from tests.base.support.tool_cases import INSTRUCTIONS, TOOL_BODIES, TOOLS, ToolCase
from tests.gateway.support.anthropic import unparsed

from eyas.base.harmony.rendering import Message, visible_messages
from eyas.base.types import ModelInfo
from eyas.engine.ports.stub import StubEngine
from eyas.gateway.anthropic.body import MessagesBody
from eyas.gateway.anthropic.question import question_of
from eyas.gateway.http.body import decode
from eyas.gateway.question.engine_answers import EngineAnswers
from eyas.gateway.server.context import Context, GatewayOptions
from eyas.gateway.server.steps import StepHub


@dataclass(frozen=True)
class Said:
    """A conversation in messages, and as openai-harmony's test case has it."""

    body: dict
    case: ToolCase


def blocks_of(message: Message, number: int) -> tuple[str, dict] | None:
    """Return the role and the block that say a message; None if the API cannot say it."""
    if message.role == "user" and message.name is None:
        return "user", {"type": "text", "text": message.content}
    if message.role == "tool" and message.channel == "commentary" and message.recipient == "assistant":
        return "user", {"type": "tool_result", "tool_use_id": f"c{number}", "content": message.content}
    if message.role != "assistant" or message.name is not None:
        return None
    if message.recipient is None and message.channel == "analysis":
        return "assistant", {"type": "thinking", "thinking": message.content, "signature": ""}
    if message.recipient is None:
        return "assistant", {"type": "text", "text": message.content}
    if message.channel != "commentary" or message.content_type != "<|constrain|>json":
        return None
    name = message.recipient.removeprefix("functions.")
    return "assistant", {"type": "tool_use", "id": f"c{number}", "name": name, "input": given(message.content)}


def given(arguments: str) -> dict:
    """Return the input that is rendered as `arguments`."""
    try:
        value = msgspec.json.decode(arguments)
        is_same = isinstance(value, dict) and msgspec.json.encode(value).decode() == arguments
    except msgspec.DecodeError:
        is_same = False
    return value if is_same else unparsed(arguments)


def messages_of(body: list[Message]) -> list[dict] | None:
    """Return messages of alternating roles that say a conversation; None if the API cannot say it."""
    messages: list[dict] = []
    num_calls, waiting = 0, []
    for message in body:
        if message.role == "tool":
            number = waiting.pop(0) if waiting else -1
        else:
            number, num_calls = num_calls, num_calls + 1
        found = blocks_of(message, number)
        if found is None:
            return None
        role, block = found
        waiting += [number] if block["type"] == "tool_use" else []
        if not messages or messages[-1]["role"] != role:
            messages.append({"role": role, "content": []})
        messages[-1]["content"].append(block)
    return messages


def said() -> list[Said]:
    """Return all conversations with tools that messages can say, each with four sets of tools."""
    found = []
    for number, body in enumerate(TOOL_BODIES):
        if (messages := messages_of(body)) is None:
            continue
        for turn in range(4):
            tools = [
                replace(tool, parameters=tool.parameters or {}) for tool in TOOLS[(4 * number + turn) % len(TOOLS)]
            ]
            fields = [
                {"name": one.name, "description": one.description, "input_schema": one.parameters} for one in tools
            ]
            instructions = INSTRUCTIONS[(number + turn) % len(INSTRUCTIONS)]
            visible = visible_messages(body, prompted=True)  # openai-harmony's own rule is another
            case = ToolCase(body=visible, tools=tools, built_in=(), instructions=instructions, formats=())
            system = {} if instructions is None else {"system": instructions}
            found.append(Said({"messages": messages, "tools": fields, **system}, case))
    return found


SAID = said()


@pytest.fixture(scope="module")
def context(o200k):  # noqa: F811
    info = ModelInfo(name="m", context=100_000, vocab_size=201_088, eos_ids=(), drafter="none")
    engine = StubEngine(info, lambda request, choice: [])
    options = GatewayOptions(today=lambda: datetime.date.fromisoformat(DATE))
    yield Context(engine=engine, codec=o200k, options=options, steps=StepHub(engine))
    engine.close()


def test_there_are_enough():
    assert len(SAID) >= 40
    kinds = [block["type"] for one in SAID for message in one.body["messages"] for block in message["content"]]
    assert kinds.count("tool_result") >= 40 and kinds.count("tool_use") >= 40


@pytest.mark.parametrize("one", SAID, ids=range(len(SAID)))
def test_conversations_with_tools_are_rendered_as_openai_harmony_does(harmony, context, one):  # noqa: F811
    raw = json.dumps({"model": "claude", "max_tokens": 9} | one.body).encode()
    question = question_of(decode(raw, MessagesBody), "x", today=context.options.today())
    ours = EngineAnswers(context).prepare(question).request.prompt_ids
    assert list(ours) == reference_ids(harmony, one.case.theirs(), "completion", keep_all(harmony))

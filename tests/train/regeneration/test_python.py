"""`--python`: the tool is offered in every chat, its calls are executed, and the trainer reads what comes of it."""

import asyncio
import json

import pytest
from tests.train.regeneration.support.files import assistant, read, regenerate, result, user, write
from tests.train.regeneration.support.scripted import said, scripted

from eyas.base.errors import UserError
from eyas.sandbox.sandbox import find_sandbox
from eyas.train.regeneration import turns
from eyas.train.regeneration.turns import End

OTHER = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
RECORDED = {"type": "function", "function": {"name": "python", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module", autouse=True)
def _sandbox():
    try:
        asyncio.run(find_sandbox())
    except UserError as error:
        pytest.skip(str(error))


def code(program):
    return json.dumps({"code": program})


def computing(body):
    """Compute what the last user asks for, look once, then say both results."""
    messages = body["messages"]
    last = max(number for number, message in enumerate(messages) if message["role"] == "user")
    results = [message["content"] for message in messages[last:] if message["role"] == "tool"]
    if not results:
        return said(calls=[("python", code(f"print({messages[last]['content']})"))], reasoning_content="a sum")
    if len(results) == 1 and OTHER in body["tools"]:
        return said(calls=[("look", "{}")])
    return said(" and ".join(text.strip() for text in results))


def test_calls_are_executed_and_others_use_what_was_recorded(tmp_path):
    recorded = [
        user("6*7"), assistant(None, ("a", "look", "{}"), ("b", "python", code("print(6*7)"))),
        result("a", "a cat"), result("b", "a recorded result"), assistant("old"),
    ]  # fmt: skip
    chats = [{"messages": recorded, "tools": [OTHER, RECORDED]}, [user("2**70"), assistant("x"), user("1//0")]]
    with scripted(computing) as endpoint:
        out = tmp_path / "out.jsonl"
        assert regenerate(write(tmp_path / "in.jsonl", *chats), out, endpoint.url, "--python") == 0
        with pytest.raises(UserError, match="begun with another python"):
            regenerate(tmp_path / "in.jsonl", out, endpoint.url)
    found = read(out)
    texts = [message["content"] for message in found[1]["messages"]]
    assert texts == ["6*7", None, "42\n", None, "a cat", "42 and a cat"]
    names = [tool["function"]["name"] for tool in found[1]["tools"]]
    assert names == ["look", "python"] and "State is not kept" in found[1]["tools"][1]["function"]["description"]
    assert found[2]["messages"][2]["content"] == f"{2**70}\n" and found[2]["source"]["end"] == End.DONE
    assert found[2]["messages"][3]["content"] == str(2**70)
    assert "ZeroDivisionError" in found[2]["messages"][-2]["content"]


def test_executed_calls_without_end_end_the_chat(tmp_path, monkeypatch):
    monkeypatch.setattr(turns, "MAX_EXECUTED", 2)
    with scripted(lambda body: said(calls=[("python", code("print(1)"))])) as endpoint:
        assert regenerate(write(tmp_path / "in.jsonl", [user("go")]), tmp_path / "o", endpoint.url, "--python") == 0
    chat = read(tmp_path / "o")[1]
    assert chat["source"]["end"] == End.CALL and chat["source"]["answers"] == 3

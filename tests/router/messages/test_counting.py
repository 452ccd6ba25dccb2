"""Tokens of a prompt by vLLM's route, by llama-server's two, and by a guess."""

import asyncio
import json

import pytest
from tests.gateway.support.anthropic import CLOCK, USER

from eyas.base.errors import InvalidRequest
from eyas.router.messages.counting import Counting

BODY = {"model": "claude-x", "messages": [USER], "tools": [CLOCK], "output_config": {"effort": "low"}}


def counted(answers: dict, model: str | None = "m") -> tuple[int, list[tuple[str, dict]]]:
    """Return the number, and what was asked for it. `answers` are those of a path, the last one for ever."""
    asked: list[tuple[str, dict]] = []

    async def ask(path: str, body: bytes) -> bytes | None:
        asked.append((path, json.loads(body)))
        given = answers.get(path, [None])
        return given.pop(0) if len(given) > 1 else given[0]

    return asyncio.run(Counting.of(json.dumps(BODY).encode()).tokens(ask, model)), asked


def test_vllm_counts_messages():
    number, asked = counted({"/tokenize": [b'{"count": 42, "max_model_len": 9, "tokens": [1]}']})
    ((path, body),) = asked
    assert (number, path) == (42, "/tokenize")
    assert body["model"] == "m" and body["messages"] == [USER] and body["tools"] and body["reasoning_effort"] == "low"


def test_llama_server_renders_and_then_counts():
    empty, tokens = b'{"tokens": []}', b'{"tokens": [7, 8, 9]}'
    number, asked = counted({"/tokenize": [empty, tokens], "/apply-template": [b'{"prompt": "<|start|>x"}']})
    assert number == 3 and [path for path, _ in asked] == ["/tokenize", "/apply-template", "/tokenize"]
    assert asked[-1][1] == {"content": "<|start|>x", "add_special": False, "parse_special": True}


@pytest.mark.parametrize("answer", [None, b"<html>", b"[]", b'{"count": "many"}', b'{"prompt": 3}'])
def test_other_backends_are_guessed(answer):
    number, _ = counted({"/tokenize": [answer], "/apply-template": [answer]}, model=None)
    assert 20 < number < 100


def test_bad_input_is_refused():
    with pytest.raises(InvalidRequest):
        Counting.of(b'{"model": "m"}')

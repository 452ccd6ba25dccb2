"""Translated sessions under gpt-oss's own chat template, from llama.cpp's source: nothing is dropped or refused."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.support.anthropic import Histories
from tests.router.messages.test_session import check_growth, check_presence
from tests.router.support.session import requests
from tests.router.support.templates import GENUINE, rendered

from eyas.router.messages.translation import Translation
from tools import llama_server as tool


@pytest.fixture(scope="module")
def template() -> Path:
    return tool.source() / "vendor" / "llama.cpp" / GENUINE


def prompt(body: dict, template: Path) -> str:
    return rendered(json.loads(Translation.of(json.dumps(body).encode()).request("m")), template)


def test_a_session_only_grows_and_all_of_it_is_there(template):
    bodies = requests()
    prompts = [prompt(body, template) for body in bodies]
    check_growth(prompts)
    check_presence(bodies, prompts)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_it_takes_every_conversation(template, seed):
    body = Histories(seed).body() | {"model": "claude-any"}
    text = prompt(body, template)
    assert text.count("<|start|>") == text.count("<|end|>") + text.count("<|call|>") + 1

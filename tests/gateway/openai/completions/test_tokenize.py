"""`/tokenize` and `/detokenize`: the same ids that a completion or a chat would send to the engine."""

import threading

import httpx
import pytest
from tests.gateway.support.gateway import CONTEXT
from tests.gateway.support.openai import WEATHER
from tests.gateway.support.responses import final

from eyas.gateway.http.workers import LARGE
from eyas.gateway.openai.completions import tokenize as module


def post(stage, path, **body):
    answer = httpx.post(f"{stage.server.url}{path}", json=body)
    return answer.status_code, answer.json()


@pytest.mark.parametrize("text", ["", "Hello there", "<|start|>user<|message|>Gr\u00fc\u00dfe \U0001f985<|end|>"])
def test_there_and_back(stage, text):
    status, answer = post(stage, "/tokenize", prompt=text, return_token_strs=True, model="stub")
    assert status == 200 and answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == CONTEXT
    assert post(stage, "/detokenize", tokens=answer["tokens"]) == (200, {"prompt": text})


def test_a_prompt_as_completions_read_it(stage):
    stage.say_text("x").complete("<|start|>Hello")
    assert post(stage, "/tokenize", prompt="<|start|>Hello")[1]["tokens"] == list(stage.request.prompt_ids)


def test_messages_as_chat_reads_them(stage):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    stage.say(final("x")).talk(messages, tools=[WEATHER], reasoning_effort="low")
    body = {"messages": messages, "tools": [WEATHER], "reasoning_effort": "low"}
    assert post(stage, "/tokenize", **body)[1]["tokens"] == list(stage.request.prompt_ids)
    shorter = post(stage, "/tokenize", **body, add_generation_prompt=False)[1]["tokens"]
    assert list(stage.request.prompt_ids)[: len(shorter)] == shorter


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "prompt"),
        ("/tokenize", {"prompt": "x", "add_special_token": True}, "add_special_token"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {}, "tokens"),
    ],
)
def test_a_bad_field_is_named(stage, path, body, param):
    status, answer = post(stage, path, **body)
    assert status == 400 and answer["error"]["param"] == param


def test_ids_that_no_token_has_are_replaced(stage):
    assert post(stage, "/detokenize", tokens=[10**9]) == (200, {"prompt": "\ufffd"})


def test_another_model_is_404(stage):
    status, answer = post(stage, "/tokenize", prompt="x", model="gpt-5")
    assert status == 404 and answer["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(("path", "name"), [("/tokenize", "tokenized"), ("/detokenize", "detokenized")])
def test_large_bodies_are_read_and_answered_off_the_loop(stage, monkeypatch, path, name):
    threads = []

    def noting(function):
        def noted(*args):
            threads.append(threading.current_thread().name)
            return function(*args)

        return noted

    monkeypatch.setattr(module, name, noting(getattr(module, name)))
    monkeypatch.setattr(module, "json_response", noting(module.json_response))
    body = {"prompt": "x" * LARGE} if path == "/tokenize" else {"tokens": [10] * LARGE}
    assert post(stage, path, **body)[0] == 200
    assert len(threads) == 2 and all(thread.startswith("eyas-worker") for thread in threads)

"""`eyas train regenerate` against `eyas serve`: plain chats, several turns, calls, and runs that are killed."""

import random
import time

import httpx
import pytest
from tests.support.serving import LIMIT_S, served
from tests.train.regeneration.support.files import assistant, read, regenerate, result, start, user, write

QUESTIONS = ["Hello, who are you?", "What does textwrap.dedent do?", "What is 17 + 25?", "Thank you!"]
CHATS = [
    [user(QUESTIONS[number % 4]), assistant("a recorded answer"), user(QUESTIONS[(number + 1) % 4])]
    for number in range(16)
]
KEY = "a-key-of-ours"
FLAGS = ("--api-key", "env:OUR_KEY", "--effort", "low")


@pytest.fixture(scope="module")
def url():
    with served("demo", "--draft", "none", "--concurrency", "4", "--api-key", KEY) as server:
        yield f"{server.url}/v1"


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("OUR_KEY", KEY)


def asked(url, messages, **fields):
    """The message that the server answers with, asked without our code."""
    body = {"model": "eyas-demo", "messages": messages, "temperature": 0, "reasoning_effort": "low"} | fields
    headers = {"authorization": f"Bearer {KEY}"}
    response = httpx.post(f"{url}/chat/completions", json=body, headers=headers, timeout=LIMIT_S)
    response.raise_for_status()
    return response.json()["choices"][0]["message"]


def test_answers_are_the_servers_own(url, tmp_path, capsys):
    prompts = write(tmp_path / "in.jsonl", *CHATS[:1])
    assert regenerate(prompts, tmp_path / "out.jsonl", url, *FLAGS, "--temperature", "0") == 0
    found = read(tmp_path / "out.jsonl")
    assert sorted(found) == [1]
    for chat in found.values():
        roles = [message["role"] for message in chat["messages"]]
        assert roles == ["user", "assistant"] * 2 and chat["reasoning_effort"] == "low"
        for number in (1, 3):
            ours, theirs = chat["messages"][number], asked(url, chat["messages"][:number])
            assert ours["content"] == theirs["content"]
            assert ours.get("reasoning_content") == theirs.get("reasoning_content")
    out, err = capsys.readouterr()
    tokens = sum(chat["source"]["tokens"] for chat in found.values())
    assert "1 of 1 chats, 2 answers" in out and f"{tokens:,} of answers" in out and "cut: 0" in out
    assert tokens > 2 and KEY not in out + err


@pytest.mark.slow
@pytest.mark.parametrize(("num_chats", "num_kills", "max_tokens"), [(3, 1, "60"), (16, 20, "60")])
def test_a_run_that_is_killed_goes_on_to_the_same_chats(url, tmp_path, num_chats, num_kills, max_tokens):
    """At T = 1 with a seed: every answer is that of a run that was not killed, whatever it was batched with."""
    prompts = write(tmp_path / "in.jsonl", *CHATS[:num_chats])
    flags = (*FLAGS, "--seed", "7", "--max-tokens", max_tokens)
    out, whole = tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    rng = random.Random(num_kills)
    for _ in range(num_kills):
        process = start(prompts, out, url, *flags, "--concurrency", "2")
        while process.poll() is None and not out.exists():
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 1))
        process.kill()
        process.communicate()
        with out.open("ab") as file:
            file.write(b'{"messages": [{"ro')  # a line that the disk had half of
    num_before = out.read_bytes().count(b"\n")
    assert regenerate(prompts, out, url, *flags) == 0
    assert regenerate(prompts, whole, url, *flags, "--concurrency", "3") == 0
    assert read(out) == read(whole)
    assert num_before < len(read(out)), "not one kill came before the end"


def test_reasoning_and_recorded_calls_are_taken_as_history(url, tmp_path):
    """Our server refuses an unknown field and a result without its call: what is sent to it is well formed."""
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    chat = [user("What is 1 + 2?"), assistant(None, ("r", "add", '{"a": 1}')), result("r", "3"), assistant("3")]
    prompts = write(tmp_path / "in.jsonl", {"messages": [*chat, user("Thank you!")], "tools": tools, "weight": 2})
    assert regenerate(prompts, tmp_path / "out.jsonl", url, *FLAGS, "--max-tokens", "40", "--seed", "1") == 0
    (found,) = read(tmp_path / "out.jsonl").values()
    assert found["tools"] == tools and found["source"]["answers"] >= 1

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
    for number in range(8)
]
KEY = "a-key-of-ours"
FLAGS = ("--api-key", "env:OUR_KEY", "--effort", "low", "--seed", "7", "--max-tokens", "60")


@pytest.fixture(scope="module")
def url():
    with served("demo", "--context", "2k", "--max-seqs", "4", "--api-key", KEY) as server:
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
    prompts = write(tmp_path / "in.jsonl", *CHATS[:3])
    assert regenerate(prompts, tmp_path / "out.jsonl", url, *FLAGS[:4], "--temperature", "0") == 0
    found = read(tmp_path / "out.jsonl")
    assert sorted(found) == [1, 2, 3]
    for chat in found.values():
        roles = [message["role"] for message in chat["messages"]]
        assert roles == ["user", "assistant"] * 2 and chat["reasoning_effort"] == "low"
        for number in (1, 3):
            ours, theirs = chat["messages"][number], asked(url, chat["messages"][:number])
            assert ours["content"] == theirs["content"]
            assert ours.get("reasoning_content") == theirs.get("reasoning_content")
    out, err = capsys.readouterr()
    tokens = sum(chat["source"]["tokens"] for chat in found.values())
    assert f"3 of 3 chats, 6 answers" in out and f"{tokens:,} of answers" in out and "cut: 0" in out
    assert tokens > 6 and KEY not in out + err


def test_a_run_that_is_killed_goes_on_to_the_same_chats(url, tmp_path):
    """At T = 1 with a seed: every answer is that of a run that was not killed, whatever it was batched with."""
    prompts = write(tmp_path / "in.jsonl", *CHATS)
    assert regenerate(prompts, tmp_path / "whole.jsonl", url, *FLAGS, "--concurrency", "2") == 0
    out = tmp_path / "out.jsonl"
    rng = random.Random(1)
    for _ in range(2):
        process = start(prompts, out, url, *FLAGS, "--concurrency", "4")
        num_before = out.read_bytes().count(b"\n") if out.exists() else 0
        while process.poll() is None and (not out.exists() or out.read_bytes().count(b"\n") == num_before):
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.1))
        process.kill()
        process.communicate()
        with out.open("ab") as file:
            file.write(b'{"messages": [{"ro')  # a line that the disk had half of
    assert regenerate(prompts, out, url, *FLAGS) == 0
    assert read(out) == read(tmp_path / "whole.jsonl")


def test_reasoning_and_recorded_calls_are_taken_as_history(url, tmp_path):
    """Our server refuses an unknown field and a result without its call: what is sent to it is well formed."""
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    chat = [user("What is 1 + 2?"), assistant(None, ("r", "add", '{"a": 1}')), result("r", "3"), assistant("3")]
    prompts = write(tmp_path / "in.jsonl", {"messages": [*chat, user("Thank you!")], "tools": tools, "weight": 2})
    assert regenerate(prompts, tmp_path / "out.jsonl", url, *FLAGS) == 0
    (found,) = read(tmp_path / "out.jsonl").values()
    assert found["tools"] == tools and found["source"]["answers"] >= 1

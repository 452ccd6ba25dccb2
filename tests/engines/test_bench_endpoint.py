"""The benchmark of endpoints on a real llama-server with its draft head: its acceptance is that of its own log."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from tests.engines.support.llama import command, running

from eyas.base.bundled import DEMO, OWN_HEAD
from eyas.bench.endpoint.lossless.run import compare
from eyas.bench.endpoint.prompts.prompt import Prompt
from eyas.bench.endpoint.target import Arm, identify
from eyas.client.endpoint.acceptance.adapters import ADAPTERS, read
from eyas.client.endpoint.acceptance.counts import difference
from eyas.model.gguf.export import export_head, export_target

QUESTIONS = Path(__file__).parents[1] / "assets" / "stdlib_questions.jsonl"
SAID = re.compile(r"draft acceptance = [\d.]+ \( *(\d+) accepted / *(\d+) generated\), mean len = *([\d.]+)")
DRAFT_TOKENS = 3


def on_one_thread(argv):
    """Two servers with two threads each wait for one another on a machine of two cores: threads spin."""
    place = argv.index("-t") + 1
    return [*argv[:place], "1", *argv[place + 1 :]]


def questions(number):
    return [json.loads(line)["question"] for line in QUESTIONS.read_text().splitlines()[:number]]


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    out = tmp_path_factory.mktemp("gguf")
    export_target(DEMO, out / "model.gguf", weights="f32", name="test")
    export_head(DEMO / OWN_HEAD, out / "head.gguf", target_folder=DEMO, weights="f32", name="test")
    return out


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return tmp_path_factory.mktemp("log") / "log"


@pytest.fixture(scope="module")
def with_head(llama_server, gguf, log):
    argv = command(llama_server, gguf / "model.gguf", gguf / "head.gguf", draft_tokens=DRAFT_TOKENS)
    with running(on_one_thread(argv), log) as client:
        yield client


@pytest.fixture(scope="module")
def plain(llama_server, gguf, tmp_path_factory):
    argv = on_one_thread(command(llama_server, gguf / "model.gguf"))
    with running(argv, tmp_path_factory.mktemp("log") / "log") as client:
        yield client


def test_its_acceptance_length_is_that_of_its_log(with_head, log):
    adapter, num_before = ADAPTERS["llama.cpp"], len(SAID.findall(log.read_text(errors="replace")))
    before = read("llama.cpp", with_head)
    answers = []
    for number, question in enumerate(questions(12)):
        body = {
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": 24 if number % 2 else 200,
        }
        answers.append(with_head.post("/v1/chat/completions", json=body).content)
    counts = difference(before, read("llama.cpp", with_head))
    said = SAID.findall(log.read_text(errors="replace"))[num_before:]
    assert len(said) == len(answers)
    accepted, drafted = (sum(int(line[i]) for line in said) for i in range(2))
    assert (counts.accepted, counts.drafted) == (accepted, drafted)
    assert sum(counts.by_position) == accepted and len(counts.by_position) == DRAFT_TOKENS
    # its mean of each request has two decimals, so its rounds are within what that leaves open
    rounds = [int(a) / (float(mean) - 1) for a, _, mean in said]
    assert counts.rounds == sum(map(round, rounds))
    assert all(abs(each - round(each)) < 0.3 for each in rounds)
    print(f"acceptance length {counts.length:.3f}; by its log {1 + accepted / sum(map(round, rounds)):.3f}")

    whole = [adapter.of_answer([answer]) for answer in answers]
    for found, answer, (a, d, mean) in zip(whole, answers, said, strict=True):
        if json.loads(answer)["choices"][0]["finish_reason"] == "stop":
            assert found is None
            continue
        assert (found.accepted, found.drafted) == (int(a), int(d))
        passes = round(int(a) / (float(mean) - 1))
        assert passes <= found.rounds <= passes + 1  # the last may have had no room for drafts
    assert any(found is not None for found in whole)


def test_share_of_its_answers_that_speculation_leaves_as_they_are(plain, with_head):
    arms = [Arm(name=name, url=str(one.base_url)) for name, one in (("off", plain), ("eagle3", with_head))]
    pairs = [(arm, identify(arm)) for arm in arms]
    assert [endpoint.engine for _, endpoint in pairs] == ["llama.cpp"] * 2
    prompts = [
        Prompt(id=f"stdlib/{number}", category="demo", messages=({"role": "user", "content": question},))
        for number, question in enumerate(questions(40))
    ]
    found = asyncio.run(compare(*pairs, prompts, tokens=2500, max_tokens=200, concurrency=1))
    print("\n".join(found.lines()))
    assert not found.ended and found.greedy.num_failed == 0
    assert found.greedy.num_tokens >= 2500
    assert found.greedy.count("defect") == 0

"""Prompts: the sets that come along, files, salts, and what is refused."""

import json
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.base.errors import UserError
from eyas.bench.endpoint.prompts.builtin import SETS, builtin
from eyas.bench.endpoint.prompts.documents import MAX_WORDS, MIN_WORDS
from eyas.bench.endpoint.prompts.prompt import Prompt, in_order, salted, shared_text
from eyas.bench.endpoint.prompts.sources import find_prompts


@pytest.mark.parametrize("name", SETS)
def test_each_set_has_forty_different_prompts(name):
    prompts = builtin(name)
    texts = [prompt.messages[-1]["content"] for prompt in prompts]
    assert len(prompts) == len(set(texts)) == len({prompt.id for prompt in prompts}) == 40
    assert all(prompt.category == name and prompt.messages[-1]["role"] == "user" for prompt in prompts)
    assert all(text == text.strip() and text.isascii() and len(text) >= 15 for text in texts)
    assert all(bool(prompt.tools) == (name == "tools") for prompt in prompts)
    beginnings = [" ".join(text.split()[:4]) for text in texts]
    most = 8 if name == "documents" else 3  # as many as begin like one of them
    assert max(beginnings.count(beginning) for beginning in beginnings) <= most


def test_tools_are_what_openai_takes():
    for prompt in builtin("tools"):
        for tool in prompt.tools:
            assert tool["type"] == "function" and tool["function"]["parameters"]["type"] == "object"
            assert set(tool["function"]["parameters"]["required"]) <= set(tool["function"]["parameters"]["properties"])
    offered = {tool["function"]["name"] for prompt in builtin("tools") for tool in prompt.tools}
    assert len(offered) == 18


def test_documents_are_of_every_length_and_belong_to_the_seed():
    lengths = sorted(len(prompt.messages[0]["content"].split()) for prompt in builtin("documents"))
    assert MIN_WORDS <= lengths[0] < 1.2 * MIN_WORDS and MAX_WORDS <= lengths[-1] < 1.1 * MAX_WORDS
    assert all(after < 1.3 * before for before, after in pairwise(lengths))
    assert builtin("documents", 1) == builtin("documents", 1) != builtin("documents", 2)
    assert not any("{" in prompt.messages[0]["content"] for prompt in builtin("documents"))


@given(st.integers(0, 99), st.integers(0, 99))
def test_a_salt_belongs_to_its_parts(one, two):
    for prompt in (builtin("chat")[0], Prompt(id="r/1", category="r", token_ids=tuple(range(100)))):
        assert (salted(prompt, "run", one) == salted(prompt, "run", two)) == (one == two)
        assert salted(prompt, "run", one) != prompt
        assert len(salted(prompt, "run", one).token_ids) == len(prompt.token_ids)


def test_a_salt_comes_first_and_behind_what_is_shared():
    talk = Prompt(
        id="x/1", category="x", messages=({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"})
    )
    shared = shared_text(20, 0)
    (system, user) = salted(talk, 1, shared=shared).messages
    assert system["content"].startswith(shared + "(request ") and system["content"].endswith(")\nBe brief.")
    assert user == talk.messages[1] and len(shared.split()) == 20 and shared_text(0, 0) == ""
    parts = Prompt(id="x/2", category="x", messages=({"role": "user", "content": [{"type": "text", "text": "Hi"}]},))
    assert [part["type"] for part in salted(parts, 1).messages[0]["content"]] == ["text", "text"]


@given(st.integers(0, 1000))
def test_an_order_has_all_prompts_and_mixes_categories(seed):
    prompts = [Prompt(id=f"{name}/{n}", category=name) for name, count in (("a", 40), ("b", 8)) for n in range(count)]
    order = in_order(prompts, seed)
    assert sorted(prompt.id for prompt in order) == sorted(prompt.id for prompt in prompts)
    assert order == in_order(prompts, seed)
    places = [place for place, prompt in enumerate(order) if prompt.category == "b"]
    assert all(after - before <= 8 for before, after in pairwise(places))


def test_files_of_either_format(tmp_path):
    lines = tmp_path / "mine.jsonl"
    entries = [
        {"prompt": "What is a fjord?", "category": "geography"},
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]},
        {"Problem": "Find x.", "Short Answer": "3"},
        {"answer": "no question"},
        {"question": "Which?", "tools": [{"type": "function", "function": {"name": "f"}}]},
    ]
    lines.write_text("\n\n".join(json.dumps(entry) for entry in entries))
    found = find_prompts([str(lines)])
    assert [prompt.messages[-1]["content"] for prompt in found] == ["What is a fjord?", "Hi", "Find x.", "Which?"]
    assert [prompt.category for prompt in found] == ["geography", "mine", "mine", "mine"] and found[3].tools
    shared = tmp_path / "sharegpt.json"
    turns = [("system", "Be kind."), ("human", "One?"), ("gpt", "1"), ("human", "Two?"), ("gpt", "2")]
    talk = [{"from": role, "value": text} for role, text in turns]
    shared.write_text(json.dumps([{"id": "a", "conversations": talk}, {"id": "b", "conversations": []}]))
    (prompt,) = find_prompts([str(shared)])
    assert [(one["role"], one["content"]) for one in prompt.messages] == [
        ("system", "Be kind."), ("user", "One?"), ("assistant", "1"), ("user", "Two?")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"prompt": "a"}\n{"prompt"', "line 2: no JSON"),
        ('["a"]', "entry 1: wants an object, got str"),
        ('{"messages": "Hi"}', "line 1: a conversation is a list of messages"),
        ('{"messages": [{"role": "king", "content": "Hi"}]}', "line 1: a message has a role"),
        ('{"prompt": "a", "tools": "all"}', "line 1: tools is a list of objects"),
        ('{"text": "a"}', "has no prompt: an entry needs prompt, question"),
        ("", "has no prompt"),
        ("\xff", "line 1: no JSON"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(tmp_path, text, error):
    path = tmp_path / "a.jsonl"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=error):
        find_prompts([str(path)])


@pytest.mark.parametrize(
    ("names", "error"),
    [
        (["maths"], "no prompts are called 'maths' .did you mean 'math'"),
        (["nowhere.jsonl"], "cannot be read: No such file"),
        (["random:many"], "is not random:TOKENS"),
        (["random:8:1"], "is not random:TOKENS"),
        (["chat", "random:8"], "asked for in two different ways"),
    ],
)
def test_unknown_prompts(names, error):
    with pytest.raises(UserError, match=error):
        find_prompts(names)


def test_random_ids_are_within_the_vocabulary():
    prompts = find_prompts(["random:16:50"], seed=3)
    assert {len(prompt.token_ids) for prompt in prompts} == {16}
    assert 0 <= min(min(prompt.token_ids) for prompt in prompts) < max(max(one.token_ids) for one in prompts) < 50
    assert find_prompts(["random:16:50"], seed=3) == prompts != find_prompts(["random:16:50"], seed=4)


def test_a_data_set_of_the_hub_needs_its_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    with pytest.raises(UserError, match="needs Hugging Face's library datasets; install it with: pip install datasets"):
        find_prompts(["hub:Hwilner/imo-answerbench"])

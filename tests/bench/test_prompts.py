"""Prompts: files as people write them, errors that name the line, and prompts that no cache can know."""

import itertools
import json

import pytest

from eyas.base.errors import UserError
from eyas.base.harmony.rendering import Message, render_conversation, system_message
from eyas.bench.prompts import QUESTIONS, question_prompts, read_prompts, unseen_prompts


def write(folder, *lines):
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_both_kinds_of_line(codec, tmp_path):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "Hi"}]
    path = write(tmp_path, {"messages": messages, "answer": "a"}, {"text": "no prompt"}, "", {"prompt": "Hi"})
    prompts, num_left_out = read_prompts(path, codec)
    user = Message(role="user", content="Hi")
    assert prompts == [
        tuple(render_conversation(codec, [Message(role="system", content="s"), user])),
        tuple(render_conversation(codec, [system_message(), user])),
    ]
    assert num_left_out == 1
    assert read_prompts(path, codec, limit=1) == (prompts[:1], 0)


def test_messages_without_a_system_message_get_the_default_one(codec, tmp_path):
    path = write(tmp_path, {"messages": [{"role": "user", "content": "Hi"}]}, {"prompt": "Hi"})
    (first, second), _ = read_prompts(path, codec)
    assert first == second


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: "),
        ("[1]", "line 2: wants an object, got list"),
        ({"messages": "Hi"}, "line 2: messages must be a list"),
        ({"messages": [{"role": "user", "content": 3}]}, "line 2: a message is an object whose values are strings"),
        ({"messages": [{"role": "bird", "content": "x"}]}, "line 2: a message has a role (system, "),
        ({"messages": [{"role": "user", "content": "x", "text": "y"}]}, "no other fields than channel, content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "line 2: a tool message needs the name"),
    ],
)
def test_errors_name_the_line(codec, tmp_path, line, words):
    with pytest.raises(UserError) as caught:
        read_prompts(write(tmp_path, {"prompt": "ok"}, line), codec)
    assert words in str(caught.value)


def test_a_file_without_prompts(codec, tmp_path):
    with pytest.raises(UserError, match='no line with "messages" or "prompt"'):
        read_prompts(write(tmp_path, {"text": "x"}), codec)


def test_unseen_prompts_differ_within_the_first_tokens(codec):
    prompts = question_prompts(codec)
    assert len(prompts) == len(QUESTIONS)
    numbers = itertools.count()
    short, long = (
        unseen_prompts(prompts, vocab_size=codec.vocab_size, num_tokens=n, numbers=numbers) for n in (200, 300)
    )
    made = [next(unseen) for _ in range(500) for unseen in (short, long)]
    assert [len(prompt) for prompt in made] == [200, 300] * 500
    assert len({prompt[:2] for prompt in made}) == 1000
    assert all(0 <= token < codec.vocab_size for prompt in made for token in prompt)

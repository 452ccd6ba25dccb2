"""What is asked, with which history, and which messages a regenerated chat has."""

import pytest
from tests.train.regeneration.support.files import assistant, read, regenerate, result, user, write
from tests.train.regeneration.support.scripted import Reply, said, scripted

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("add", "look")
]
SYSTEM = {"role": "system", "content": "Be brief."}


def by_question(answers):
    """Answer by the last user message and the number of messages after it."""

    def script(body):
        messages = body["messages"]
        last = max(number for number, message in enumerate(messages) if message["role"] == "user")
        return answers[messages[last]["content"]][len(messages) - 1 - last]

    return script


def answered(tmp_path, chats, answers, *flags):
    """The output of chats under scripted answers, and what was asked; chats are read by the trainer's own reader."""
    with scripted(by_question(answers)) as endpoint:
        assert regenerate(write(tmp_path / "in.jsonl", *chats), tmp_path / "out.jsonl", endpoint.url, *flags) == 0
    return read(tmp_path / "out.jsonl"), endpoint.bodies


def test_every_user_turn_is_answered_with_the_new_answers_as_history(tmp_path):
    chat = [SYSTEM, user("one"), assistant("old 1"), user("two"), user("and"), assistant("old 2"), user("three")]
    answers = {
        "one": [said("new 1", reasoning="hm")],
        "and": [said("new 2", reasoning_content="so")],
        "three": [said("new 3")],
    }
    found, bodies = answered(tmp_path, [{"messages": chat, "reasoning_effort": "low"}], answers)
    first = {"role": "assistant", "content": "new 1", "reasoning_content": "hm"}
    second = {"role": "assistant", "content": "new 2", "reasoning_content": "so"}
    third = {"role": "assistant", "content": "new 3"}
    assert found[1]["messages"] == [SYSTEM, user("one"), first, user("two"), user("and"), second, user("three"), third]
    assert found[1]["reasoning_effort"] == "low" and "tools" not in found[1]
    assert found[1]["source"] == {"line": 1, "end": "done", "answers": 3, "prompt_tokens": 30, "tokens": 15}
    assert bodies[0]["messages"] == [SYSTEM, user("one")]
    assert bodies[2]["messages"][2] == first | {"reasoning": "hm"}, "under both names"
    assert bodies[2]["temperature"] == 1 and bodies[2]["top_p"] == 1 and bodies[2]["reasoning_effort"] == "low"
    assert bodies[2]["chat_template_kwargs"] == {"reasoning_effort": "low"}, "older llama.cpp reads no other"
    assert bodies[0]["model"] == "target" and not {"max_tokens", "seed", "tools"} & set(bodies[0])


def test_answers_that_no_user_asked_for_are_left_out(tmp_path):
    chats = [
        [assistant("hello"), user("a"), assistant("x"), {"role": "developer", "content": "d"}],
        {"conversations": [{"from": "gpt", "value": "hi"}, {"from": "human", "value": "b"}]},
    ]
    found, _ = answered(tmp_path, chats, {"a": [said("A")], "b": [said("B")]})
    assert [message["content"] for message in found[1]["messages"]] == ["a", "A"]
    assert [message["content"] for message in found[2]["messages"]] == ["b", "B"]


def test_recorded_results_follow_calls_that_are_the_same(tmp_path):
    chat = [
        user("go"),
        assistant(None, ("r1", "add", '{"a": 1, "b": 2}'), ("r2", "look", "{}")),
        result("r2", "sky"),
        result("r1", "3"),
        assistant(None, ("r3", "add", '{"a": 3}')),
        result("r3", "6"),
        assistant("old"),
        user("next"),
        assistant("old"),
    ]
    answers = {
        "go": {
            0: said(calls=[("add", '{"b":2,"a":1}')], reasoning="first"),
            2: said("Now look.", calls=[("look", "")]),
            4: said(calls=[("add", '{"a": 3.0}')]),
            6: said("done"),
        },
        "next": [said("end")],
    }
    found, bodies = answered(tmp_path, [{"messages": chat, "tools": TOOLS}], answers)
    roles = [message["role"] for message in found[1]["messages"]]
    assert roles == ["user", *["assistant", "tool"] * 3, "assistant", "user", "assistant"]
    results = [message for message in found[1]["messages"] if message["role"] == "tool"]
    assert [message["content"] for message in results] == ["3", "sky", "6"]
    assert all(message["tool_call_id"] == "new0" for message in results), "the new call's id"
    assert found[1]["source"]["end"] == "done" and found[1]["source"]["answers"] == 5
    assert found[1]["tools"] == TOOLS and bodies[0]["tools"] == TOOLS
    assert bodies[1]["messages"][1]["reasoning"] == "first", "reasoning stays between the calls of a turn"


@pytest.mark.parametrize(
    "calls",
    [[("add", '{"a": 2}')], [("look", '{"a": 1}')], [("add", '{"a": 1}'), ("add", '{"a": 1}')], [("add", "{")]],
    ids=["other arguments", "other name", "one of two", "no JSON"],
)
def test_a_chat_ends_at_a_call_without_a_recorded_result(tmp_path, calls, capsys):
    chat = [user("go"), assistant(None, ("r", "add", '{"a": 1}')), result("r", "3"), assistant("old"), user("next")]
    chats = [{"messages": chat, "tools": TOOLS}]
    found, bodies = answered(tmp_path, chats, {"go": [said(calls=calls)]})
    assert [message["role"] for message in found[1]["messages"]] == ["user", "assistant"]
    assert len(found[1]["messages"][1]["tool_calls"]) == len(calls) and len(bodies) == 1
    assert found[1]["source"]["end"] == "call"
    assert "ended at a call: 1" in capsys.readouterr().out


def test_calls_of_sharegpt_are_recorded_ones_too(tmp_path):
    values = (
        ("human", "go"),
        ("function_call", '{"name": "add", "arguments": {"a": 1}}'),
        ("observation", "3"),
        ("gpt", "old"),
    )
    chat = {"conversations": [{"from": name, "value": value} for name, value in values], "tools": TOOLS}
    answers = {"go": {0: said(calls=[("add", '{"a":1}')]), 2: said("three")}}
    found, _ = answered(tmp_path, [chat], answers)
    assert [message["content"] for message in found[1]["messages"]] == ["go", None, "3", "three"]


def test_cut_and_refused_answers_end_a_chat_and_are_not_kept(tmp_path, capsys):
    def chat(name):
        return [user(f"{name} 1"), assistant("old"), user(f"{name} 2"), assistant("old"), user(f"{name} 3")]

    answers = {
        "cut 1": [said("whole")], "cut 2": [said("cu", finish="length")],
        "at once 1": [said("cu", finish="length")],
        "silent 1": [said("whole")], "silent 2": [said(None, reasoning="hm")],
        "refused 1": [said("whole")], "refused 2": [Reply({"error": {"message": "too long"}}, 400)],
        "never 1": [Reply({"error": {"message": "too long"}}, 400)],
        "abort 1": [said("cu", finish="abort")],
    }  # fmt: skip
    chats = [chat(name) for name in ("cut", "at once", "silent", "refused", "never", "abort")]
    found, bodies = answered(tmp_path, chats, answers, "--max-tokens", "7", "--concurrency", "1")
    assert {line: chat["source"]["end"] for line, chat in found.items()} == {1: "cut", 3: "cut", 4: "refused"}
    assert all([message["content"] for message in chat["messages"]][1:] == ["whole"] for chat in found.values())
    assert all(body["max_tokens"] == 7 for body in bodies)
    out, err = capsys.readouterr()
    assert "3 of 6 chats, 3 answers" in out and "cut: 3" in out and "failed: 3" in out
    assert "in.jsonl:5: status 400: too long" in err and "in.jsonl:6:" in err and "'abort'" in err

    # Those that failed are asked again, cut ones are not.
    _, again = answered(tmp_path, chats, answers, "--max-tokens", "7", "--concurrency", "1")
    assert [body["messages"][0]["content"] for body in again] == ["never 1", "abort 1"]


def test_each_answer_has_a_seed_of_its_own_and_always_the_same(tmp_path):
    chats = [[user("a"), assistant("x"), user("b")], [user("a"), assistant("x"), user("b")]]
    answers = {"a": [said("A")], "b": [said("B")]}
    _, bodies = answered(tmp_path, chats, answers, "--seed", "3", "--concurrency", "1", "--effort", "high")
    (tmp_path / "out.jsonl").unlink()
    _, again = answered(tmp_path, chats, answers, "--seed", "3", "--concurrency", "1", "--effort", "high")
    assert bodies == again and len({body["seed"] for body in bodies}) == 4
    assert all(body["reasoning_effort"] == "high" for body in bodies)

"""A session of the shape that Claude Code sends: what is read again is exactly what was read before."""

import copy
from itertools import pairwise

import pytest
from tests.gateway.conftest import stub_server
from tests.gateway.support.anthropic import post
from tests.gateway.support.responses import Script, analysis, call, final, preamble, spoken

LINE = "x-anthropic-billing-header: cc_version=2.1.330.{}; cc_entrypoint=cli;"
LATER = [
    {"name": f"later_{i}", "description": f"Tool {i}.", "input_schema": {"type": "object"}, "defer_loading": True}
    for i in range(4)
]
RUN = {
    "name": "Run",
    "description": "Runs a command.",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}
SEARCH = {"name": "ToolSearch", "input_schema": {"type": "object", "properties": {"query": {"type": "string"}}}}


class Session:
    """A client that keeps the conversation: it marks the newest message for caching, and finds tools by searching."""

    def __init__(self, server, *, name: str) -> None:
        self._server = server
        self._name = name
        self._messages: list[dict] = [
            {"role": "user", "content": [{"type": "text", "text": "List the files."}]},
            {"role": "system", "content": "The folder is /home. Later tools: later_0, later_1, later_2, later_3."},
        ]
        self._found = 0

    def say(self, text: str) -> None:
        self._messages.append({"role": "user", "content": text})

    def step(self, number: int) -> dict:
        """Ask, and run the call of the answer if it has one."""
        answer = post(self._server, **self.body()).json()
        self._messages.append({"role": "assistant", "content": answer["content"]})
        if answer["stop_reason"] == "tool_use":
            use = answer["content"][-1]
            output = self._run(use["name"], number)
            result = {"type": "tool_result", "tool_use_id": use["id"], "content": output}
            self._messages.append({"role": "user", "content": [result]})
            if number % 5 == 4:
                self._messages.append({"role": "system", "content": "The user has not heard from you."})
        return answer

    def _run(self, name: str, number: int):
        if name == "ToolSearch":
            self._found += 1
            return [{"type": "tool_reference", "tool_name": f"later_{self._found}"}]
        return f"file_{number}.py" if number % 2 else [{"type": "text", "text": f"file_{number}.py"}]

    def body(self) -> dict:
        messages = copy.deepcopy(self._messages)
        last = messages[-1]
        if isinstance(last["content"], str):
            last["content"] = [{"type": "text", "text": last["content"]}]
        last["content"][-1]["cache_control"] = {"type": "ephemeral"}
        found = [tool for tool in LATER if tool["name"] <= f"later_{self._found}" and tool["name"] != "later_0"]
        return {
            "system": [
                {"type": "text", "text": LINE.format(self._name)},
                {"type": "text", "text": "You are a helper.", "cache_control": {"type": "ephemeral"}},
            ],
            "messages": messages,
            "tools": [RUN, *(found or LATER[:1]), SEARCH],
            "thinking": {"type": "adaptive", "display": "omitted"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        }


def answers(codec) -> list[list[int]]:
    """Return fourteen steps and an answer."""
    steps = []
    for number in range(14):
        one = (
            call('{"query": "x"}', name="ToolSearch")
            if number in (3, 7)
            else call(f'{{"command": "ls {number}"}}', "Run")
        )
        before = [analysis(f"Step {number}."), *([preamble("I go on.")] if number % 4 == 1 else [])]
        steps.append(spoken(codec, *before, one))
    return [*steps, spoken(codec, analysis("Done."), final("These are the files."))]


def play_all(server, script, codec) -> Session:
    script.play(*answers(codec))
    session = Session(server, name="ed0")
    for number in range(15):
        session.step(number)
    return session


@pytest.fixture
def played(scripted, codec):
    server, script = scripted
    return server, script, play_all(server, script, codec)


def shared(one, other) -> int:
    """Return how many tokens two prompts have in common at their beginnings."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_each_step_begins_with_all_of_the_step_before(played, codec):
    _, script, _ = played
    prompts = [request.prompt_ids for request in script.requests]
    assert len(prompts) == 15
    for before, after in pairwise(prompts):
        assert after[: len(before)] == before
    text = codec.decode(prompts[-1])
    assert text.count("<|call|>") == 14 and text.count("<|channel|>analysis") == 14
    assert [text.count(f"type later_{i} =") for i in range(4)] == [0, 1, 1, 0]
    assert text.count("The user has not heard from you.") == 2 and "x-anthropic-billing" not in text


def asked_again(script, session) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the last prompt of the session, and that of another question."""
    last = script.requests[-1].prompt_ids
    session.say("Thanks.")
    session.step(0)
    return last, script.requests[-1].prompt_ids


def test_a_new_turn_begins_with_what_stays_of_the_last(played, codec):
    """The format drops the reasoning of a finished turn: what was before that turn is the same."""
    _, script, session = played
    first = script.requests[0].prompt_ids
    last, again = asked_again(script, session)
    assert len(first) <= shared(last, again) < len(last) and "analysis" not in codec.decode(again[len(first) :])


def test_with_kept_reasoning_a_conversation_only_grows(codec):
    script = Script()
    with stub_server(codec, script, context=20_000, gateway={"keep_reasoning": True}) as server:
        session = play_all(server, script, codec)
        last, again = asked_again(script, session)
        assert shared(last, again) == len(last) and codec.decode(again).count("<|channel|>analysis") == 15
        count = post(server, "/v1/messages/count_tokens", **session.body()).json()["input_tokens"]
        session.step(1)
        assert count == len(script.requests[-1].prompt_ids)


def test_another_conversation_shares_the_beginning(played, codec):
    server, script, _ = played
    first = script.requests[0].prompt_ids
    script.play(*script.replies)
    Session(server, name="0fe").step(0)
    assert script.requests[0].prompt_ids == first

"""The same conversation, said in chat and in messages, is the same prompt and the same grammar."""

import json

import httpx
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.support.openai import CLOCK, WEATHER

TEXT = st.text(min_size=1, max_size=20) | st.sampled_from(["<|end|><|start|>system", "words", "\U0001f985 \u00fc"])
GIVEN = st.dictionaries(st.sampled_from(["a", "b", "\u00fc"]), st.none() | st.integers(-9, 9) | TEXT, max_size=2)
CALLED = st.tuples(st.none() | TEXT, st.none() | TEXT, GIVEN, TEXT)  # reasoning, preamble, arguments, result
TURN = st.tuples(
    st.sampled_from(["user", "user", "system"]),
    *(TEXT, st.lists(CALLED, max_size=2), st.none() | TEXT, st.none() | TEXT),  # asked, calls, reasoning, answer
)
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
CHOICES = {"auto": "auto", "none": "none", "required": "any"}


def ask(scripted, path, body):
    """Return the request to the engine that a body becomes."""
    server, script = scripted
    script.play([])
    answer = httpx.post(f"{server.url}/v1/{path}", json=body, timeout=20)
    assert answer.status_code == 200, answer.text
    return script.requests[0]


def in_chat(turns):
    messages = []
    for role, asked, calls, thought, answer in turns:
        messages.append({"role": role, "content": asked})
        for reasoning, said, arguments, output in calls:
            one = f"c{len(messages)}"
            text = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
            tool_call = {"id": one, "type": "function", "function": {"name": "clock", "arguments": text}}
            messages += [
                {"role": "assistant", "reasoning": reasoning, "content": said, "tool_calls": [tool_call]},
                {"role": "tool", "tool_call_id": one, "content": output},
            ]
        if thought is not None or answer is not None:
            messages.append({"role": "assistant", "reasoning": thought, "content": answer})
    return messages


def in_blocks(turns, *, as_lists):
    messages = []

    def text_of(text):
        return [{"type": "text", "text": text}] if as_lists else text

    def blocks(thought, text):
        thoughts = [] if thought is None else [{"type": "thinking", "thinking": thought, "signature": "x"}]
        return thoughts + ([] if text is None else [{"type": "text", "text": text}])

    for role, asked, calls, thought, answer in turns:
        messages.append({"role": role, "content": text_of(asked)})
        for reasoning, said, arguments, output in calls:
            one = f"c{len(messages)}"
            use = {"type": "tool_use", "id": one, "name": "clock", "input": arguments}
            result = {"type": "tool_result", "tool_use_id": one, "content": text_of(output)}
            messages.append({"role": "assistant", "content": [*blocks(reasoning, said), use]})
            messages.append({"role": "user", "content": [result]})
        if thought is not None or answer is not None:
            messages.append({"role": "assistant", "content": blocks(thought, answer)})
    return messages


@settings(max_examples=60, deadline=None)
@given(
    turns=st.lists(TURN, min_size=1, max_size=3),
    system=st.none() | st.just("") | TEXT,
    effort=st.sampled_from(["low", "medium", "high"]),
    tools=st.sampled_from([[], [CLOCK], [CLOCK, WEATHER]]),
    choice=st.sampled_from(["auto", "none", "required"]),
    as_lists=st.booleans(),
    has_schema=st.booleans(),
)
def test_chat_and_messages_ask_the_engine_the_same(
    scripted, turns, system, effort, tools, choice, as_lists, has_schema
):
    choice = choice if tools else "auto"
    fields = [{"parameters": {}} | tool["function"] for tool in tools]
    chat = {
        "messages": in_chat(turns),
        "tools": [{"type": "function", "function": field} for field in fields],
        "tool_choice": choice,
        "reasoning_effort": effort,
    }
    messages = {
        "messages": in_blocks(turns, as_lists=as_lists),
        "tools": [
            {"name": one["name"], "description": one.get("description"), "input_schema": one["parameters"]}
            for one in fields
        ],
        "tool_choice": {"type": CHOICES[choice]},
        "output_config": {"effort": effort},
    }
    if system is not None:
        chat["messages"].insert(0, {"role": "system", "content": system})
        messages["system"] = system
    if has_schema:
        chat["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
        messages["output_config"]["format"] = {"type": "json_schema", "schema": SCHEMA}
    there = ask(scripted, "chat/completions", chat)
    here = ask(scripted, "messages", {"model": "claude", "max_tokens": 9} | messages)
    assert there.prompt_ids == here.prompt_ids and there.params.grammar == here.params.grammar

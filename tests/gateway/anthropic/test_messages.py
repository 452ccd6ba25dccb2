"""Answers through the official SDK, streamed and whole: the same seed gives the same content."""

import json

import httpx
import pytest
from tests.gateway.support.anthropic import CLOCK, USER, WEATHER, Histories, folded, records, unparsed, without_ids
from tests.gateway.support.responses import analysis, call, final, preamble, spoken

TEXT = {"type": "text", "text": "Hello there! Gr\u00fc\u00dfe"}
THINKING = {"type": "thinking", "thinking": "Hm, Hm.", "signature": "eyas"}
SAID = {"type": "text", "text": "I look."}
TOOLS = {"tools": [WEATHER, CLOCK]}


def used(given, name="get_weather"):
    return {"type": "tool_use", "name": name, "input": given}


# Answers as the model writes them, their content, and why they end.
ANSWERS = {
    "text": ([final(TEXT["text"])], [TEXT], "end_turn"),
    "reasoning and text": ([analysis("Hm, Hm."), final(TEXT["text"])], [THINKING, TEXT], "end_turn"),
    "reasoning only": ([analysis("Hm, Hm.")], [THINKING], "end_turn"),
    "empty text": ([analysis("Hm, Hm."), final("")], [THINKING], "end_turn"),
    "nothing": ([final("")], [], "end_turn"),
    "reasoning twice": ([analysis("Hm, Hm.")] * 2 + [final(TEXT["text"])], [THINKING, THINKING, TEXT], "end_turn"),
    "a preamble and text": ([preamble("I look."), final(TEXT["text"])], [SAID, TEXT], "end_turn"),
    "a call": ([call('{"city": "Oslo"}')], [used({"city": "Oslo"})], "tool_use"),
    "all before a call": (
        [analysis("Hm, Hm."), preamble("I look."), analysis("Hm, Hm."), call('{"city":"Oslo"}')],
        [THINKING, SAID, THINKING, used({"city": "Oslo"})],
        "tool_use",
    ),
    "a call without arguments": ([call("", name="clock")], [used({}, "clock")], "tool_use"),
    "a call with an empty object": ([call("{}", name="clock")], [used({}, "clock")], "tool_use"),
    "nested arguments": (
        [call('{"city": {"a": [1, 2.5, true, null, "\u00fc\U0001f985"]}}')],
        [used({"city": {"a": [1, 2.5, True, None, "\u00fc\U0001f985"]}})],
        "tool_use",
    ),
    "a call of an unknown tool": (
        [call("Hm, Hm.", name="unknown")],
        [THINKING],
        "end_turn",
    ),
    "an empty preamble": ([preamble(""), call("{}", name="clock")], [used({}, "clock")], "tool_use"),
    "malformed": ([preamble(""), analysis(""), final(TEXT["text"])], [TEXT], "end_turn"),
}  # fmt: skip
# Requests in different forms that ask the same.
ASKED = {
    "plain": {"messages": [USER]},
    "with a system prompt": {"messages": [USER], "system": "Be brief.", "temperature": 0.2, "top_p": 0.9},
    "in blocks": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {}}]}],
        "system": [{"type": "text", "text": "Be brief."}],
        "thinking": {"type": "adaptive", "display": "omitted"},
        "output_config": {"effort": "max"},
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    },
    "in the middle of a turn": {
        "messages": [
            USER,
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "clock", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "9 o'clock"}]},
            {"role": "system", "content": "The user waits."},
        ],
        "thinking": {"type": "enabled", "budget_tokens": 2000},
        "metadata": {"user_id": "me"},
    },
}  # fmt: skip


def asked(body: dict) -> dict:
    """Return the arguments of the SDK: it has no fields for sampling."""
    extra = {name: body[name] for name in ("temperature", "top_p") if name in body}
    rest = {name: value for name, value in body.items() if name not in extra}
    return {"model": "claude-any", "max_tokens": 500, "extra_body": {"seed": 7, **extra}, **TOOLS, **rest}


@pytest.mark.parametrize("body", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_streamed_and_whole_are_the_same(play, codec, sdk, answer, body):
    messages, content, reason = answer
    server, script = play(spoken(codec, *messages))
    with sdk(server) as client:
        whole = client.messages.create(**asked(body)).to_dict(mode="json")
        with client.messages.stream(**asked(body)) as stream:
            final_message = stream.get_final_message().to_dict(mode="json")
    raw = httpx.post(
        f"{server.url}/v1/messages?beta=true",
        json={**body, **TOOLS, "model": "x-claude", "max_tokens": 500, "stream": True},
    )
    events = folded(records(raw.text))
    assert [without(block) for block in whole["content"]] == content and whole["stop_reason"] == reason
    assert without_ids(whole) == without_ids(events)
    for block in final_message["content"]:
        block.pop("parsed_output", None)
    assert without_ids(final_message)["content"] == without_ids(whole)["content"]
    assert final_message["usage"] == whole["usage"] and final_message["stop_reason"] == reason
    first, second, third = script.requests
    assert first.prompt_ids == second.prompt_ids == third.prompt_ids and first.params.seed == 7


def without(block: dict) -> dict:
    return {name: value for name, value in block.items() if name != "id"}


@pytest.mark.parametrize("arguments", ["{", '{"city": "Os', "[1]", '"x"', "city=Oslo", '{"a": NaN}', "{} {}", "null"])
def test_arguments_that_are_no_object(play, codec, sdk, arguments):
    """A stream has them as they are, a whole answer in the form that Claude Code itself sends back."""
    server, script = play(spoken(codec, call(arguments)))
    body = {**TOOLS, "model": "claude-any", "max_tokens": 500, "messages": [USER]}
    answer = httpx.post(f"{server.url}/v1/messages", json=body).json()
    (block,) = answer["content"]
    assert block["input"] == unparsed(arguments) and answer["stop_reason"] == "tool_use"
    text = httpx.post(f"{server.url}/v1/messages", json=body | {"stream": True}).text
    parts = [event["delta"]["partial_json"] for event in records(text) if event["type"] == "content_block_delta"]
    assert "".join(parts) == arguments
    said = {"role": "assistant", "content": [block]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block["id"], "content": "no"}]}
    httpx.post(f"{server.url}/v1/messages", json=body | {"messages": [USER, said, result]})
    assert codec.decode(script.requests[-1].prompt_ids).count(arguments + "<|call|>") == 1


def test_ids_of_calls_are_never_the_same(play, codec, sdk):
    server, _ = play(spoken(codec, call("{}", name="clock")))
    with sdk(server) as client:
        answers = [client.messages.create(**asked({"messages": [USER]})) for _ in range(20)]
    ids = {block.id for answer in answers for block in answer.content}
    assert len(ids) == 20 and all(one.startswith("toolu_") for one in ids)
    assert len({answer.id for answer in answers}) == 20


@pytest.mark.parametrize(
    ("fields", "reason", "sequence", "text"),
    [
        ({"stop_sequences": ["there", "zzz"]}, "stop_sequence", "there", "Hello "),
        ({"stop_sequences": ["Hm"]}, "end_turn", None, TEXT["text"]),  # reasoning is not searched
        ({"max_tokens": 20}, "max_tokens", None, None),
        ({"max_tokens": 10_000_000}, "end_turn", None, TEXT["text"]),
    ],
)
def test_why_an_answer_ends(play, codec, sdk, fields, reason, sequence, text):
    server, _ = play(spoken(codec, analysis("Hm, Hm."), final(TEXT["text"])))
    with sdk(server) as client:
        arguments = asked({"messages": [USER]}) | fields
        whole = client.messages.create(**arguments)
        with client.messages.stream(**arguments) as stream:
            streamed = stream.get_final_message()
    for answer in (whole, streamed):
        assert (answer.stop_reason, answer.stop_sequence) == (reason, sequence)
        assert text is None or answer.content[-1].text == text


def test_the_end_of_the_context_is_not_the_end_of_max_tokens(serve, codec, sdk):
    server = serve(lambda request, choice: codec.encode("word ") * 1000, context=400)
    with sdk(server) as client:
        answer = client.messages.create(model="claude-any", max_tokens=32_000, messages=[USER])
    assert answer.stop_reason == "model_context_window_exceeded"
    assert answer.usage.input_tokens + answer.usage.output_tokens == 400


def test_usage_tells_cached_tokens_from_others(serve, codec, sdk):
    server = serve(None, num_cached=17)
    with sdk(server) as client:
        count = client.messages.count_tokens(model="claude-any", messages=[USER]).input_tokens
        whole = client.messages.create(model="claude-any", max_tokens=9, messages=[USER]).usage
        with client.messages.stream(model="claude-any", max_tokens=9, messages=[USER]) as stream:
            first = next(iter(stream)).message.usage
            last = stream.get_final_message().usage
    assert whole == last and (whole.cache_read_input_tokens, whole.cache_creation_input_tokens) == (17, 0)
    assert first.input_tokens == whole.input_tokens == count - 17 and first.cache_read_input_tokens == 17
    assert (first.output_tokens, whole.output_tokens) == (0, 9)


@pytest.mark.parametrize("num_histories", [150, pytest.param(500, marks=pytest.mark.slow)])
def test_random_histories_and_answers(scripted, codec, num_histories):
    """Every history is taken, every stream is well formed, and whole answers are the same."""
    server, script = scripted
    histories, client = Histories(seed=3), httpx.Client(base_url=server.url, timeout=20)
    reasons = set()
    with client:
        for number in range(num_histories):
            script.play(spoken(codec, *histories.answer()))
            body = histories.body() | {"model": "claude-any"}
            answer = client.post("/v1/messages", json=body | {"stream": True})
            assert answer.status_code == 200, (answer.text, json.dumps(body))
            message = folded(records(answer.text))
            reasons.add(message["stop_reason"])
            if number % 5 == 0:
                assert without_ids(client.post("/v1/messages", json=body).json()) == without_ids(message)
                count = {name: body[name] for name in body if name != "max_tokens"}
                found = client.post("/v1/messages/count_tokens", json=count).json()
                assert found == {"input_tokens": len(script.requests[0].prompt_ids)}
    assert reasons == {"end_turn", "max_tokens", "tool_use"}

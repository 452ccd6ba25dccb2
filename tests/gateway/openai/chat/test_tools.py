"""Function calls of `/v1/chat/completions` as the official SDK sees them: declared, forced, streamed, answered."""

import openai
import pytest
from tests.gateway.support.openai import CLOCK, WEATHER, added_up
from tests.gateway.support.responses import analysis, call, final, preamble, spoken

from eyas.base.harmony.rendering import call_message, render_message, result_message

ARGUMENTS = '{"city": "Graz \U0001f985"}'


def test_a_call(stage):
    answer = stage.say(analysis("Look it up."), call(ARGUMENTS)).chat(tools=[WEATHER])
    choice = answer.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert choice.message.reasoning_content == choice.message.reasoning == "Look it up."
    (made,) = choice.message.tool_calls
    assert (made.type, made.function.name, made.function.arguments) == ("function", "get_weather", ARGUMENTS)
    assert made.id.startswith("call_")


@pytest.mark.parametrize("per_round", [1, 3, 1000])
def test_a_streamed_call(serve, codec, per_round):
    ids = spoken(codec, analysis("Look."), call(ARGUMENTS))
    chunks = list(serve(lambda request, choice: ids, drafts_per_round=per_round).chat(tools=[WEATHER], stream=True))
    message = added_up(chunks)
    assert (message["finish"], message["content"], message["reasoning"]) == ("tool_calls", None, "Look.")
    assert [(one["name"], one["arguments"]) for one in message["tool_calls"]] == [("get_weather", ARGUMENTS)]
    named = [c for chunk in chunks for choice in chunk.choices for c in choice.delta.tool_calls or () if c.id]
    assert len(named) == 1


def test_a_preamble_is_content_beside_the_call(stage):
    stage.say(preamble("One moment."), call("{}"))
    message = stage.chat(tools=[WEATHER]).choices[0].message
    assert message.content == "One moment." and len(message.tool_calls) == 1
    message = added_up(stage.chat(tools=[WEATHER], stream=True))
    assert message["content"] == "One moment." and message["tool_calls"][0]["arguments"] == "{}"


def test_two_calls_in_a_row(stage, codec):
    """gpt-oss makes one call a turn; should it not stop, none is lost."""
    special, first = codec.special, []
    for name in ("get_weather", "clock"):
        first += [special["<|channel|>"], *codec.encode(f"commentary to=functions.{name}"), special["<|message|>"]]
        first += [*codec.encode(f'{{"{name}": 1}}'), special["<|end|>"], special["<|start|>"]]
        first += codec.encode("assistant")
    stage.say_ids(first)
    calls = stage.chat(tools=[WEATHER, CLOCK]).choices[0].message.tool_calls
    assert [one.function.name for one in calls] == ["get_weather", "clock"] and len({one.id for one in calls}) == 2
    message = added_up(stage.chat(tools=[WEATHER, CLOCK], stream=True))
    assert [one["arguments"] for one in message["tool_calls"]] == ['{"get_weather": 1}', '{"clock": 1}']


def test_a_call_without_arguments_is_a_call(stage):
    stage.say(call(""))
    assert stage.chat(tools=[WEATHER]).choices[0].message.tool_calls[0].function.arguments == ""
    assert added_up(stage.chat(tools=[WEATHER], stream=True))["tool_calls"][0]["name"] == "get_weather"


def test_a_call_cut_short_is_length(stage):
    answer = stage.say(call(ARGUMENTS)).chat(tools=[WEATHER], max_tokens=45)
    assert answer.choices[0].finish_reason == "length"
    assert ARGUMENTS.startswith(answer.choices[0].message.tool_calls[0].function.arguments)


@pytest.mark.parametrize("fields", [{}, {"tools": [CLOCK]}, {"tools": [WEATHER], "tool_choice": "none"}])
def test_what_calls_nothing_that_may_be_called_is_reasoning(stage, fields):
    message = stage.say(call(ARGUMENTS)).chat(**fields).choices[0].message
    assert message.tool_calls is None and message.reasoning_content == ARGUMENTS


def test_tools_are_in_the_developer_message(stage):
    stage.say(final("ok")).chat(tools=[WEATHER])
    assert "type get_weather = (_: {\ncity: string,\n}) => any;" in stage.prompt()
    assert "Calls to these tools must go to the commentary channel: 'functions'." in stage.prompt()
    stage.talk([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], tools=[CLOCK])
    prompt = stage.prompt()
    assert prompt.count("<|start|>developer") == 1 and prompt.index("Be brief.") < prompt.index(
        "type clock = () => any"
    )
    stage.chat(tools=[WEATHER], tool_choice="none")
    assert "get_weather" not in stage.prompt()


def test_a_conversation_with_a_result(stage, codec):
    messages = [{"role": "user", "content": "Weather?"}]
    message = stage.say(analysis("Look."), preamble("Wait."), call(ARGUMENTS)).talk(messages, tools=[WEATHER])
    message = message.choices[0].message
    messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "7 C"}]
    answer = stage.say(final("It is 7 C.")).talk(messages, tools=[WEATHER])
    assert answer.choices[0].message.content == "It is 7 C."
    expected = [
        *render_message(codec, analysis("Look.")),
        *render_message(codec, preamble("Wait.")),
        *render_message(codec, call_message("get_weather", ARGUMENTS)),
        *render_message(codec, result_message("get_weather", "7 C")),
    ]
    assert codec.decode(expected) in stage.prompt()


def test_results_find_their_calls_by_id(stage):
    calls = [
        {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for i, name in enumerate(["clock", "get_weather"])
    ]
    stage.say(final("ok")).talk(
        [
            {"role": "user", "content": "Both"},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "rain"}]},
            {"role": "tool", "tool_call_id": "call_0", "content": "noon"},
        ],
        tools=[WEATHER, CLOCK],
    )
    prompt = stage.prompt()
    assert "<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>rain<|end|>" in prompt
    assert "<|start|>functions.clock to=assistant<|channel|>commentary<|message|>noon<|end|>" in prompt


@pytest.mark.parametrize(
    ("choice", "forced"),
    [
        ("required", ["get_weather", "clock"]),
        ({"type": "function", "function": {"name": "clock"}}, ["clock"]),
        ("auto", []),
    ],
)
def test_tool_choice_is_a_grammar(stage, choice, forced):
    stage.say(call("{}", "clock")).chat(tools=[WEATHER, CLOCK], tool_choice=choice)
    grammar = stage.request.params.grammar
    assert (grammar is None) == (not forced)
    if grammar is not None:
        assert [name for name in ("get_weather", "clock") if f"to=functions.{name}" in grammar] == forced
        assert "answer" not in grammar


def allowed(mode, *tools):
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_allowed_tools_are_offered(stage, mode):
    """The model is told of no others, cannot be forced to call them, and its calls of them are none."""
    choice = allowed(mode, named("clock"))
    answer = stage.say(call(ARGUMENTS)).chat(tools=[WEATHER, CLOCK], tool_choice=choice)
    assert answer.choices[0].message.tool_calls is None and answer.choices[0].message.reasoning == ARGUMENTS
    assert "type clock" in stage.prompt() and "get_weather" not in stage.prompt()
    grammar = stage.request.params.grammar
    assert (grammar is None) == (mode == "auto") and "get_weather" not in (grammar or "")
    assert stage.say(call("{}", "clock")).chat(tools=[WEATHER, CLOCK], tool_choice=choice).choices[0].message.tool_calls


def test_strict_binds_the_arguments(stage):
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
    stage.say(final("ok")).chat(tools=[strict])
    assert '"city"' in stage.request.params.grammar and "answer" in stage.request.params.grammar


def named(name: str) -> dict:
    return {"type": "function", "function": {"name": name}}


USER = {"role": "user", "content": "Hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
CALLED = {"role": "assistant", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "7", "tool_call_id": "call_1"}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": [named("a b")]}, "tools[0].function.name", "letters"),
        ({"tools": [CLOCK, CLOCK]}, "tools[1].function.name", "already"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type", "custom"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parametrs": {}}}]}, "tools[0].function.parametrs",
         "did you mean 'parameters'?"),
        ({"tools": [CLOCK], "tool_choice": named("clok")}, "tool_choice", "did you mean 'clock'?"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tools": [CLOCK], "tool_choice": allowed("auto", named("clok"))},
         "tool_choice.allowed_tools.tools[0].function.name", "did you mean 'clock'?"),
        ({"tools": [CLOCK], "tool_choice": allowed("none", named("clock"))}, "tool_choice.allowed_tools.mode",
         "'auto', 'required'"),
        ({"tools": [CLOCK], "tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools", "length >= 1"),
        ({"tool_choice": named("clock")}, "tool_choice", "needs tools"),
        ({"tools": [CLOCK], "tool_choice": "maybe"}, "tool_choice", "maybe"),
        ({"functions": [{"name": "f"}]}, "functions", "not supported"),
        ({"messages": [USER, {"role": "tool", "content": "7", "tool_call_id": "call_9"}]}, "messages[1].tool_call_id",
         "'call_9'"),
        ({"messages": [USER, {"role": "tool", "content": "7"}]}, "messages[1].tool_call_id", "missing"),
        ({"messages": [USER] * 10_001}, "messages", "length <= 10000"),
        ({"messages": [USER, CALLED, RESULT | {"name": "alarm"}]}, "messages[2].name", "'clock'"),
        ({"messages": [USER | {"tool_calls": [CALL]}]}, "messages[0].tool_calls", "assistant"),
        ({"messages": [USER | {"tool_call_id": "call_1"}]}, "messages[0].tool_call_id", "tool"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_tools_is_named(stage, fields, param, words):
    with pytest.raises(openai.BadRequestError) as caught:
        stage.server.client.chat.completions.create(**{"model": "stub", "messages": [USER]} | fields)
    assert caught.value.param == param and words in caught.value.message


def test_names_of_an_assistant_and_of_the_function_that_it_called(stage):
    stage.say(final("x")).talk([USER, CALLED | {"name": "Bob"}, RESULT | {"name": "clock"}], tools=[CLOCK])
    assert "<|start|>assistant:Bob to=functions.clock<|channel|>" in stage.prompt()
    assert "<|start|>functions.clock to=assistant" in stage.prompt()


def test_a_schema_that_cannot_be_enforced_is_refused_where_it_would_be(stage):
    odd = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "not": {"minProperties": 1}}}}
    stage.say(final("ok")).chat(tools=[odd])
    for choice in ("required", allowed("required", named("f"))):
        with pytest.raises(openai.BadRequestError) as caught:
            stage.chat(tools=[CLOCK, odd], tool_choice=choice)
        assert caught.value.param.startswith("tools[1].function.parameters")

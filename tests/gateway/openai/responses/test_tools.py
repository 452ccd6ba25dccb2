"""Function calls in `/v1/responses`: the loop of call, result and answer, and what the model sees of it."""

import json

import openai
import pydantic
import pytest
from tests.gateway.support.responses import WEATHER, analysis, call, final, fold, preamble, raw_events, spoken

from eyas.base.harmony.rendering import (
    Message,
    call_message,
    developer_message,
    render_conversation,
    result_message,
    system_message,
)
from eyas.base.harmony.tools import FunctionTool

ARGUMENTS = '{"city": "Bern"}'
USER = Message(role="user", content="Weather?")
TOOL = FunctionTool(name="get_weather", description=WEATHER["description"], parameters=WEATHER["parameters"])
CLOCK = {"type": "function", "name": "clock", "parameters": None, "strict": None}


def create(server, input="Weather?", tools=(WEATHER,), **fields):
    return server.client.responses.create(model="stub", input=input, tools=list(tools), **fields)


def rendered(codec, *messages, tools=(TOOL,)):
    head = [system_message(date="2026-11-20", has_functions=True), developer_message(tools=tools)]
    return tuple(render_conversation(codec, [*head, *messages]))


def output_of(response, text="sunny"):
    called = next(item for item in response.output if item.type == "function_call")
    return {"type": "function_call_output", "call_id": called.call_id, "output": text}


@pytest.fixture
def weather(codec, play):
    """A server whose model calls the function, then answers; and the script of it."""
    return play(
        spoken(codec, analysis("I need the weather."), preamble("One moment."), call(ARGUMENTS)),
        spoken(codec, analysis("It is sunny."), final("Sunny.")),
    )


def test_a_call_is_an_item(weather, codec):
    server, script = weather
    response = create(server)
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    called = response.output[-1]
    assert (called.name, called.arguments, called.status) == ("get_weather", ARGUMENTS, "completed")
    assert called.call_id.startswith("call_") and response.status == "completed"
    assert script.requests[0].prompt_ids == rendered(codec, USER)
    assert response.tools[0].name == "get_weather"


def test_the_loop_by_previous_response_id_keeps_the_turns_analysis(weather, codec):
    server, script = weather
    first = create(server)
    second = create(server, [output_of(first)], previous_response_id=first.id)
    assert second.output_text == "Sunny."
    assert script.requests[1].prompt_ids == rendered(
        codec,
        *(USER, analysis("I need the weather."), preamble("One moment."), call_message("get_weather", ARGUMENTS)),
        result_message("get_weather", "sunny"),
    )
    # Once the turn has its final message, its analysis is no longer shown.
    create(server, "Thanks", previous_response_id=second.id)
    assert script.requests[2].prompt_ids == rendered(
        codec,
        *(USER, preamble("One moment."), call_message("get_weather", ARGUMENTS)),
        *(result_message("get_weather", "sunny"), final("Sunny."), Message(role="user", content="Thanks")),
    )


def test_the_loop_by_sending_everything_back_is_the_same(weather):
    server, script = weather
    first = create(server)
    create(server, [output_of(first)], previous_response_id=first.id)
    script.play(*script.replies)
    stateless = create(server, store=False)
    items = [{"role": "user", "content": "Weather?"}, *stateless.output, output_of(stateless)]
    by_id = script.requests[0].prompt_ids
    create(server, items, store=False)
    assert script.requests[0].prompt_ids == by_id
    first_ids = create(server, [output_of(first)], previous_response_id=first.id) and script.requests[-1].prompt_ids
    assert script.requests[1].prompt_ids == first_ids


def test_the_prompt_continues_what_the_model_wrote(weather, codec):
    """The second prompt begins with the first one: what was computed for it is in the prefix cache."""
    server, script = weather
    first = create(server)
    create(server, [output_of(first)], previous_response_id=first.id)
    before, after = (request.prompt_ids for request in script.requests)
    assert after[: len(before)] == before


def test_streamed_calls(weather):
    server, _ = weather
    events = raw_events(server, input="Weather?", tools=[WEATHER])
    assert fold(events) == events[-1]["response"]["output"]
    deltas = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert "".join(deltas) == ARGUMENTS and len(deltas) > 1


def test_a_call_without_arguments_is_announced(play, codec):
    server, _ = play(spoken(codec, call("", name="clock")))
    events = raw_events(server, input="Time?", tools=[CLOCK])
    assert [event["type"] for event in events[2:5]] == [
        "response.output_item.added",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]
    assert events[-1]["response"]["output"][0]["arguments"] == ""


def test_the_sdk_parses_arguments(play, codec):
    class GetWeather(pydantic.BaseModel):
        city: str

    server, script = play(spoken(codec, call(ARGUMENTS, name="GetWeather")), spoken(codec, final("Sunny.")))
    tool = openai.pydantic_function_tool(GetWeather)
    tool = {"type": "function", **tool["function"]}
    first = server.client.responses.parse(model="stub", input="Weather?", tools=[tool])
    assert first.output[0].parsed_arguments == {"city": "Bern"}
    assert "%json" in script.requests[0].params.grammar  # strict tools bind their arguments
    again = [{"role": "user", "content": "Weather?"}, *first.output, output_of(first)]
    assert server.client.responses.parse(model="stub", input=again, tools=[tool]).output_text == "Sunny."


def test_several_calls_before_their_results(play, codec):
    server, script = play(spoken(codec, final("Both.")))
    calls = [
        {"type": "function_call", "call_id": f"c{i}", "name": "get_weather", "arguments": json.dumps({"city": city})}
        for i, city in enumerate(("Bern", "Rome"))
    ]
    results = [
        {"type": "function_call_output", "call_id": f"c{i}", "output": [{"type": "input_text", "text": text}]}
        for i, text in enumerate(("sunny", "wet"))
    ]
    create(server, [{"role": "user", "content": "Weather?"}, *calls, *results])
    assert script.requests[0].prompt_ids == rendered(
        codec,
        USER,
        *(call_message("get_weather", one["arguments"]) for one in calls),
        *(result_message("get_weather", text) for text in ("sunny", "wet")),
    )


def test_a_call_that_was_cut_off_is_left_out(play, codec):
    ids = spoken(codec, analysis("Hm."), call(ARGUMENTS))
    server, script = play(ids)
    first = create(server, max_output_tokens=len(ids) - 4)
    assert (first.status, first.output[-1].type, first.output[-1].status) == (
        "incomplete",
        "function_call",
        "incomplete",
    )
    create(server, "Well?", previous_response_id=first.id)
    expected = rendered(codec, USER, analysis("Hm."), Message(role="user", content="Well?"))
    assert script.requests[1].prompt_ids == expected


def test_a_call_of_what_was_not_offered_is_reasoning(play, codec):
    server, _ = play(spoken(codec, call(ARGUMENTS, name="launch")))
    assert [item.type for item in create(server).output] == ["reasoning"]


@pytest.mark.parametrize(
    ("choice", "callable_names", "may_answer"),
    [
        ("required", ["get_weather", "clock"], False),
        ({"type": "function", "name": "clock"}, ["clock"], False),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "clock"}]}, ["clock"], True),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]},
            *(["get_weather"], False),
        ),
    ],
)
def test_tool_choice_is_a_grammar(play, codec, choice, callable_names, may_answer):
    server, script = play(spoken(codec, call(ARGUMENTS)))
    response = create(server, tools=[WEATHER, CLOCK], tool_choice=choice)
    grammar = script.requests[0].params.grammar
    assert [name for name in ("get_weather", "clock") if f"functions.{name} " in grammar] == callable_names
    assert ("answer:" in grammar) == may_answer
    told = response.tool_choice if isinstance(choice, str) else response.tool_choice.to_dict()
    assert told == choice
    # The model is told of all tools, whichever it may call.
    expected = rendered(codec, USER, tools=(TOOL, FunctionTool(name="clock")))
    assert script.requests[0].prompt_ids == expected


def test_tool_choice_auto_and_none(play, codec):
    server, script = play(spoken(codec, final("No.")))
    create(server, tool_choice="auto")
    create(server, tool_choice="none")
    free, none = script.requests
    assert free.params.grammar is None and free.prompt_ids == rendered(codec, USER)
    bare = tuple(render_conversation(codec, [system_message(date="2026-11-20"), USER]))
    assert none.prompt_ids == bare


OUTPUT = {"type": "function_call_output", "call_id": "c", "output": ""}
CALL = {"type": "function_call", "call_id": "c", "name": "clock", "arguments": "{}"}


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([OUTPUT], "input[0].call_id"),
        ([OUTPUT, CALL], "input[0].call_id"),
        ([CALL, {"role": "user", "content": ""}], "input[0]"),
    ],
)
def test_calls_and_outputs_belong_together(play, items, param):
    with pytest.raises(openai.BadRequestError, match="'c'") as caught:
        create(play()[0], items)
    assert caught.value.param == param


def test_an_answer_instead_of_the_owed_output_is_refused(weather):
    server, _ = weather
    first = create(server)
    with pytest.raises(openai.BadRequestError, match=first.output[-1].call_id) as caught:
        create(server, "Never mind", previous_response_id=first.id)
    assert caught.value.param == "input"

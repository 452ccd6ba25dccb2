"""Tools: those that come later, what may be called, what an answer is bound to."""

import pytest
from tests.gateway.support.anthropic import CLOCK, USER, WEATHER, post, streamed, whole, without_ids
from tests.gateway.support.responses import call, final, spoken

LATER = {**WEATHER, "name": "later", "defer_loading": True}
SEARCH = {"name": "ToolSearch", "input_schema": {"type": "object", "properties": {"query": {"type": "string"}}}}
FOUND = [{"type": "tool_reference", "tool_name": "later"}]
SCHEMA = {
    "type": "object",
    "properties": {"bird": {"type": "string"}},
    "required": ["bird"],
    "additionalProperties": False,
}


def searched(content=FOUND, call_id="a"):
    """Return the messages of a search for tools."""
    use = {"type": "tool_use", "id": call_id, "name": "ToolSearch", "input": {"query": "weather"}}
    result = {"type": "tool_result", "tool_use_id": call_id, "content": content}
    return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]


def prompts(server, script, codec, **fields):
    whole(server, **fields)
    return codec.decode(script.requests[-1].prompt_ids)


def test_a_deferred_tool_becomes_known_where_it_is_referred_to(play, codec):
    server, script = play(spoken(codec, call('{"city": "Oslo"}', name="later")))
    before = prompts(server, script, codec, messages=[USER], tools=[SEARCH, LATER, CLOCK])
    assert "type later" not in before and before.index("type ToolSearch") < before.index("type clock")
    messages = [USER, *searched(), *searched(call_id="b")]
    after = prompts(server, script, codec, messages=messages, tools=[SEARCH, LATER, CLOCK])
    assert after.startswith(before) and after.count("type later = (_: {") == 1
    result = "The tool later can be called from now on.<|end|>"
    definition = after.rindex("<|start|>developer<|message|># Tools\n\n## functions\n\nnamespace functions {")
    assert after.index(result) + len(result) == definition
    plain = prompts(server, script, codec, messages=[USER], tools=[SEARCH, CLOCK])
    assert before == plain
    known = prompts(server, script, codec, messages=messages, tools=[SEARCH, {**LATER, "defer_loading": False}, CLOCK])
    assert known.count("type later = (_: {") == 1 and "<|start|>developer<|message|># Tools" not in known[len(before) :]


def test_a_deferred_tool_can_be_called_once_it_is_known(play, codec):
    server, _ = play(spoken(codec, call('{"city": "Oslo"}', name="later")))
    tools = [SEARCH, LATER]
    assert [block["type"] for block in whole(server, messages=[USER], tools=tools)["content"]] == ["thinking"]
    answer = streamed(server, messages=[USER, *searched()], tools=tools)
    assert without_ids(answer)["content"] == [{"type": "tool_use", "name": "later", "input": {"city": "Oslo"}}]


def grammar(server, script, **fields):
    whole(server, **fields)
    return script.requests[-1].params.grammar


def test_grammars_know_what_may_be_called(play):
    server, script = play()
    tools, messages = [SEARCH, LATER, CLOCK], [USER, *searched()]
    assert grammar(server, script, tools=tools) is None
    before = grammar(server, script, tools=tools, tool_choice={"type": "any"})
    after = grammar(server, script, tools=tools, tool_choice={"type": "any"}, messages=messages)
    assert "functions.later" not in before and "functions.later" in after and "functions.clock" in before
    named = grammar(server, script, tools=tools, tool_choice={"type": "tool", "name": "later"}, messages=messages)
    assert "functions.later" in named and "functions.clock" not in named
    strict = grammar(server, script, tools=[CLOCK | {"strict": True}, SEARCH])
    assert "functions.ToolSearch" in strict and strict.count("%json") == 1
    bound = grammar(server, script, output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    assert '"bird"' in bound and grammar(server, script, tools=tools, tool_choice={"type": "none"}) is None


def test_none_shows_no_tools(play, codec):
    server, script = play()
    shown = prompts(
        server, script, codec, messages=[USER, *searched()], tools=[SEARCH, LATER], tool_choice={"type": "none"}
    )
    assert "namespace functions" not in shown and "type later" not in shown


def test_what_an_answer_is_bound_to_is_shown(play, codec):
    server, script = play()
    wanted = {"type": "json_schema", "schema": SCHEMA}
    assert "# Response Formats\n\n## answer\n\n" in prompts(server, script, codec, output_config={"format": wanted})


def test_names_of_128_characters(play, codec):
    """MCP servers make long ones."""
    name = "mcp__" + "x" * 123
    server, _ = play(spoken(codec, call("{}", name=name)))
    assert whole(server, tools=[{**CLOCK, "name": name}])["content"][0]["name"] == name
    assert post(server, tools=[{**CLOCK, "name": name + "x"}]).status_code == 400


def test_many_tools_are_taken_and_128_bound(serve):
    server = serve(context=200_000)
    tools = [{**CLOCK, "name": f"tool_{i}"} for i in range(1000)]
    assert post(server, tools=tools).status_code == 200
    assert post(server, tools=tools, tool_choice={"type": "tool", "name": "tool_999"}).status_code == 200
    for fields in (
        {"tools": tools[:129], "tool_choice": {"type": "any"}},
        {"tools": [t | {"strict": True} for t in tools]},
    ):
        answer = post(server, **fields)
        assert answer.status_code == 400 and "128 can be" in answer.json()["error"]["message"]
    later = [tool | {"defer_loading": True} for tool in tools[1:]]
    assert post(server, tools=[tools[0], *later], tool_choice={"type": "any"}).status_code == 200
    assert post(server, tools=[*tools, CLOCK]).status_code == 400


REFUSED = [
    ({"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}]}, "tools[0].type"),
    ({"tools": [CLOCK, {"type": "bash_20250124", "name": "bash"}]}, "tools[1].type"),
    ({"tools": [{"name": "clock"}]}, "tools[0].input_schema"),
    ({"tools": [CLOCK, CLOCK]}, "tools[1].name"),
    ({"tools": [CLOCK | {"name": "a.b"}]}, "tools[0].name"),
    ({"tools": [CLOCK | {"input_schema": "x"}]}, "tools[0].input_schema"),
    ({"tools": [CLOCK | {"defer_loading": "x"}]}, "tools[0].defer_loading"),
    ({"tools": [SEARCH, CLOCK | {"strict": True, "input_schema": {"$ref": "#/x"}}]}, "tools[1].input_schema"),
    ({"tools": [CLOCK], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tools": [CLOCK], "tool_choice": {"type": "tool", "name": "clocc"}}, "tool_choice"),
    ({"tools": [SEARCH, LATER], "tool_choice": {"type": "tool", "name": "later"}}, "tool_choice"),
    ({"tools": [CLOCK], "tool_choice": {"type": "required"}}, "tool_choice.type"),
    ({"tools": [CLOCK], "tool_choice": "auto"}, "tool_choice"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"mcp_servers": [{"type": "url", "url": "http://x"}]}, "mcp_servers"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"$ref": "x"}}}}, "output_config.format.schema"),
    ({"output_config": {"effort": "huge"}}, "output_config.effort"),
    ({"thinking": {"type": 5}}, "thinking.type"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"stop_sequences": "x"}, "stop_sequences"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": None}, "max_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"system": 5}, "system"),
    ({"metadata": 5}, "metadata"),
    ({"stream": "yes"}, "stream"),
]


@pytest.mark.parametrize(("fields", "field"), REFUSED)
def test_fields_that_are_refused(play, fields, field):
    server, script = play()
    answer = post(server, **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error") and field in error["message"], error
    assert not script.requests


def test_bound_answers_are_read_as_text(play, codec):
    server, _ = play(spoken(codec, final('{"bird": "eagle"}')))
    wanted = {"format": {"type": "json_schema", "schema": SCHEMA}}
    assert whole(server, output_config=wanted)["content"] == [{"type": "text", "text": '{"bird": "eagle"}'}]

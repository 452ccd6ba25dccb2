"""Tools in Harmony: whole conversations against openai-harmony, the rule on analysis, names, limits, recipients."""

from __future__ import annotations

import pytest
from tests.base.harmony.test_rendering import keep_all, reference_ids
from tests.base.support.harmony_cases import DATE, call, reference_conversation, result, say, think, user
from tests.base.support.tool_cases import (
    ASK,
    DONE,
    FORMATS,
    FORMATS_TEXT,
    OSLO,
    TOKYO,
    TOOL_BODIES,
    TOOL_CASES,
    TOOLS,
    reference_developer,
)

from eyas.base.errors import InvalidRequest
from eyas.base.harmony.rendering import (
    Message,
    call_message,
    developer_message,
    render_conversation,
    result_message,
    system_message,
)
from eyas.base.harmony.tools import (
    BROWSER,
    PYTHON,
    FunctionTool,
    ToolNamespace,
    called_function,
    check_schema,
    check_tool_name,
    tools_section,
)


@pytest.mark.parametrize("purpose", ["completion", "training", "history"])
@pytest.mark.parametrize("case", TOOL_CASES, ids=range(len(TOOL_CASES)))
def test_conversations_with_tools_are_rendered_as_openai_harmony_does(harmony, o200k, case, purpose):
    ours = render_conversation(o200k, case.ours(), purpose=purpose, drop_analysis=False)
    assert ours == reference_ids(harmony, case.theirs(), purpose, keep_all(harmony))


def test_cases_cover_what_they_promise():
    assert len(TOOL_CASES) >= 60
    assert {id(case.tools) for case in TOOL_CASES} == set(map(id, TOOLS))
    assert {id(case.body) for case in TOOL_CASES} == set(map(id, TOOL_BODIES))
    texts = {case.ours()[0].content + case.ours()[1].content for case in TOOL_CASES}
    assert len(texts) > 60


def test_built_in_tools_are_those_of_openai_harmony():
    import openai_harmony as oh

    for ours, theirs in (
        (BROWSER, oh.ToolNamespaceConfig.browser()),
        (PYTHON, oh.ToolNamespaceConfig.python()),
    ):
        assert (ours.name, ours.description) == (theirs.name, theirs.description)
        assert [(t.name, t.description) for t in ours.tools] == [(t.name, t.description) for t in theirs.tools]


def test_namespaces_are_sorted_and_may_have_no_tools(harmony):
    import openai_harmony as oh

    f, g = FunctionTool(name="f", description="F"), FunctionTool(name="g", parameters={"type": "object"})
    namespaces = [
        ToolNamespace(name="z", description="Of the\nlast", tools=(f,)),
        ToolNamespace(name="functions", tools=(f, g)),
        ToolNamespace(name="a", description="No tools\n\nhere\r\n"),
        ToolNamespace(name="B"),
    ]
    content = oh.DeveloperContent.new()
    for n in namespaces:
        tools = [oh.ToolDescription.new(t.name, t.description, t.parameters) for t in n.tools]
        content = content.with_tools(oh.ToolNamespaceConfig(name=n.name, description=n.description, tools=tools))
    theirs = harmony.render(oh.Message.from_role_and_content(oh.Role.DEVELOPER, content))
    assert tools_section(namespaces) == harmony.decode(theirs[3:-1])


def test_developer_message_without_tools(harmony):
    import openai_harmony as oh

    for text in (None, "", "Be brief."):
        message = oh.Message.from_role_and_content(oh.Role.DEVELOPER, reference_developer(text, []))
        assert developer_message(text).content == harmony.decode(harmony.render(message)[3:-1])
    assert developer_message(response_formats=FORMATS).content == FORMATS_TEXT
    assert developer_message("Hi", response_formats=FORMATS).content == f"# Instructions\n\nHi\n\n{FORMATS_TEXT}"


def test_the_documented_example(o200k):
    """The conversation of OpenAI's format description, but for the header of the call, which is the renderer's."""
    weather = {
        "type": "object",
        "properties": {
            "location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"},
            "format": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        },
        "required": ["location"],
    }
    messages = [
        system_message(date=DATE, effort="high", has_functions=True),
        developer_message(
            "Use a friendly tone.",
            tools=[
                FunctionTool(name="get_location", description="Gets the location of the user."),
                FunctionTool(name="get_weather", description="Gets the current weather.", parameters=weather),
            ],
        ),
        user("What is the weather like in SF?"),
        think("Need to use function get_weather."),
        call_message("get_weather", '{"location":"San Francisco"}'),
        result_message("get_weather", '{"sunny": true, "temperature": 20}'),
    ]
    text = o200k.encoding.decode(render_conversation(o200k, messages))
    assert text.split("<|start|>developer<|message|>")[1] == (
        "# Instructions\n\nUse a friendly tone.\n\n# Tools\n\n## functions\n\nnamespace functions {\n\n"
        "// Gets the location of the user.\ntype get_location = () => any;\n\n"
        "// Gets the current weather.\ntype get_weather = (_: {\n"
        "// The city and state, e.g. San Francisco, CA\nlocation: string,\n"
        'format?: "celsius" | "fahrenheit", // default: celsius\n}) => any;\n\n} // namespace functions<|end|>'
        "<|start|>user<|message|>What is the weather like in SF?<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>Need to use function get_weather.<|end|>"
        "<|start|>assistant to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>"
        '{"location":"San Francisco"}<|call|>'
        "<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>"
        '{"sunny": true, "temperature": 20}<|end|><|start|>assistant'
    )


PYTHON_TURN = [
    user("Plot"),
    call("python", "print(1)", channel="analysis", content_type="code"),
    result("python", "printed 1", channel="analysis", to=None),
]


@pytest.mark.parametrize(
    ("messages", "dropped"),
    [
        (DONE, ["Need the tool.", "Now Oslo.", "Both known."]),
        ([*ASK, *TOKYO, think("Now Oslo."), *OSLO], []),
        ([*DONE, user("Rome?"), think("Again."), *TOKYO, think("Hm.")], ["Need the tool.", "Now Oslo.", "Both known."]),
        ([*PYTHON_TURN, think("So.")], []),
        ([*PYTHON_TURN, say("1"), user("x")], ["print(1)", "printed 1"]),
    ],
)
def test_analysis_between_the_calls_of_an_unfinished_turn_stays(small, messages, dropped):
    kept = [message for message in messages if message.content not in dropped]
    assert len(kept) <= len(messages) - len(dropped)
    expected = render_conversation(small, kept, drop_analysis=False)
    assert render_conversation(small, messages) == expected


def test_where_openai_harmony_drops_otherwise(harmony, o200k):
    """It looks at the first final message only, and at none of them while the last turn is unfinished."""
    import openai_harmony as oh

    def theirs(messages: list[Message]) -> list[int]:
        conversation = reference_conversation(None, None, messages)
        return harmony.render_conversation_for_completion(conversation, oh.Role.ASSISTANT)

    def without(messages: list[Message], end: int) -> list[int]:
        kept = [m for i, m in enumerate(messages) if i >= end or m.channel != "analysis"]
        return render_conversation(o200k, kept, drop_analysis=False)

    two = [*DONE, *DONE, user("Thanks!")]
    going_on = [*DONE, user("Rome?"), think("Again."), *TOKYO]
    assert render_conversation(o200k, DONE) == theirs(DONE) == without(DONE, len(DONE))
    assert render_conversation(o200k, two) == without(two, len(two))
    assert theirs(two) == without(two, len(DONE))
    assert render_conversation(o200k, going_on) == without(going_on, len(DONE))
    assert theirs(going_on) == without(going_on, 0)


@pytest.mark.parametrize("name", ["f", "get_weather", "A-1", "x" * 64])
def test_good_names(name):
    check_tool_name(name, param="tools[0].function.name")


@pytest.mark.parametrize("name", ["", " f", "f ", "a b", "a\n", "f\n", "a.b", "\u00e4", "x" * 65, "<|call|>", "a=b"])
def test_bad_names_are_refused(name):
    with pytest.raises(InvalidRequest, match="not a valid tool name") as caught:
        check_tool_name(name, param="tools[0].function.name")
    assert caught.value.param == "tools[0].function.name"
    assert len(str(caught.value)) < 200


def nested(depth: int) -> dict:
    schema: dict = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


def test_schemas_up_to_the_limits(harmony):
    for schema in ({}, nested(64), {"enum": list(range(19_990))}, {"enum": ["x" * 260_000, 2**70]}):
        check_schema(schema, param="p")
        assert developer_message(tools=[FunctionTool(name="f", parameters=schema)]).content


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (nested(65), "64 levels"),
        (nested(100_000), "64 levels"),
        ({"enum": list(range(20_001))}, "20000 values"),
        ({"x" * 270_000: 1}, "262144 characters"),
        ({"enum": ["x" * 140_000] * 2}, "262144 characters"),
        ({"minimum": float("inf")}, "too large or not a number"),
        ({"default": [float("nan")]}, "too large or not a number"),
        ({"maximum": 10**400}, "too large or not a number"),
    ],
    ids=["deep", "deeper", "values", "key", "texts", "infinity", "nan", "integer"],
)
def test_schemas_beyond_the_limits_are_refused(schema, reason):
    with pytest.raises(InvalidRequest, match=reason):
        check_schema(schema, param="p")


KNOWN = {"get_weather", "f", "python", "json", "search"}


@pytest.mark.parametrize(
    ("recipient", "expected"),
    [
        ("functions.get_weather", "get_weather"),
        ("get_weather", "get_weather"),
        ("functions.python", "python"),
        ("functions.json", "json"),
        (None, None),
        ("", None),
        ("user", None),
        ("assistant", None),
        ("python", None),
        ("json", None),
        ("<|constrain|>json", None),
        ("browser.search", None),
        ("functions.browser.search", None),
        ("functions.unknown", None),
        ("functions.", None),
        ("functions.functions.f", None),
        ("Get_Weather", None),
    ],
)
def test_which_function_a_recipient_calls(recipient, expected):
    assert called_function(recipient, KNOWN) == expected

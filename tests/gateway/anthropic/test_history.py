"""What the model reads of a request's messages, and histories that are refused."""

import re

import httpx
import pytest
from tests.gateway.support.anthropic import CLOCK, USER, WEATHER, post, unparsed, whole

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
NO_IMAGE = "[There is an image here. This model cannot see images.]"
TOOLS = [WEATHER, CLOCK]


def text(value, **more):
    return {"type": "text", "text": value, **more}


def user(*content):
    return {"role": "user", "content": list(content)}


def assistant(*content):
    return {"role": "assistant", "content": list(content)}


def use(call_id="a", name="clock", **given):
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def result(call_id="a", content="nine", **more):
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def thinking(value):
    return {"type": "thinking", "thinking": value, "signature": "whatever"}


@pytest.fixture
def rendered(play, codec):
    """Return the text of the prompt after its first messages, without its last header."""
    server, script = play()

    def render(messages, **fields):
        whole(server, messages=messages, **fields)
        prompt = codec.decode(script.requests[-1].prompt_ids)
        return prompt[prompt.index("<|end|>") + len("<|end|>") :].removesuffix("<|start|>assistant")

    return render


def said(role, content):
    return f"<|start|>{role}<|message|>{content}<|end|>"


def of(channel, content):
    return f"<|start|>assistant<|channel|>{channel}<|message|>{content}<|end|>"


def called(name, arguments):
    head = f"<|start|>assistant to=functions.{name}<|channel|>commentary"
    return f"{head} <|constrain|>json<|message|>{arguments}<|call|>"


def answered(name, output):
    return f"<|start|>functions.{name} to=assistant<|channel|>commentary<|message|>{output}<|end|>"


PAIR = called("clock", "{}") + answered("clock", "nine")
RENDERED = [
    ([USER], said("user", "Hi")),
    ([user(text("Hi"))], said("user", "Hi")),
    ([user(text("Hi", cache_control={"type": "ephemeral", "ttl": "1h"}, new_field=[1]))], said("user", "Hi")),
    ([user(text("a"), text("b"))], said("user", "ab")),
    ([user()], said("user", "")),
    ([user(IMAGE)], said("user", NO_IMAGE)),
    ([user(text("Look:"), IMAGE, IMAGE, text("Well?"))], said("user", f"Look:\n{NO_IMAGE}\n{NO_IMAGE}\nWell?")),
    (
        [user({"type": "document", "title": "T", "source": {"type": "text", "data": "D\n"}})],
        said("user", "<document>\nT\n\nD\n</document>"),
    ),
    (
        [user({"type": "document", "context": "C", "source": {"type": "content", "content": [text("D"), IMAGE]}})],
        said("user", f"<document>\nC\n\nD\n{NO_IMAGE}\n</document>"),
    ),
    (
        [user({"type": "document", "title": "T", "source": {"type": "base64", "media_type": "a/b", "data": ""}})],
        said("user", "[There is a document here, 'T'. This model reads documents as text only.]"),
    ),
    (
        [user({"type": "document", "source": {"type": "url", "url": "http://x"}})],
        said("user", "[There is a document here. This model reads documents as text only.]"),
    ),
    (
        [user({"type": "search_result", "title": "T", "source": "S", "content": [text("a"), text("b")]}, text("Q"))],
        said("user", "<search_result>\nT\nS\n\nab\n</search_result>\nQ"),
    ),
    (
        [USER, {"role": "assistant", "content": "Yes."}, USER],
        said("user", "Hi") + of("final", "Yes.") + said("user", "Hi"),
    ),
    ([USER, assistant(text("Y"), text("es."))], said("user", "Hi") + of("final", "Yes.")),
    ([USER, assistant(text(""))], said("user", "Hi")),
    ([USER, assistant()], said("user", "Hi")),
    ([USER, assistant(thinking("Hm."), use()), user(result())], said("user", "Hi") + of("analysis", "Hm.") + PAIR),
    ([USER, assistant(thinking(""), use()), user(result())], said("user", "Hi") + PAIR),
    (
        [USER, assistant({"type": "redacted_thinking", "data": "x"}, use()), user(result())],
        said("user", "Hi") + PAIR,
    ),
    (
        [USER, assistant(text("I look."), use()), user(result())],
        said("user", "Hi") + of("commentary", "I look.") + PAIR,
    ),
    (
        [USER, assistant(text("I look."), thinking("Hm."), text("Done."))],
        said("user", "Hi") + of("commentary", "I look.") + of("final", "Done."),
    ),
    (  # results come in the order in which they finished
        [USER, assistant(use("a"), use("b", "get_weather", city="x")), user(result("b", "rain"), result("a"))],
        said("user", "Hi") + called("clock", "{}") + called("get_weather", '{"city":"x"}')
        + answered("clock", "nine") + answered("get_weather", "rain"),
    ),
    ([USER, assistant(use()), user(text("Now?"), result())], said("user", "Hi") + PAIR + said("user", "Now?")),
    (
        [USER, assistant(use()), user(result()), {"role": "system", "content": "Soon."}],
        said("user", "Hi") + PAIR + said("developer", "# Instructions\n\nSoon."),
    ),
    (
        [USER, assistant(use()), user(result(content=None))],
        said("user", "Hi") + called("clock", "{}") + answered("clock", ""),
    ),
    (
        [USER, assistant(use()), user(result(content=[text("9"), IMAGE]))],
        said("user", "Hi") + called("clock", "{}") + answered("clock", f"9\n{NO_IMAGE}"),
    ),
    (
        [USER, assistant(use()), user(result(content="no clock", is_error=True))],
        said("user", "Hi") + called("clock", "{}") + answered("clock", "Error: no clock"),
    ),
    (
        [USER, assistant(use()), user(result(content="<tool_use_error>x</tool_use_error>", is_error=True))],
        said("user", "Hi") + called("clock", "{}") + answered("clock", "<tool_use_error>x</tool_use_error>"),
    ),
    (
        [USER, assistant(use(a="\u00fc", b=[1, 2.5, None, {"c": True}])), user(result())],
        said("user", "Hi") + called("clock", '{"a":"\u00fc","b":[1,2.5,null,{"c":true}]}') + answered("clock", "nine"),
    ),
    (
        [USER, {**assistant(use()), "content": [{**use(), "input": unparsed('{"a": ')}]}, user(result())],
        said("user", "Hi") + called("clock", '{"a": ') + answered("clock", "nine"),
    ),
    (  # an id that other servers use again, once it has its result
        [USER, assistant(use()), user(result()), assistant(use()), user(result())],
        said("user", "Hi") + PAIR + PAIR,
    ),
    ([USER, assistant(use("a", "gone")), user(result())], said("user", "Hi") + PAIR.replace("clock", "gone")),
    ([USER, assistant(use())], said("user", "Hi") + called("clock", "{}")),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "expected"), RENDERED)
def test_messages_are_read_as(rendered, messages, expected):
    assert rendered(messages) == expected


REFUSED = [
    ([user(result("b"))], "messages[0].content[0].tool_use_id", "no tool_use block before it has the id 'b'"),
    ([USER, assistant(use()), user(result(), result())], "messages[2].content[1].tool_use_id", "'a' already"),
    ([USER, assistant(use()), user(result()), user(result())], "messages[3].content[0].tool_use_id", "'a' already"),
    ([USER, assistant(use(), use())], "messages[1].content[1].id", "two calls wait"),
    ([user(use())], "messages[0].content[0].type", "a user's message has no blocks of type 'tool_use'"),
    ([user(thinking("x"))], "messages[0].content[0].type", "'thinking'"),
    ([USER, assistant(IMAGE)], "messages[1].content[0].type", "an assistant's message has no blocks of type 'image'"),
    ([USER, assistant(result())], "messages[1].content[0].type", "'tool_result'"),
    ([USER, {"role": "system", "content": [IMAGE]}], "messages[1].content[0].type", "a system message"),
    ([USER, assistant(use(name="a b"))], "messages[1].content[0].name", "not a valid tool name"),
    (
        [USER, assistant(use()), user(result(content=[{"type": "tool_reference", "tool_name": "clocc"}]))],
        "messages[2].content[0].content[0].tool_name",
        "did you mean 'clock'?",
    ),
    ([USER, assistant({"type": "server_tool_use", "id": "a"})], "messages[1].content[0].type", "'server_tool_use'"),
    ([{"role": "tool", "content": ""}], "messages[0].role", "cannot be 'tool'"),
    ([{"role": "user"}], "messages[0].content", "is missing"),
    ([{"role": "user", "content": 5}], "messages[0].content", "expected str"),
    ([], "messages", "length >= 1"),
    ([USER, assistant({**use(), "input": "x"})], "messages[1].content[0].input", "expected object"),
    ([user({"type": "text"})], "messages[0].content[0].text", "is missing"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("messages", "field", "words"), REFUSED)
def test_histories_that_are_refused(play, messages, field, words, stream):
    server, _ = play()
    answer = post(server, messages=messages, tools=TOOLS, stream=stream)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    assert field in error["message"] and words in error["message"], error


BILLING = "x-anthropic-billing-header: cc_version=2.1.330.ed0; cc_entrypoint=sdk-cli; cch=36ee5;"
SYSTEMS = [
    ("You are kind.", "You are kind."),
    ([text("You are kind.")], "You are kind."),
    ([text("You are "), text("kind.", cache_control={"type": "ephemeral"})], "You are kind."),
    ([text(BILLING), text("You are kind.")], "You are kind."),
    (f"{BILLING}\nYou are kind.", "You are kind."),
    (f"{BILLING}You are kind.", "You are kind."),
    ([text(f"{BILLING} You are kind.")], "You are kind."),
    (f"You are kind.\n{BILLING}", f"You are kind.\n{BILLING}"),
    (BILLING, None),
    ([text(BILLING)], None),
    ([], None),
]


@pytest.mark.parametrize(("system", "expected"), SYSTEMS)
def test_system_prompts_lose_the_attribution_line(rendered, system, expected):
    head = "" if expected is None else said("developer", f"# Instructions\n\n{expected}")
    assert rendered([USER], system=system) == head + said("user", "Hi")
    if expected is not None:
        inline = [USER, {"role": "system", "content": system}]
        assert rendered(inline) == said("user", "Hi") + head
    assert rendered([USER], system=BILLING) == rendered([USER])


def test_other_texts_keep_that_line(rendered):
    messages = [user(text(BILLING)), assistant(text(BILLING), use()), user(result(content=BILLING))]
    assert rendered(messages).count(BILLING) == 3


def test_new_fields_and_versions_are_counted_and_logged_once(serve, caplog):
    caplog.set_level("INFO")
    server = serve()
    for _ in range(3):
        whole(server, system=BILLING, safeguards=[], context_management={}, brand_new={"a": 1}, **{"a b": 1})
    noted = [record.fields for record in caplog.records if record.name.endswith("anthropic.news")]
    known = [one for one in noted if "field" in one], [one for one in noted if "version" in one]
    assert known == ([{"field": "brand_new"}], [{"version": "2.1.330", "entrypoint": "sdk-cli"}])
    metrics = httpx.get(f"{server.url}/metrics").text
    assert re.search(r'eyas:unknown_message_fields_total{[^}]*field="brand_new"[^}]*} 3', metrics)
    assert re.search(r'eyas:claude_code_requests_total{[^}]*entrypoint="sdk-cli"[^}]*version="2.1.330"} 3', metrics)


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({}, "medium"),
        ({"thinking": {"type": "adaptive"}}, "medium"),
        ({"thinking": {"type": "newer", "budget_tokens": 5}}, "medium"),
        ({"thinking": {"type": "disabled"}}, "low"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, "low"),
        *(({"output_config": {"effort": one}}, one) for one in ("low", "medium", "high")),
        *(({"output_config": {"effort": one}}, "high") for one in ("xhigh", "max")),
        ({"output_config": {"effort": None}}, "medium"),
        ({"messages": [USER | {"output_config": {"effort": "max"}}]}, "medium"),
    ],
)
def test_effort(play, codec, fields, effort):
    server, script = play()
    whole(server, **fields)
    assert f"Reasoning: {effort}\n" in codec.decode(script.requests[-1].prompt_ids)


def test_names_of_new_fields_may_be_anything(play):
    """A field that is not known is skipped, not read."""
    server, _ = play()
    body = b'{"model": "claude", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], "\xed\xa0\x80": 1}'
    answer = httpx.post(f"{server.url}/v1/messages", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200

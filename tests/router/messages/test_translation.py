"""Chat requests for messages: fields, what is asked again after a refusal, errors, conversations of any shape."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.support.anthropic import CLOCK, USER, WEATHER, Histories
from tests.router.support.session import requests
from tests.router.support.templates import rendered

from eyas.base.errors import InvalidRequest
from eyas.gateway.anthropic.errors import ERRORS
from eyas.router.messages.translation import Translation

VLLM = (
    "This model's maximum context length is {context} tokens. However, you requested {asked} output tokens and your "
    "prompt contains {prompt} input tokens, for a total of {total} tokens. Please reduce the length of the prompt."
)
VLLM_TOO_LARGE = (
    "'max_tokens' or 'max_completion_tokens' is too large: {asked}. This model's maximum context length is {context} "
    "tokens and your request has {prompt} input tokens ({asked} > {context} - {prompt})."
)
VLLM_OLD = (
    "This model's maximum context length is {context} tokens. However, you requested {total} tokens ({prompt} in the "
    "messages, {asked} in the completion). Please reduce the length of the messages or completion."
)
VLLM_PROMPT = "The decoder prompt (length {prompt}) is longer than the maximum model length of {context}."
VLLM_AT_LEAST = VLLM.replace("contains", "contains at least")
SGLANG = (
    "Requested token count exceeds the model's maximum context length of {context} tokens. You requested a total of "
    "{total} tokens: {prompt} tokens from the input messages and {asked} tokens for the completion. Please reduce it."
)
SGLANG_PROMPT = "The input ({prompt} tokens) is longer than the model's context length ({context} tokens)."
LLAMA = "request ({prompt} tokens) exceeds the available context size ({context} tokens), try increasing it"
TENSORRT = "The sum of prompt length ({prompt}.0), query length (0) should not exceed max_num_tokens ({context})"
# (error, tokens of the prompt, of the context)
TOO_LONG = [
    ({"error": {"message": VLLM, "type": "BadRequestError", "param": None, "code": 400}}, 5000, 8192),
    ({"object": "error", "message": VLLM, "type": "BadRequestError", "code": 400}, 5000, 8192),
    ({"error": {"message": VLLM_TOO_LARGE}}, 5000, 8192),
    ({"message": VLLM_OLD}, 5000, 8192),
    ({"error": {"message": VLLM}}, 9000, 8192),
    ({"error": {"message": VLLM_PROMPT}}, 9000, 8192),
    ({"error": {"message": VLLM_AT_LEAST}}, 8193, 8192),
    ({"object": "error", "message": SGLANG}, 5000, 8192),
    ({"message": SGLANG_PROMPT}, 9000, 8192),
    ({"error": {"code": 400, "type": "exceed_context_size_error", "message": LLAMA, "n_ctx": 8192}}, 9000, 8192),
    ({"object": "error", "message": TENSORRT}, 72417, 69632),
]


def translation(**fields) -> Translation:
    return Translation.of(json.dumps({"model": "claude-x", "messages": [USER], "max_tokens": 32_000} | fields).encode())


def chat(**fields) -> dict:
    return json.loads(translation(**fields).request("m"))


def filled(value, **numbers):
    if isinstance(value, dict):
        return {name: filled(inner, **numbers) for name, inner in value.items()}
    return value.format(**numbers) if isinstance(value, str) else value


def test_fields():
    body = chat(
        tools=[WEATHER | {"strict": True}, CLOCK],
        tool_choice={"type": "tool", "name": "clock", "disable_parallel_tool_use": True},
        temperature=0.5, top_k=3, stop_sequences=["x"], metadata={"user_id": "someone"}, thinking={"type": "disabled"},
    )  # fmt: skip
    assert body.pop("messages") == [USER]
    assert [tool["function"]["name"] for tool in body.pop("tools")] == ["clock"], "of a named one there is no other"
    assert body == {
        "model": "m",
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 32_000,
        "temperature": 0.5,
        "top_k": 3,
        "reasoning_effort": "low",
        "stream": False,
    }
    plain = chat(stream=True)
    assert set(plain) == {"model", "messages", "max_tokens", "stream", "stream_options"}
    assert "model" not in json.loads(translation().request())
    assert chat(output_config={"effort": "max"})["reasoning_effort"] == "high"
    both = chat(tools=[WEATHER | {"strict": True}, CLOCK], tool_choice={"type": "any"})
    assert [tool["function"].get("strict") for tool in both["tools"]] == [True, None]
    assert both["tool_choice"] == "required"
    assert "tools" not in chat(tools=[CLOCK], tool_choice={"type": "none"})


def test_the_format_of_the_answer_is_asked_for_and_shown():
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    body = chat(system="Be brief.", output_config={"format": {"type": "json_schema", "schema": schema}})
    assert body["response_format"]["json_schema"]["schema"] == schema
    told = body["messages"][0]["content"]
    assert told.startswith("Be brief.\n\n# Response Formats") and '"title"' in told


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [CLOCK], "tool_choice": {"type": "tool", "name": "clok"}},
        {"tool_choice": {"type": "any"}},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"max_tokens": 0},
        {"messages": []},
    ],
)
def test_bad_input_is_refused_before_a_backend_is_asked(fields):
    with pytest.raises(InvalidRequest) as error:
        translation(**fields)
    assert error.value.param


def test_system_messages_stay_where_they_are():
    system = {"role": "system", "content": "The date."}
    answer = {"role": "assistant", "content": "Hello."}
    assert chat(messages=[system, USER])["messages"][0] == system
    both = chat(system="Rules.", messages=[system, USER])["messages"]
    assert both[0] == {"role": "system", "content": "Rules.\n\nThe date."}
    late = chat(messages=[USER, answer, system, USER])["messages"]
    assert [one["role"] for one in late] == ["user", "assistant", "user", "user"]
    assert late[2]["content"] == "<system-reminder>\nThe date.\n</system-reminder>"


def test_thoughts_that_led_to_nothing_are_left_out_and_words_are_not():
    thought = {"type": "thinking", "thinking": "Hm.", "signature": ""}
    said = {"type": "text", "text": "Wait."}
    assert [
        one["role"] for one in chat(messages=[USER, {"role": "assistant", "content": [thought]}, USER])["messages"]
    ] == [
        "user",
        "user",
    ]
    (_, kept, _) = chat(messages=[USER, {"role": "assistant", "content": [said, thought]}, USER])["messages"]
    assert kept["content"] == "Wait." and kept["reasoning_content"] == "Hm."


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_conversation_can_be_rendered(seed):
    """The template raises for what gpt-oss's own refuses."""
    one = Translation.of(json.dumps(Histories(seed).body() | {"model": "claude-any"}).encode())
    first = one.request("m")
    assert one.request("m") == first
    text = rendered(json.loads(first))
    assert text.count("<|start|>") == text.count("<|end|>") + text.count("<|call|>") + 1


def test_a_result_belongs_to_the_call_before_it_where_an_id_comes_again():
    messages: list[dict] = [USER]
    for number in (1, 2):
        used = {"type": "tool_use", "id": "call_0", "name": "clock", "input": {"number": number}}
        result = {"type": "tool_result", "tool_use_id": "call_0", "content": f"result {number}"}
        messages += [{"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}]
    found = chat(messages=messages, tools=[CLOCK])["messages"]
    assert [one["content"] for one in found if one["role"] == "tool"] == ["result 1", "result 2"]
    assert [one["role"] for one in found] == ["user", "assistant", "tool", "assistant", "tool"]


def test_defaults_beside_an_enum_are_text():
    """The template of gpt-oss joins them to a text, and fails at a number."""
    plain = {"a": {"enum": ["x"], "default": "x"}, "b": {"type": "integer", "default": 3}, "c": True}
    trap = {"enum": [1, 2], "default": 2}
    schema = {"type": "object", "properties": plain | {"d": trap}}
    (tool,) = chat(tools=[CLOCK | {"input_schema": schema}])["tools"]
    assert tool["function"]["parameters"]["properties"] == plain | {"d": trap | {"default": "2"}}


def test_keys_keep_their_order():
    raw = translation(**requests()[-1]).request("m")
    arguments = b'{\\"limit\\":2,\\"command\\":\\"ls 0 a\\",\\"z\\":1.5,\\"a\\":null}'
    assert arguments in raw and b'{"command":{"type":"string"' in raw


@pytest.mark.parametrize(("body", "prompt", "context"), TOO_LONG)
def test_max_tokens_is_what_fits(body, prompt, context):
    one = translation(stream=True)
    first = json.loads(one.request("m"))
    numbers = {"prompt": prompt, "context": context, "asked": 32_000, "total": prompt + 32_000}
    refusal = msgspec.json.encode(filled(body, **numbers))
    again = one.retry_of(400, refusal)
    if prompt < context:
        assert again is not None
        assert json.loads(again) == first | {"max_tokens": context - prompt - 1}
        assert one.retry_of(400, refusal) is None, "it asks so once"
        assert json.loads(one.request("m"))["max_tokens"] == 32_000, "another backend may have room"
    else:
        assert again is None
        failure = one.error(400, refusal)
        error = json.loads(ERRORS.body(failure))["error"]
        assert ERRORS.head(failure)[0] == 400 and error["type"] == "invalid_request_error"
        assert error["message"] == f"prompt is too long: {prompt} tokens > {context} maximum"


def test_an_effort_that_a_model_does_not_have_is_taken_back():
    one = translation(output_config={"effort": "high"})
    first = json.loads(one.request("m"))
    refusal = b'{"error":{"message":"\\"llama3\\" does not support thinking","type":"api_error"}}'
    again = one.retry_of(400, refusal)
    assert again is not None and json.loads(again) == {k: v for k, v in first.items() if k != "reasoning_effort"}
    assert one.retry_of(400, refusal) is None


@pytest.mark.parametrize(
    ("status", "body"), [(500, b'{"message":"maximum context length is 9"}'), (400, b"<html>"), (400, b"[]")]
)
def test_other_refusals_are_not_tried_again(status, body):
    one = translation(output_config={"effort": "high"})
    one.request("m")
    assert one.retry_of(status, body) is None


@pytest.mark.parametrize(
    ("status", "body", "kind", "text"),
    [
        (400, b'{"error":{"message":"bad image"}}', "invalid_request_error", "bad image"),
        (422, b'{"detail":[{"loc":["body"],"msg":"no"}]}', "invalid_request_error", '[{"loc":["body"],"msg":"no"}]'),
        (404, b'{"error":"model \'x\' not found"}', "not_found_error", "model 'x' not found"),
        (403, b'{"error":{"message":"not allowed"}}', "permission_error", "not allowed"),
        (500, b"<html>no</html>", "api_error", "gave no reason"),
        (429, b'{"error":{"message":"busy"}}', "rate_limit_error", "busy"),
        (503, b'{"error":{"message":"loading"}}', "overloaded_error", "loading"),
    ],
)
def test_errors_have_the_envelope_of_the_client(status, body, kind, text):
    failure = translation().error(status, body)
    error = json.loads(ERRORS.body(failure))["error"]
    assert error["type"] == kind and text in error["message"]

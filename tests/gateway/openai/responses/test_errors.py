"""What `/v1/responses` refuses, by the field's name; and what clients see when the engine fails."""

import openai
import pytest
from tests.gateway.support.gateway import reply_ids
from tests.gateway.support.responses import WEATHER, check_events, fold, post, raw_events

from eyas.base.types import FinishReason, TokenEvent

USER = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "json_schema", "name": "a", "schema": {"type": "object"}}

REFUSED = {  # what is changed in a good body: the field that the error names
    "unknown field": ({"inputs": "Hi"}, "inputs"),
    "no input": ({"input": None}, "input"),
    "empty input": ({"input": []}, "input"),
    "input of another type": ({"input": 5}, "input"),
    "background": ({"background": True}, "background"),
    "conversation": ({"conversation": "conv_1"}, "conversation"),
    "prompt template": ({"prompt": {"id": "p"}}, "prompt"),
    "max_tool_calls": ({"max_tool_calls": 1}, "max_tool_calls"),
    "context management": ({"context_management": [{"type": "compaction"}]}, "context_management"),
    "n": ({"n": 2}, "n"),
    "service tier": ({"service_tier": "turbo"}, "service_tier"),
    "verbosity": ({"text": {"verbosity": "low"}}, "text.verbosity"),
    "effort": ({"reasoning": {"effort": "xhigh"}}, "reasoning.effort"),
    "summary": ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
    "include": ({"include": ["file_search_call.results"]}, "include[0]"),
    "top_logprobs alone": ({"top_logprobs": 2}, "top_logprobs"),
    "top_logprobs range": ({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
    "stream options without stream": ({"stream_options": {}}, "stream_options"),
    "obfuscation": (
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        "stream_options.include_obfuscation",
    ),
    "usage option of chat": (
        {"stream": True, "stream_options": {"include_usage": True}},
        "stream_options.include_usage",
    ),
    "beam search": ({"use_beam_search": True}, "use_beam_search"),
    "temperature": ({"temperature": -1}, "temperature"),
    "max_output_tokens": ({"max_output_tokens": 0}, "max_output_tokens"),
    "truncation": ({"truncation": "middle"}, "truncation"),
    "metadata": ({"metadata": {"a": 5}}, "metadata[...]"),
    "too much metadata": ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
    "built-in tool": ({"tools": [WEATHER, {"type": "web_search"}]}, "tools[1].type"),
    "custom tool": ({"tools": [{"type": "custom", "name": "x"}]}, "tools[0].type"),
    "tool field": ({"tools": [{**WEATHER, "paramters": {}}]}, "tools[0].paramters"),
    "tool name": ({"tools": [{**WEATHER, "name": "a b"}]}, "tools[0].name"),
    "two tools of a name": ({"tools": [WEATHER, WEATHER]}, "tools"),
    "choice without tools": ({"tool_choice": "required"}, "tool_choice"),
    "choice of a stranger": ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
    "allowed stranger": (
        {
            "tools": [WEATHER],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "x"}]},
        },
        "tool_choice.tools[0].name",
    ),
    "strict tool's schema": (
        {"tools": [{**WEATHER, "strict": True, "parameters": {"properties": {"a": {"not": {}}}}}]},
        "tools[0].parameters",
    ),
    "answer's schema": ({"text": {"format": {**SCHEMA, "schema": {"type": "nothing"}}}}, "text.format.schema"),
    "answer's format": ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
    "schema with min_tokens": ({"text": {"format": SCHEMA}, "min_tokens": 3}, "min_tokens"),
    "item type": ({"input": [{"type": "computer_call"}]}, "input[0].type"),
    "item field": ({"input": [USER, {**USER, "contnet": ""}]}, "input[1].contnet"),
    "item without content": ({"input": [{"role": "user"}]}, "input[0].content"),
    "role": ({"input": [{"role": "tool", "content": ""}]}, "input[0].role"),
    "image": (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input[0].content[0]",
    ),
    "output part of a user": (
        {"input": [{"role": "user", "content": [{"type": "output_text", "text": ""}]}]},
        "input[0].content[0].type",
    ),
    "encrypted reasoning given": (
        {"input": [{"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"}, USER]},
        "input[0].encrypted_content",
    ),
    "reasoning with a summary only": (
        {"input": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]}, USER]},
        "input[0].summary",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(scripted, name):
    change, param = REFUSED[name]
    answer = post(scripted[0], **({"model": "stub", "input": "Hi"} | change))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["type"]) == (400, param, "invalid_request_error"), error
    assert error["message"]


def test_other_models_and_missing_input(scripted):
    client = scripted[0].client
    with pytest.raises(openai.NotFoundError, match="does not exist") as caught:
        client.responses.create(model="gpt-9", input="Hi")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="'input' is missing"):
        client.responses.create(model="stub")


def test_a_prompt_that_is_too_long_names_both_numbers(scripted):
    with pytest.raises(openai.BadRequestError, match=r"2000 tokens.*\d{4} tokens in its input") as caught:
        scripted[0].client.responses.create(model="stub", input="a" * 4000)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/resp_x", 404),
        ("/resp_x/input_items", 404),
        ("/{id}?stream=true", 400),
        ("/{id}?include[]=message.output_text.logprobs", 400),
        ("/{id}/input_items?limit=0", 400),
        ("/{id}/input_items?limit=x", 400),
        ("/{id}/input_items?order=up", 400),
        ("/{id}/input_items?after=msg_x", 400),
        ("/{id}/input_items?before=x", 400),
    ],
)
def test_lookups_are_checked(play, path, status):
    import httpx

    server, _ = play()
    response_id = server.client.responses.create(model="stub", input="Hi").id
    answer = httpx.get(f"{server.url}/v1/responses{path.format(id=response_id)}")
    assert answer.status_code == status and answer.json()["error"]["message"]


def test_a_finished_response_cannot_be_cancelled(play):
    server, _ = play()
    response = server.client.responses.create(model="stub", input="Hi")
    with pytest.raises(openai.BadRequestError, match="is completed"):
        server.client.responses.cancel(response.id)
    with pytest.raises(openai.NotFoundError):
        server.client.responses.cancel("resp_x")


class Failing:
    """Ends each request after a few tokens as an engine does that fails, or that finds what it cannot do."""

    def __init__(self, engine, codec, finish):
        self._engine, self._finish = engine, finish
        self._ids = tuple(reply_ids(codec)[:20])

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def submit(self, request, deliver):
        def event(ids, finish=None):
            error = "the engine died" if finish else None
            return TokenEvent(request_id=request.request_id, choice=0, token_ids=ids, finish=finish, error=error)

        deliver(event(self._ids))
        deliver(event((), self._finish))


@pytest.mark.parametrize(
    ("finish", "status", "code"),
    [(FinishReason.ERROR, 500, "server_error"), (FinishReason.INVALID, 400, "invalid_prompt")],
)
def test_a_failing_engine(serve, codec, finish, status, code):
    server = serve(wrap=lambda engine: Failing(engine, codec, finish))
    whole = post(server, input="Hi")
    assert (whole.status_code, whole.json()["error"]["message"]) == (status, "the engine died")
    events = raw_events(server, input="Hi")
    last = events[-1]
    assert last["type"] == "response.failed" and last["response"]["error"] == {
        "code": code,
        "message": "the engine died",
    }
    assert [item["type"] for item in fold(events[:-1])] == ["reasoning"]
    check_events(events)
    response_id = last["response"]["id"]
    assert server.client.responses.retrieve(response_id).status == "failed"
    with pytest.raises(openai.BadRequestError, match="is failed"):
        server.client.responses.create(model="stub", input="Hi", previous_response_id=response_id)

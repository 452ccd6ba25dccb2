"""What goes wrong is said in OpenAI's envelope, with the field's name; nothing keeps running for nobody."""

import http.client
import json

import httpx
import openai
import pytest
from tests.gateway.support.gateway import eventually, reply_ids

from eyas.base.errors import Busy
from eyas.base.types import FinishReason, TokenEvent
from eyas.gateway.server.hosts import Hosts


def refused(server, **fields):
    body = {"model": "stub", "messages": [{"role": "user", "content": "Hi"}]} | fields
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body)
    return answer.status_code, answer.json()["error"]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"temprature": 1}, "temprature", "did you mean 'temperature'?"),
        ({"best_of": 2}, "best_of", "unknown field"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
        ({"audio": {"voice": "ash"}}, "audio", "not supported"),
        ({"stream": True, "stream_options": {"include_usag": True}}, "stream_options.include_usag", "include_usage"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream=true"),
        ({"messages": []}, "messages", "length"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", "wizard"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "missing"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
        ({"messages": [{"role": "user", "content": "x", "contnt": "y"}]}, "messages[0].contnt", "'content'"),
        ({"messages": [{"role": "user", "content": "x", "name": "a b"}]}, "messages[0].name", "regex"),
        ({"seed": "one"}, "seed", "int"),
        ({"temperature": -1}, "temperature", "between 0 and 100"),
        ({"top_p": 0}, "top_p", "above 0"),
        ({"n": 99}, "n", "between 1 and 16"),
        ({"max_tokens": 0}, "max_tokens", "1 or more"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "the same limit"),
        ({"top_logprobs": 3}, "top_logprobs", "logprobs=true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "between 0 and 20"),
        ({"stop": ""}, "stop", "1 to 256"),
        ({"stop": ["x"] * 17}, "stop", "at most 16"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "int"),
        ({"reasoning_effort": "huge"}, "reasoning_effort", "huge"),
    ],
)
def test_a_bad_field_is_named(server, fields, param, words):
    status, error = refused(server, **fields)
    assert status == 400 and error["type"] == "invalid_request_error"
    assert error["param"].startswith(param) and words in error["message"], error


def test_null_is_not_given(serve):
    null = dict.fromkeys(["tools", "stop", "temperature", "logit_bias", "max_tokens", "stream", "metadata"])
    assert serve().chat(extra_body=null).choices[0].finish_reason == "stop"


def test_prompt_too_long_names_both_numbers(serve):
    words = r"maximum context length is 600 tokens, and the request has \d{4} tokens"
    with pytest.raises(openai.BadRequestError, match=words):
        serve().chat("x" * 1000)


@pytest.mark.parametrize("raw", [b"{", b"", b"\xff", b"[]", b'{"messages": 1}'])
def test_a_body_that_is_no_request(serve, raw):
    answer = httpx.post(f"{serve().url}/v1/chat/completions", content=raw, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and answer.json()["error"]["message"]


def test_a_body_that_is_too_large(serve):
    answer = httpx.post(f"{serve().url}/v1/chat/completions", content=b" " * (16 * 2**20 + 1))
    assert answer.status_code == 413 and "16.0 MiB" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses"])
def test_a_body_that_is_declared_as_something_else(server, path):
    """curl's default; and pages of other sites could send it without asking."""
    answer = httpx.post(f"{server.url}/v1/{path}", data={"a": "b"})
    assert answer.status_code == 415 and "Content-Type: application/json" in answer.json()["error"]["message"]
    answer = httpx.post(f"{server.url}/v1/{path}", content=b"{}")  # a page's Blob has no type
    assert answer.status_code == 415 and "this has none" in answer.json()["error"]["message"]
    kind = {"content-type": "Application/JSON; charset=utf-8"}
    assert httpx.post(f"{server.url}/v1/{path}", content=b"{}", headers=kind).status_code == 400


def test_unknown_path_and_method(serve):
    url = serve(gateway={"hosts": Hosts(names=("elsewhere.example",))}).url
    assert "GET /v1/chat/complet" in httpx.get(f"{url}/v1/chat/complet").json()["error"]["message"]
    assert httpx.get(f"{url}/v1/chat/completions").status_code == 405
    answer = httpx.get(f"{url}/v1/models/", headers={"host": "elsewhere.example"})  # not sent there
    assert answer.status_code == 404
    answer = httpx.get(f"{url}/health/")
    assert answer.status_code == 404 and "GET /health/" in answer.json()["error"]["message"]


def test_errors_quote_little_of_what_was_sent(server):
    long = "x" * 100_000
    for fields in ({long: 1}, {"model": long}, {"reasoning_effort": long}, {"metadata": {"a": long}}):
        status, error = refused(server, **fields)
        assert status in (400, 404) and len(json.dumps(error)) < 1000


def test_health_ready_models(serve):
    server = serve()
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
    assert httpx.get(f"{server.url}/ready").json()["drafter"] == "eagle3"
    assert [model.id for model in server.client.models.list()] == ["stub", "claude-stub"]
    assert server.client.models.retrieve("stub").max_model_len == 600
    with pytest.raises(openai.NotFoundError, match="this server has 'stub'"):
        server.client.models.retrieve("other/model")


def test_an_engine_that_failed_is_alive_and_not_ready(serve):
    server = serve()
    server.engine.failure = "the engine failed: out of memory"
    assert httpx.get(f"{server.url}/health").status_code == 200
    answer = httpx.get(f"{server.url}/ready")
    assert answer.status_code == 503 and answer.json()["error"] == "the engine failed: out of memory"


def test_busy_is_429_with_retry_after(serve):
    server = serve()

    def submit(request, deliver):
        raise Busy("the queue is full; try again later")

    server.engine.submit = submit
    with pytest.raises(openai.RateLimitError) as caught:
        server.chat()
    assert caught.value.response.headers["retry-after"] == "1" and "queue is full" in str(caught.value)


def test_a_bug_of_ours_is_500_and_keeps_its_details_in_the_log(serve, caplog):
    server = serve()

    def submit(request, deliver):
        raise RuntimeError("secret")

    server.engine.submit = submit
    with pytest.raises(openai.InternalServerError, match="internal error") as caught:
        server.chat()
    assert "secret" not in str(caught.value)
    assert eventually(lambda: "secret" in caplog.text)


def test_an_engine_that_fails_half_way(serve):
    server = serve()

    def submit(request, deliver):
        deliver(TokenEvent(request_id=request.request_id, choice=0, token_ids=(40,)))
        deliver(
            TokenEvent(
                request_id=request.request_id, choice=0, token_ids=(), finish=FinishReason.ERROR, error="out of pages"
            )
        )

    server.engine.submit = submit
    with pytest.raises(openai.InternalServerError, match="out of pages"):
        server.chat()
    with pytest.raises(openai.APIError, match="out of pages"):
        list(server.chat(stream=True))


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_the_engine(serve, codec, stream):
    server = serve(lambda request, choice: reply_ids(codec, content="go " * 150), round_s=0.05)
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": stream}
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    if stream:
        assert connection.getresponse().read(10)
    assert eventually(lambda: server.engine.stats().num_running == 1)
    before = server.engine.stats().num_generated_tokens
    connection.sock.close() if connection.sock else None
    connection.close()
    assert eventually(lambda: server.engine.stats().num_running == 0, seconds=1.5)
    assert server.engine.stats().num_generated_tokens - before < 100


def test_shutdown_ends_a_running_stream(serve, codec):
    server = serve(lambda request, choice: reply_ids(codec, content="go " * 150), round_s=0.05)
    stream = server.chat(stream=True)
    assert next(stream).choices
    server.engine.close()
    with pytest.raises(openai.APIError, match="stopping"):
        list(stream)

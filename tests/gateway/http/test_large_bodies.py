"""One large body, wherever its size is, costs no more than one that fits: counted in what is read, made and kept."""

import asyncio
import gc
import json
import tracemalloc

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from tests.gateway.support.gateway import CONTEXT, eventually

from eyas.base.errors import InvalidRequest
from eyas.base.harmony.rendering import Message, render_conversation
from eyas.base.tokens import cuts
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.engine.ports.stub import StubEngine
from eyas.gateway.http import body as body_module
from eyas.gateway.http.body import MAX_CONTAINERS, MAX_VALUES, decode
from eyas.gateway.openai.completions.routes import CompletionsBody
from eyas.gateway.question.prompt import render_newest
from eyas.gateway.question.prompt_limit import COUNTED_ON
from eyas.gateway.server.context import Context, GatewayOptions
from eyas.gateway.server.steps import StepHub

SIZE = 1_000_000
USER = {"role": "user", "content": "Hi"}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "x"}
# Where the text goes: the route, the body around it, and what the error blames.
PLACES = {
    "chat": ("/v1/chat/completions", lambda text: {"messages": [{"role": "user", "content": text}]}, "messages"),
    "chat, last": ("/v1/chat/completions", lambda text: {"messages": [USER, USER | {"content": text}]}, "messages"),
    "description": (
        "/v1/chat/completions",
        lambda text: {
            "messages": [USER],
            "tools": [{"type": "function", "function": {"name": "f", "description": text}}],
        },
        "messages",
    ),
    "completions": ("/v1/completions", lambda text: {"prompt": text}, "prompt"),
    "second prompt": ("/v1/completions", lambda text: {"prompt": ["a", text]}, "prompt"),
    "token ids": ("/v1/completions", lambda text: {"prompt": [5] * (len(text) // 10)}, "prompt"),
    "responses": ("/v1/responses", lambda text: {"input": text}, "input"),
    "instructions": ("/v1/responses", lambda text: {"input": "Hi", "instructions": text}, "input"),
    "call": ("/v1/responses", lambda text: {"input": [CALL | {"arguments": text}, OUTPUT]}, "input"),
    "last turn": (
        "/v1/responses",
        lambda text: {"input": [USER, USER | {"content": text}], "truncation": "auto"},
        "input",
    ),
}
UNITS = {"digits": "7", "words": "ab, ", "special": "<|start|>", "run": "a", "lines": "\n", "wide": "\U0001f985 "}


@pytest.fixture
def num_encoded(monkeypatch):
    """Characters that the tokenizers library was given, text by text."""
    seen, encode = [], Tokenizer._encode_piece
    monkeypatch.setattr(Tokenizer, "_encode_piece", lambda self, text: seen.append(len(text)) or encode(self, text))
    return seen


@pytest.mark.parametrize(
    ("place", "unit"),
    [*((place, "digits") for place in PLACES), *((place, unit) for place in ("chat", "completions") for unit in UNITS)],
)
def test_a_text_is_read_as_far_as_the_context(server, num_encoded, place, unit):
    path, body, param = PLACES[place]
    answer = httpx.post(server.url + path, json=body(UNITS[unit] * (SIZE // len(UNITS[unit]))))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", param), error
    assert sum(num_encoded) <= CONTEXT + COUNTED_ON + cuts.PIECE


def test_what_is_said_of_the_length_is_true(server, codec):
    def told(text):
        answer = httpx.post(f"{server.url}/v1/completions", json={"prompt": text})
        return answer.json()["error"]["message"].partition("the request has ")[2].partition(" tokens")[0]

    for number in (CONTEXT, CONTEXT + COUNTED_ON):
        assert told("7 " * (number // 2)) == str(number) == str(len(codec.encode("7 " * (number // 2))))
    words, number = told("7 " * 20_000).rsplit(" ", 1)
    assert words == "at least" and CONTEXT < int(number) <= 40_000


def test_tokenize_counts_texts_beyond_the_context(server, codec, num_encoded, monkeypatch):
    post = lambda text: httpx.post(f"{server.url}/tokenize", json={"prompt": text}).json()  # noqa: E731
    text = "ab cd, " * 50_000 + "<|start|>"
    ids = [*codec._inner.encode(text[:-9]).ids, codec.special["<|start|>"]]
    assert (told := post(text))["count"] == len(ids) > 100 * CONTEXT and told["tokens"] == ids
    num_encoded.clear()
    monkeypatch.setattr("eyas.gateway.question.prompt_limit.MAX_TOKENS", 40_000)
    error = post(text)["error"]
    assert "at least" in error["message"] and "40000" in error["message"] and error["param"] == "prompt"
    assert sum(num_encoded) < 40_000 * 3 + cuts.PIECE


def test_detokenize_gives_no_more_than_a_body(serve, codec):
    server = serve(gateway={"max_body": 4096})
    post = lambda num: httpx.post(f"{server.url}/detokenize", json={"tokens": [codec.special["<|start|>"]] * num})  # noqa: E731
    assert len(post(4096 // 9).json()["prompt"]) == 4095
    answer = post(4096 // 9 + 1)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "tokens"


def test_prompts_of_one_request_have_a_bound_together(server, monkeypatch):
    monkeypatch.setattr("eyas.gateway.openai.completions.routes.MAX_TOKENS", 1000)
    post = lambda *prompts: httpx.post(f"{server.url}/v1/completions", json={"prompt": prompts, "max_tokens": 1})  # noqa: E731
    assert post([5] * 500, "7" * 500).status_code == 200
    assert "1000 tokens together" in post([5] * 500, "7" * 501).json()["error"]["message"]


@pytest.mark.parametrize(
    ("field", "value"), [("choice", ["x" * 60_000] * 2), ("regex", "x" * 100_001), ("grammar", "x" * 100_001)]
)
def test_structured_outputs_are_measured_before_a_grammar_is_made(server, field, value):
    answer = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", "structured_outputs": {field: value}})
    assert answer.status_code == 400 and "100000 characters" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "values",
    [
        b"1," * (MAX_VALUES + 1) + b"1",
        b"[]," * MAX_CONTAINERS + b"1",  # the lists and objects around it count, too
        b'{"a":"[{\\",\\\\"},' * MAX_CONTAINERS + b"1",
        b"[" * MAX_CONTAINERS,
    ],
    ids=["values", "lists", "objects", "nested"],
)
def test_a_body_has_so_many_values(values):
    with pytest.raises(InvalidRequest) as caught:
        decode(b'{"prompt":[%b]}' % values, CompletionsBody)
    assert "the limit is 524288, and 131072" in str(caught.value)


SIGNS = st.text('a,[{"\\', max_size=4)
JSON = st.recursive(st.none() | SIGNS, lambda inner: st.lists(inner) | st.dictionaries(SIGNS, inner))


@settings(max_examples=50)
@given(value=JSON, window=st.integers(1, 9))
def test_values_are_counted_outside_of_strings(value, window):
    """Never more than there are: commas and opening brackets of the document as Python reads it."""

    def count(value) -> tuple[int, int]:
        inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
        if inner is None:
            return 0, 0
        counts = [count(one) for one in inner]
        return sum(a for a, _ in counts) + max(len(inner) - 1, 0), sum(b for _, b in counts) + 1

    num_values, num_containers = count(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_module, "WINDOW", window)
        patch.setattr(body_module, "MAX_VALUES", num_values)
        patch.setattr(body_module, "MAX_CONTAINERS", num_containers)
        body_module.check_extent(json.dumps(value).encode())
        patch.setattr(body_module, "MAX_CONTAINERS", num_containers - 1)
        if num_containers:
            with pytest.raises(InvalidRequest, match=f"at least {num_values} values, {num_containers} of them"):
                body_module.check_extent(json.dumps(value).encode())


def test_nothing_of_a_refused_body_is_kept(serve):
    """Not until the garbage collector comes by, which it may not for minutes."""
    server, bodies = serve(), [("7" * SIZE, "chat/completions"), ("<|start|>" * (SIZE // 9), "completions")]
    fields = [{"messages": [USER | {"content": text}]} if "chat" in path else {"prompt": text} for text, path in bodies]
    contents = [json.dumps(one).encode() for one in fields]
    with httpx.Client(base_url=f"{server.url}/v1/", headers={"content-type": "application/json"}) as client:
        send = lambda: [client.post(path, content=raw) for raw, (_, path) in zip(contents, bodies, strict=True)]  # noqa: E731
        send()
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(4):
                assert [answer.status_code for answer in send()] == [400, 400]
            assert eventually(lambda: tracemalloc.get_traced_memory()[0] - before < SIZE / 4)
        finally:
            tracemalloc.stop()
            gc.enable()


def test_a_body_is_let_go_before_its_answer_begins(codec):
    """What is made of it goes on alone: an answer may take minutes."""

    async def run() -> int:
        engine = StubEngine(server_info(codec), lambda request, choice: [])
        context = context_of(engine, codec)
        raw = json.dumps({"prompt": "x" * 200_000}).encode()

        parts = [{"type": "http.request", "body": raw, "more_body": False}]

        async def receive() -> dict:
            return parts.pop() if parts else await asyncio.get_running_loop().create_future()

        http = Request({"type": "http", "headers": [(b"content-type", b"application/json")]}, receive)
        free = context.intake.num_free
        seen = await context.read(http, lambda body: (len(body), free - context.intake.num_free))
        engine.close()
        assert seen == (len(raw), len(raw)) and context.intake.num_free == free

    asyncio.run(run())


def server_info(codec):
    from eyas.base.harmony.rendering import stop_ids
    from eyas.base.types import ModelInfo

    return ModelInfo(name="m", context=CONTEXT, vocab_size=codec.vocab_size, eos_ids=stop_ids(codec), drafter="none")


def context_of(engine, codec) -> Context:
    return Context(engine=engine, codec=codec, options=GatewayOptions(), steps=StepHub(engine))


def cut_whole(codec, head, conversation, limit):
    """What `render_newest` is to come to, from the ids of everything."""
    ids = render_conversation(codec, [*head, *conversation])
    start, user = codec.special["<|start|>"], [*codec.encode("user"), codec.special["<|message|>"]]
    begins = [at for at, token_id in enumerate(ids) if token_id == start]
    kept = ids[: begins[len(head)]]
    turns = [at for at in begins[len(head) :] if ids[at + 1 : at + 1 + len(user)] == user]
    if len(ids) <= limit or not turns:
        return ids
    return kept + ids[next((at for at in turns if len(kept) + len(ids) - at <= limit), turns[-1]) :]


MESSAGES = st.builds(
    lambda kind, size: {
        "user": Message(role="user", content="u " * size),
        "developer": Message(role="developer", content="d " * size),
        "final": Message(role="assistant", channel="final", content="f " * size),
        "analysis": Message(role="assistant", channel="analysis", content="a " * size),
    }[kind],
    st.sampled_from(["user", "user", "developer", "final", "analysis"]),
    st.integers(0, 40),
)


@settings(max_examples=50)
@given(conversation=st.lists(MESSAGES, max_size=12), limit=st.integers(10, 400))
def test_the_newest_turns_are_those_of_the_whole(codec, conversation, limit):
    engine = StubEngine(server_info(codec), lambda request, choice: [])
    head = [Message(role="system", content="s s s")]
    try:
        assert render_newest(context_of(engine, codec), head, conversation, limit=limit, param="input") == cut_whole(
            codec, head, conversation, limit
        )
    finally:
        engine.close()


def test_old_turns_are_read_as_far_as_there_is_room(server, num_encoded):
    items = [USER | {"content": "ab cd, " * 2000}] * 100 + [USER]
    fields = {"input": items, "truncation": "auto", "max_output_tokens": 1}
    answer = httpx.post(f"{server.url}/v1/responses", json=fields)
    assert answer.status_code == 200 and sum(num_encoded) < 2 * 14_000 + 1000

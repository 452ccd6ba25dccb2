"""The demo model behind HTTP: log-probabilities against transformers, bound answers, the same text with drafts."""

import json
import re
import shutil

import openai
import pytest
import torch
from tests.gateway.support.gateway import Server, running
from tests.gateway.support.openai import CLOCK, added_up
from tests.model.support.saved import save_random

from eyas.base.bundled import DEMO
from eyas.base.settings.config import EngineConfig
from eyas.engine.ports.threaded import Engine
from eyas.gateway.app import create_app
from eyas.gateway.server.context import GatewayOptions

TEXT = "The nest of the eagle is on the mountain. What is the capital of France?"


def serving(config: EngineConfig):
    engine = Engine.load(config)
    options = GatewayOptions(served_name="demo", tokenizer_json=DEMO / "tokenizer.json")
    with running(create_app(engine, engine.tokenizer, options), engine) as url:
        yield Server(url, engine, openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60))


@pytest.fixture(scope="module")
def demo():
    # A fixed number: `auto` may rightly not draft at all, on a machine whose cores were busy when it timed its rounds.
    yield from serving(EngineConfig(model="demo", draft="auto", draft_tokens=3, context=1024, device="cpu"))


@pytest.fixture(scope="module")
def plain():
    yield from serving(EngineConfig(model="demo", draft="none", context=1024, device="cpu"))


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """A server of a small random model that transformers made, with the demo's tokenizer, and that model itself."""
    folder = tmp_path_factory.mktemp("random")
    vocab_size = json.loads((DEMO / "config.json").read_text())["vocab_size"]
    oracle = save_random(folder, vocab_size=vocab_size, seed=3)
    shutil.copy(DEMO / "tokenizer.json", folder)
    for server in serving(EngineConfig(model=str(folder), draft="none", context=512, device="cpu")):
        yield server, oracle


def ask(server, text="Hello, who are you?", **fields):
    fields = {"temperature": 0, "max_tokens": 200, "reasoning_effort": "low"} | fields
    return server.client.chat.completions.create(model="demo", messages=[{"role": "user", "content": text}], **fields)


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_a_prompt_scored_as_lm_eval_does_equals_transformers(scored, max_tokens):
    server, oracle = scored
    texts = [TEXT, "Eagles", "one two three four " * 40]
    answer = server.client.completions.create(
        model="demo", prompt=texts, echo=True, logprobs=1, max_tokens=max_tokens, temperature=0
    )
    for choice, text in zip(answer.choices, texts, strict=True):
        ids = server.engine.tokenizer.encode(text)
        with torch.no_grad():
            expected = oracle(torch.tensor([ids])).logits[0].log_softmax(-1)
        chosen = expected[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
        found = choice.logprobs.token_logprobs
        assert found[0] is None and found[1 : len(ids)] == pytest.approx(chosen, abs=2e-4)
        assert len(found) == len(ids) + max_tokens
        tops = choice.logprobs.top_logprobs[1 : len(ids)]
        greedy = [max(top.values()) == logprob for top, logprob in zip(tops, found[1 : len(ids)], strict=True)]
        assert greedy == (expected[:-1].argmax(-1) == torch.tensor(ids[1:])).tolist()


@pytest.mark.slow
def test_drafts_change_no_answer(demo, plain):
    for fields in ({}, {"n": 2, "temperature": 1.0, "seed": 1}):
        one, other = (ask(server, logprobs=True, top_logprobs=2, **fields) for server in (demo, plain))
        assert [choice.message for choice in one.choices] == [choice.message for choice in other.choices]
        assert [choice.logprobs for choice in one.choices] == [choice.logprobs for choice in other.choices]
        assert one.usage.completion_tokens == other.usage.completion_tokens
    assert ask(demo).timings["draft_n_accepted"] > 0 and ask(plain).timings["draft_n"] == 0


def test_a_stream_adds_up_to_the_answer(demo):
    whole, chunks = ask(demo).choices[0], list(ask(demo, stream=True))
    streamed = added_up(chunks)
    assert (streamed["content"], streamed["finish"]) == (whole.message.content, whole.finish_reason)
    assert streamed["reasoning"] == getattr(whole.message, "reasoning", None)


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.mark.slow
def test_a_schema_binds_the_answer_with_and_without_drafts(demo, plain):
    fields = {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}}
    texts = [ask(server, temperature=1, seed=2, **fields).choices[0].message.content for server in (demo, plain)]
    answer = json.loads(texts[0])
    assert texts[0] == texts[1] and list(answer) == ["name", "age", "tags"] and 0 <= answer["age"] <= 99


UNIT = {"properties": {"unit": {"enum": ["m/s", "kn"]}}, "required": ["unit"], "additionalProperties": False}
WIND = {"type": "function", "function": {"name": "wind", "parameters": UNIT}}


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        pytest.param("required", {"wind", "clock"}, marks=pytest.mark.slow),
        ({"type": "function", "function": {"name": "wind"}}, {"wind"}),
    ],
)
def test_a_forced_call(demo, choice, names):
    """The demo model never learned to call; the grammar alone makes it."""
    fields = {"tools": [WIND, CLOCK], "tool_choice": choice, "max_tokens": 400, "temperature": 1, "seed": 0}
    answer = ask(demo, "How is the wind?", **fields)
    (call,) = answer.choices[0].message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert answer.choices[0].finish_reason == "tool_calls" and call.function.name in names
    assert arguments.get("unit") in ("m/s", "kn") if call.function.name == "wind" else arguments == {}
    (streamed,) = added_up(ask(demo, "How is the wind?", stream=True, **fields))["tool_calls"]
    assert (streamed["name"], streamed["arguments"]) == (call.function.name, call.function.arguments)


@pytest.mark.parametrize(
    ("bound", "fits"),
    [
        ({"choice": ["red", "blue"]}, {"red", "blue"}.__contains__),
        ({"regex": "[0-9]{3}-[0-9]{2}"}, lambda t: len(t) == 6),
    ],
)
def test_vllms_structured_outputs(demo, bound, fits):
    answer = ask(demo, max_tokens=400, extra_body={"structured_outputs": bound})
    assert fits(answer.choices[0].message.content)


@pytest.mark.parametrize(
    ("bound", "fits"),
    [
        ({"regex": "[a-f]{4}"}, r"[a-f]{4}"),
        ({"choice": ["red", "blue"]}, "red|blue"),
        ({"json": UNIT | {"type": "object"}}, r'\{\s*"unit"\s*:\s*"(m/s|kn)"\s*\}'),
        ({"grammar": 'start: "x" "y"~1..3'}, "xy{1,3}"),
    ],
)
def test_bound_completions(demo, bound, fits):
    fields = {"max_tokens": 40, "seed": 1, "extra_body": {"structured_outputs": bound}}
    choice = demo.client.completions.create(model="demo", prompt=TEXT, **fields).choices[0]
    assert re.fullmatch(fits, choice.text) and choice.finish_reason == "stop"


def test_only_allowed_tokens_and_no_bad_words(demo):
    tokenizer = demo.engine.tokenizer
    allowed = tokenizer.encode("abc") + [tokenizer.special["<|return|>"]]
    completion = demo.client.completions.create(
        model="demo", prompt=TEXT, max_tokens=20, seed=1, extra_body={"allowed_token_ids": allowed}
    )
    assert set(completion.choices[0].text) <= set("abc")
    free = ask(demo).choices[0].message.content
    word = next(word for word in free.split() if word.isalpha() and len(word) > 2)
    assert word not in ask(demo, extra_body={"bad_words": [word]}).choices[0].message.content.split()

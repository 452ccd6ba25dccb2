"""JSON schemas under speculation: valid JSON by another library, the same tokens with drafts and without."""

import json

import jsonschema_rs
import pytest
from tests.engine.support.exactness import build, run
from tests.engine.support.schemas import SCHEMAS, UNBOUNDED, grammar_of

from eyas.base.harmony.rendering import Message, render_conversation, system_message
from eyas.base.types import FinishReason, Request, SamplingParams

ARMS = {
    "eagle3 K=4": {"drafter": "eagle3", "draft_tokens": 4, "lag": 1},
    "eagle3 auto": {"drafter": "eagle3", "draft_tokens": "auto", "lag": 0},
    "ngram K=4": {"drafter": "ngram", "draft_tokens": 4, "lag": 0},
}


def requests_for(model):
    """Every schema at temperature 0 and 1, every third with room for reasoning."""
    requests = []
    for index, (name, schema) in enumerate(SCHEMAS.items()):
        ask = Message(role="user", content=f"Answer in JSON: {name}.")
        prompt = tuple(render_conversation(model.codec, [system_message(), ask]))
        for temperature in (0, 1):
            params = SamplingParams(
                temperature=temperature,
                seed=index,
                max_tokens=200,
                grammar=grammar_of(schema, with_analysis=index % 3 == 2),
                logprobs=0,
            )
            requests.append(Request(request_id=f"{name} T={temperature}", prompt_ids=prompt, params=params))
    return requests


def body_of(codec, tokens):
    """The text of the final message."""
    last_message = len(tokens) - 1 - tokens[::-1].index(codec.special["<|message|>"])
    assert tokens[-1] == codec.special["<|return|>"]
    return codec.decode(tokens[last_message + 1 : -1])


@pytest.fixture(scope="module", params=["some", pytest.param("all", marks=pytest.mark.slow)])
def asked(request, demo_model):
    """What is asked under each arm, and all answers without speculation.

    Some: every second schema at one temperature, by turns; each arm gets some. `make test-slow` asks everything.
    """
    requests = requests_for(demo_model)
    if request.param == "some":
        requests = [one for index, one in enumerate(requests) if index % 8 in (1, 6)]
        shares = {arm: requests[number::3] for number, arm in enumerate(ARMS)}
    else:
        shares = dict.fromkeys(ARMS, requests)
    return shares, run(build(demo_model, concurrency=8), requests)


@pytest.mark.slow
def test_answers_are_valid(demo_model, asked):
    plain = asked[1]
    assert len(SCHEMAS) == 20 and len({request_id.rpartition(" ")[0] for request_id, _ in plain}) in (10, 20)
    for (request_id, _), (tokens, finish, _) in plain.items():
        if request_id == f"{UNBOUNDED} T=0" and finish is FinishReason.LENGTH:
            continue
        assert finish is FinishReason.STOP, request_id
        schema = SCHEMAS[request_id.rpartition(" ")[0]]
        answer = json.loads(body_of(demo_model.codec, tokens))
        jsonschema_rs.validator_for(schema, validate_formats=True).validate(answer)


@pytest.mark.slow
@pytest.mark.parametrize("arm", ARMS)
def test_speculation_changes_no_token(demo_model, asked, arm):
    shares, plain = asked
    core = build(demo_model, concurrency=8, **ARMS[arm])
    results = run(core, shares[arm])
    assert results and results == {key: plain[key] for key in results}
    stats = core.stats()
    accepted, drafted = stats.num_accepted_tokens, stats.num_draft_tokens
    print(f"{arm}: {stats.num_generated_tokens} tokens, {accepted} of {drafted} drafts accepted")
    assert drafted > accepted > 0

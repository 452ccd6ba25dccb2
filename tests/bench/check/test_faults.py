"""Each fault that engines have had is found, and nothing else of that server is called broken."""

import asyncio

import pytest
from tests.bench.check.support.stub import serving

from eyas.bench.check import watching
from eyas.bench.check.discover import connect, discover
from eyas.bench.check.smoke import CHECKS, smoke_test

EVERY = [check.name for check in CHECKS]
BROKEN = {
    "!!!!": {"garbage": "'!' over and over"},
    "loop": {"garbage": "'and so on it goes, ' over and over"},
    "role": {"chat": "the role of the answer is 'user'"},
    "no [DONE]": {"stream": "without [DONE]"},
    "no finish_reason": {"stream": "no chunk of the stream has a finish_reason"},
    "one chunk": {"stream": "the whole answer came as one chunk"},
    "stream as HTML": {"stream": "a stream was asked for, and text/html came"},
    "wrong totals": {"usage": "in total", "stream usage": "in total"},
    "max_tokens ignored": {"max_tokens": "max_tokens is ignored: "},
    "stop ignored": {"stop": "stop is ignored: the answer goes on past"},
    "errors as HTML": {"errors": "a body that is not JSON is answered with text/html, not JSON"},
    "errors with status 500": {"errors": "HTTP status 500, not 4xx"},
    "errors without an envelope": {"errors": "JSON without a message in `error`"},
    "temperature ignored, greedy": {"sampling": "temperature is ignored: 1.5 answers as 0 does"},
    "temperature ignored, 1": {"sampling": "ignored: temperature"},
    "seed ignored": {"sampling": "ignored: seed"},
    "seed fixed": {"sampling": "ignored: seed"},
    "top_p ignored": {"sampling": "ignored: top_p"},
    "top_k ignored": {"sampling": "ignored: top_k"},
    "reasoning in content": {"reasoning": "the content of an answer has '<think>' in it"},
    "harmony in content": {"reasoning": "the content of an answer has 'assistantfinal' in it"},
    "tools as text": {"tools": "the call comes as text"},
    "arguments are no JSON": {"tools": "the call's arguments are not a JSON object"},
    "tool results lost": {"tools": "the tool's result does not reach the model: 200 words more are 0 tokens more"},
    "tool_choice ignored": {"tool_choice": "ignored: a tool by name, none"},
    "response_format ignored": {"JSON schema": "the schema is ignored"},
    "logprobs positive": {"logprobs": "a token's log-probabilities are none"},
    "500 on long prompts": {"long prompt": "HTTP status 500: CUDA error: an illegal memory access"},
    "long prompts cut": {"long prompt": "is cut in silence: 4,100 of them were read"},
    "all is cached": {"prefix reuse": "tokens are counted as cached of a prompt that is new"},
    "counters stuck": {"counters": "vllm:generation_tokens_total does not move within"},
    "conversations mixed": {"two at once": "have what the other conversation was asked"},
    "slots kept after a cancel": {"cancel": "requests still run 0.5 s after their clients have left; again the same"},
    "responses without output": {"/v1/responses": "its output has neither a message nor reasoning"},
}  # fmt: skip
MISSING = {
    "no usage": {
        "usage": "the answer does not count its tokens", "stream usage": "though stream_options.include_usage asks",
        "prefix reuse": "not seen: no cached tokens are counted",
    },
    "seed refused": {"sampling": "refused with HTTP status 400: seed is not supported"},
    "stream_options refused": {"stream usage": "stream_options is not supported"},
    "reasoning dropped": {"reasoning": "no reasoning comes"},
    "tools refused": {"tools": "refused with HTTP status 400: tools is not supported"},
    "logprobs refused": {"logprobs": "refused with HTTP status 400: logprobs is not supported"},
    "logprobs ignored": {"logprobs": "no log-probabilities come"},
    "long prompts refused": {"long prompt": "maximum context length is 8192 tokens"},
    "no reuse": {"prefix reuse": "0 of "},
    "no metrics": {"counters": "no metrics at /metrics or /prometheus/metrics"},
    "no responses": {"/v1/responses": "/v1/responses is not offered"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(watching, "MOVES_S", 0.3)
    monkeypatch.setattr(watching, "FREED_S", 0.5)
    monkeypatch.setattr(watching, "LOOK_S", 0.02)


def findings(*faults, names=EVERY, **settings):
    """What the checks of these names find, and those that they need."""
    checks = [check for check in CHECKS if check.name in with_needs(names)]

    async def collect():
        async with serving(*faults, **settings) as stub, connect(stub.url, None) as http:
            return [finding async for finding in smoke_test(await discover(http, stub.url, None), checks)]

    found = asyncio.run(collect())
    assert [finding.name for finding in found] == [check.name for check in checks]
    return {finding.name: finding for finding in found}


def with_needs(names):
    needs = {check.name: check.needs for check in CHECKS}
    return set(names).union(*(with_needs(needs[name]) for name in names))


def having(found, verdict):
    return {name: finding.text for name, finding in found.items() if finding.verdict == verdict}


def test_a_sound_server():
    found = findings()
    assert having(found, "ok").keys() == set(EVERY)
    assert all(finding.request is None for finding in found.values())
    assert "it finds line" in found["long prompt"].text


@pytest.mark.parametrize("fault", BROKEN)
def test_a_fault_is_found(fault):
    check_fault(fault, findings(fault, names=BROKEN[fault]))


@pytest.mark.slow
@pytest.mark.parametrize("fault", BROKEN)
def test_and_nothing_else_is_broken(fault):
    check_fault(fault, findings(fault))


def check_fault(fault, found):
    wrong = having(found, "broken")
    assert wrong.keys() == BROKEN[fault].keys(), wrong
    for name, words in BROKEN[fault].items():
        assert words in wrong[name]
        assert found[name].request.path in ("/v1/chat/completions", "/v1/responses", "/metrics")
    assert not having(found, "missing")


@pytest.mark.parametrize("lack", MISSING)
def test_what_is_not_offered_is_missing(lack):
    check_lack(lack, findings(lack, names=MISSING[lack]))


@pytest.mark.slow
@pytest.mark.parametrize("lack", MISSING)
def test_and_nothing_else_is_missing(lack):
    check_lack(lack, findings(lack))


def check_lack(lack, found):
    assert not having(found, "broken")
    missing = having(found, "missing")
    assert missing.keys() == MISSING[lack].keys()
    assert all(words in missing[name] for name, words in MISSING[lack].items())


def test_one_slot_is_said_and_is_no_fault():
    found = findings(slots=1, names=["two at once", "cancel"])
    assert having(found, "missing") == {"two at once": "one answer waits for the end of the other (no mixing)"}
    assert not having(found, "broken")


def test_a_kept_slot_is_found_without_metrics():
    """Then by the next first token, where the kept ones are all that there are."""
    found = findings("slots kept after a cancel", "no metrics", slots=watching.NUM_LEAVING, names=["cancel"])
    assert having(found, "broken").keys() == {"cancel"}
    assert "the next first token waits" in found["cancel"].text


def test_a_small_context():
    found = findings(context=4096, names=["long prompt", "prefix reuse"])
    (text,) = having(found, "missing").values()
    assert text.startswith("the context of 4,096 is less than 20,000 tokens; at 3,2") and "finds line" in text


def test_garbage_leaves_little_to_judge():
    found = findings("!!!!")
    assert having(found, "not judged").keys() == {
        *("stop", "sampling", "reasoning", "tools", "tool_choice", "JSON schema", "logprobs", "two at once")
    }


def test_reuse_is_seen_by_time_where_cached_tokens_are_not_counted():
    found = findings("cached tokens not counted", block_s=0.0005, names=["prefix reuse"])["prefix reuse"]
    assert found.verdict == "ok" and found.text.startswith("by time (10 of 10 repeats were faster, median ratio 0.")


def test_any_name_of_a_model_is_noted():
    assert "any name of a model is taken" in findings("any model", names=["errors"])["errors"].text

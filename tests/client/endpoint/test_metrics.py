"""Acceptance length from what each engine says: texts as their sources write them, and our own server for real."""

import json
import time
from collections.abc import Mapping

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from tests.support.serving import served

from eyas.client.endpoint.metrics import acceptance_length

LLAMA_METRICS = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed, excluding cached tokens
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 19
# HELP llamacpp:tokens_predicted_total Number of generation tokens processed
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 1000
# HELP llamacpp:spec_decode_num_draft_tokens_total Speculative: Total draft tokens generated
# TYPE llamacpp:spec_decode_num_draft_tokens_total counter
llamacpp:spec_decode_num_draft_tokens_total 1200
# HELP llamacpp:spec_decode_num_accepted_tokens_total Speculative: Total draft tokens accepted by the target model
# TYPE llamacpp:spec_decode_num_accepted_tokens_total counter
llamacpp:spec_decode_num_accepted_tokens_total 500
# HELP llamacpp:spec_decode_num_drafts_total Speculative: Total speculative decoding verification steps
# TYPE llamacpp:spec_decode_num_drafts_total counter
llamacpp:spec_decode_num_drafts_total 480
# HELP llamacpp:prompt_tokens_seconds Average prompt throughput in tokens/s
# TYPE llamacpp:prompt_tokens_seconds gauge
llamacpp:prompt_tokens_seconds 1.5e+02
# HELP llamacpp:spec_decode_num_accepted_tokens_per_pos_total Accepted tokens per draft position
# TYPE llamacpp:spec_decode_num_accepted_tokens_per_pos_total counter
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 300
"""
TRT_ITERATION = {  # the fields of TensorRT-LLM's own test of its statistics
    "numActiveRequests": 5,
    "inflightBatchingStats": {"numGenRequests": 3, "avgNumDecodedTokensPerIter": 4.5},
    "specDecodingStats": {"numDraftTokens": 20, "numAcceptedTokens": 11, "numRequestsWithDraftTokens": 4},
}


def answers(pages: Mapping[str, object]):
    """An engine that has these pages and no other."""

    def answer(request):
        page = pages.get(request.url.path)
        if page is None:
            return httpx.Response(404, text="not found")
        return httpx.Response(200, text=page if isinstance(page, str) else json.dumps(page))

    return httpx.Client(base_url="http://engine:1", transport=httpx.MockTransport(answer))


def asked(engine, pages):
    return acceptance_length(engine, answers(pages))


def exposition(*, counters=(), gauges=()):
    """A text as the Prometheus library that these engines use writes it, over two ranks."""
    registry = CollectorRegistry()
    for kind, metrics in ((Counter, counters), (Gauge, gauges)):
        for name, value in metrics:
            metric = kind(name, name, ["model_name", "engine"], registry=registry)
            for rank in range(2):
                series = metric.labels("openai/gpt-oss-120b", str(rank))
                series.inc(value / 2) if kind is Counter else series.set(value)
    return generate_latest(registry).decode()


def vllm_text(drafts, drafted, accepted):
    return exposition(
        counters=[
            ("vllm:spec_decode_num_drafts", drafts),
            ("vllm:spec_decode_num_draft_tokens", drafted),
            ("vllm:spec_decode_num_accepted_tokens", accepted),
            ("vllm:generation_tokens", 12345),
        ]
    )


def test_vllm_counts_drafts_and_accepted_tokens():
    found = asked("vllm", {"/metrics": vllm_text(100, 300, 140)})
    assert (found.length, found.rounds, found.is_recent) == (2.4, 100, False)


def test_sglang_keeps_the_mean_itself():
    page = {"version": "0.5.23", "internal_states": [{"avg_spec_accept_length": 2.5}, {"avg_spec_accept_length": 2.7}]}
    found = asked("sglang", {"/server_info": page})
    assert (found.length, found.is_recent) == (pytest.approx(2.6), False)
    assert asked("sglang", {"/get_server_info": page}).source == "/get_server_info"


def test_sglang_before_its_first_round_tells_by_its_gauge_or_not_at_all():
    pages = {
        "/server_info": {"internal_states": [{}]},
        "/metrics": exposition(gauges=[("sglang:spec_accept_length", 2.25)]),
    }
    found = asked("sglang", pages)
    assert (found.length, found.is_recent, found.source) == (2.25, True, "/metrics")
    pages["/metrics"] = exposition(gauges=[("sglang:spec_accept_length", 0.0)])
    assert asked("sglang", pages) is None


def test_tensorrt_llm_over_iterations_not_read_yet():
    found = asked("tensorrt-llm", {"/metrics": [TRT_ITERATION, {"specDecodingStats": None}, TRT_ITERATION]})
    assert (found.length, found.rounds, found.is_recent) == (1 + 22 / 8, 8, True)


def test_tensorrt_llm_by_its_gauge():
    text = exposition(gauges=[("trtllm_spec_decode_acceptance_length", 2.75)])
    assert asked("tensorrt-llm", {"/metrics": [], "/prometheus/metrics": text}).length == 2.75
    assert asked("tensorrt-llm", {"/metrics": []}) is None


def test_llama_cpp_counts_passes_without_drafts_too():
    found = asked("llama.cpp", {"/metrics": LLAMA_METRICS})
    assert (found.length, found.rounds) == (2.0, 500)  # not 1 + 500 / 480


def test_llama_cpp_of_a_build_that_does_not_count_drafts():
    lines = [line for line in LLAMA_METRICS.splitlines(keepends=True) if "spec_decode" not in line]
    assert asked("llama.cpp", {"/metrics": "".join(lines)}) is None


@pytest.mark.parametrize("engine", ["vllm", "eyas"])
def test_nothing_drafted_is_no_acceptance_length_and_nothing_accepted_is_one(engine):
    assert asked(engine, {"/metrics": vllm_text(100, 0, 0)}) is None
    assert asked(engine, {"/metrics": vllm_text(100, 300, 0)}).length == 1.0


@pytest.mark.parametrize("engine", ["eyas", "sglang", "tensorrt-llm", "vllm", "llama.cpp", "ollama"])
@pytest.mark.parametrize(
    "page", ["", "<html>what</html>", "{", "vllm:spec_decode_num_drafts_total x", "[1]", "[]", "{}"]
)
def test_an_engine_that_says_nothing_sensible_tells_nothing(engine, page):
    pages = {"/metrics": page, "/server_info": page, "/prometheus/metrics": page}
    assert asked(engine, pages) is None


@pytest.mark.parametrize("engine", ["eyas", "sglang", "tensorrt-llm", "vllm", "llama.cpp", "ollama"])
def test_an_engine_that_is_not_there_tells_nothing(engine):
    assert acceptance_length(engine, "http://127.0.0.1:9") is None


@pytest.mark.slow
def test_our_own_server_tells_what_its_answers_say():
    with served("demo", "--draft", "auto", "--draft-tokens", "3") as server:
        assert acceptance_length("eyas", server.url) is None  # no traffic yet
        message = {
            "messages": [{"role": "user", "content": "What does len do in Python?"}],
            "max_tokens": 64,
            "temperature": 0,
        }
        body = httpx.post(f"{server.url}/v1/chat/completions", json=message, timeout=120).json()
        of_one = body["metrics"]["speculative_decoding"]["mean_acceptance_length"]
        while (of_all := acceptance_length("eyas", server.url)) is None:  # counted when the request is over
            time.sleep(0.01)
    assert of_all.length == pytest.approx(of_one, abs=0.01)
    assert of_all.length > 1

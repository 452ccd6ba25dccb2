"""Metrics of a running server, read by the Prometheus client's own parser."""

from dataclasses import replace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.gateway.support import eventually

from eyas.base.types import EngineStats
from eyas.gateway.operation.metrics import EngineCounters, Histogram, Metrics, kv_usage
from eyas.gateway.outcome import Outcome

VLLM = (  # names that dashboards for vLLM 0.33 read
    *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens", "generation_tokens"),
    *("prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "request_success", "time_to_first_token_seconds"),
    *("inter_token_latency_seconds", "request_time_per_output_token_seconds", "e2e_request_latency_seconds"),
    *("request_prompt_tokens", "request_generation_tokens", "request_params_n", "request_params_max_tokens"),
    *("spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens"),
    *("spec_decode_num_accepted_tokens_per_pos", "prompt_tokens_cached"),
)


class Engine:
    """Only what metrics ask of an engine."""

    failure = None

    def __init__(self, **stats):
        self.now = EngineStats(**stats)

    def stats(self):
        return self.now


def scrape(text):
    """Samples by name and labels, model_name left out."""
    families = {family.name: family for family in text_string_to_metric_families(text)}
    samples = {}
    for family in families.values():
        for sample in family.samples:
            labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "model_name"))
            samples[(sample.name, *(f"{k}={v}" for k, v in labels))] = sample.value
    return families, samples


def test_a_request_is_counted(serve):
    server = serve(num_cached=3)
    answer = server.chat("Hi", max_tokens=20, n=2)
    families, samples = scrape(httpx.get(f"{server.url}/metrics").text)
    assert {f"vllm:{name}" for name in VLLM} <= set(families)
    usage, speculation = answer.usage, "vllm:spec_decode_num"
    assert samples["vllm:generation_tokens_total",] == usage.completion_tokens == 40
    assert samples["vllm:prompt_tokens_total",] == usage.prompt_tokens
    assert samples["vllm:prefix_cache_hits_total",] == 3
    assert samples["vllm:request_success_total", "finished_reason=length"] == 2
    assert samples["vllm:request_params_n_bucket", "le=2.0"] == samples["vllm:request_params_max_tokens_count",] == 1
    assert samples["vllm:request_generation_tokens_sum",] == 40
    assert samples["vllm:inter_token_latency_seconds_count",] == 38
    timings = answer.model_extra["timings"]
    assert samples[f"{speculation}_draft_tokens_total",] == timings["draft_n"]
    assert samples[f"{speculation}_accepted_tokens_total",] == timings["draft_n_accepted"]
    positions = [samples[f"{speculation}_accepted_tokens_per_pos_total", f"position={i}"] for i in range(3)]
    assert sum(positions) == timings["draft_n_accepted"] and positions == sorted(positions, reverse=True)
    assert samples["eyas:requests_total", "route=/v1/chat/completions", "status=200"] == 1
    assert samples["eyas:engine_up",] == 1 and samples["eyas:engine_restarts_total",] == 0


def test_what_is_running_and_who_left(serve):
    server = serve(round_s=0.05)
    stream = server.chat("Hi", stream=True)
    next(iter(stream))
    samples = scrape(httpx.get(f"{server.url}/metrics").text)[1]
    assert samples["vllm:num_requests_running",] == 1
    stream.close()
    assert eventually(
        lambda: scrape(httpx.get(f"{server.url}/metrics").text)[1]["eyas:clients_left_total",] == 1  # 499
    )


def test_errors_are_counted_by_status(serve):
    server = serve()
    for status, body in ((400, b"{"), (413, b" " * (16 << 20) + b"{}"), (404, b'{"model": "x", "messages": []}')):
        answer = httpx.post(
            f"{server.url}/v1/chat/completions", content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code in (400, status)
    server.engine.failure = "out of order"
    assert httpx.get(f"{server.url}/ready").status_code == 503
    samples = scrape(httpx.get(f"{server.url}/metrics").text)[1]
    counts = [samples.get(("eyas:http_errors_total", f"status={status}"), 0) for status in (400, 404, 413, 503)]
    assert sum(counts) == 4 and counts[2:] == [1, 1] and samples["eyas:engine_up",] == 0


def test_counters_do_not_go_down_with_the_engine():
    engine = Engine(num_generated_tokens=100, num_running=3)
    counters = EngineCounters(engine)
    seen = []
    for tokens in (100, 150, 20, 20, 60, 0, 5):
        engine.now = replace(engine.now, num_generated_tokens=tokens)
        seen.append(counters.read()[1]["num_generated_tokens"])
    assert seen == [100, 150, 170, 170, 210, 210, 215]
    assert "num_running" not in counters.read()[1]


@pytest.mark.parametrize(
    ("used", "total", "expected"),
    [
        ({}, {}, 0),
        ({"full": 5}, {"full": 10, "sliding": 0}, 0.5),
        ({"full": 1, "sliding": 4}, {"full": 10, "sliding": 5}, 0.8),
    ],
)
def test_usage_is_that_of_the_fullest_group(used, total, expected):
    assert kv_usage(EngineStats(pages_used=used, pages_total=total)) == expected


def test_a_histogram_is_cumulative():
    histogram = Histogram((1, 10))
    for value, count in ((0.5, 1), (1, 1), (5, 2), (11, 1)):
        histogram.add(value, count)
    assert histogram.buckets() == ([("1.0", 2), ("10.0", 4), ("+Inf", 5)], 22.5)


def test_a_request_without_a_token_is_no_latency():
    metrics = Metrics(Engine(), "m")
    metrics.record(Outcome(request_id="r", route="/x", status=499, num_prompt=7))
    samples = scrape(metrics.text().decode())[1]
    assert samples["vllm:time_to_first_token_seconds_count",] == 0
    assert samples["vllm:request_prompt_tokens_sum",] == 7


def test_names_of_a_model_are_escaped():
    metrics = Metrics(Engine(), 'odd "name"\n\\')
    family = next(iter(text_string_to_metric_families(metrics.text().decode())))
    assert family.samples[0].labels["model_name"] == 'odd "name"\n\\'

"""Metrics of a running server, read by the Prometheus client's own parser."""

from dataclasses import replace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.gateway.support.gateway import eventually

from eyas.base.histogram import STEP_TOKENS, Histogram
from eyas.base.types import EngineStats, ModelInfo
from eyas.gateway.http.outcome import Outcome
from eyas.gateway.operation.metrics import EngineCounters, Metrics, kv_usage

VLLM = (  # of vLLM 0.25 to 0.33, without those of parts that are not here: adapters, images, other caches
    *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens", "generation_tokens"),
    *("prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "request_success", "time_to_first_token_seconds"),
    *("inter_token_latency_seconds", "request_time_per_output_token_seconds", "e2e_request_latency_seconds"),
    *("request_prompt_tokens", "request_generation_tokens", "request_params_n", "request_params_max_tokens"),
    *("spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens"),
    *("spec_decode_num_accepted_tokens_per_pos", "prompt_tokens_cached", "prompt_tokens_by_source"),
    *("request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds"),
    *("request_inference_time_seconds", "iteration_tokens_total", "cache_config_info", "engine_sleep_state"),
    *("request_max_num_generation_tokens", "request_prefill_kv_computed_tokens", "num_requests_waiting_by_reason"),
)


SECONDS = "0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"
TOKEN_SECONDS = "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80"
FIRST = "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
BOUNDS = {  # of vLLM's histograms
    "iteration_tokens_total": "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384",
    "time_to_first_token_seconds": FIRST,
    "inter_token_latency_seconds": TOKEN_SECONDS,
    "request_time_per_output_token_seconds": TOKEN_SECONDS,
    **{f"request_{phase}_time_seconds": SECONDS for phase in ("queue", "prefill", "decode", "inference")},
    "e2e_request_latency_seconds": SECONDS,
    "request_params_n": "1 2 5 10 20",
}


class Engine:
    """Only what metrics ask of an engine."""

    failure = pid = None
    info = ModelInfo(name="m", context=64, vocab_size=99, eos_ids=(1,), drafter="none", page_size=16)

    def __init__(self, **stats):
        self.now, self.step_tokens = EngineStats(**stats), Histogram(STEP_TOKENS)

    def stats(self):
        return self.now


def scrape(text):
    """Samples by name and labels, model_name and engine left out. Each has them, and comes once."""
    families, samples = {}, {}
    for family in text_string_to_metric_families(text):
        assert family.name not in families and family.type != "unknown"
        families[family.name] = family
        for sample in family.samples:
            assert "process_" in sample.name or (sample.labels["engine"] == "0" and sample.labels["model_name"])
            labels = sorted((k, v) for k, v in sample.labels.items() if k not in ("model_name", "engine"))
            key = (sample.name, *(f"{k}={v}" for k, v in labels))
            assert key not in samples
            samples[key] = sample.value
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
    assert samples["vllm:request_max_num_generation_tokens_sum",] == 20
    assert samples["vllm:request_prefill_kv_computed_tokens_sum",] == usage.prompt_tokens - 3
    assert samples["vllm:iteration_tokens_total_sum",] == usage.prompt_tokens + 40
    assert samples["vllm:iteration_tokens_total_count",] == server.engine.stats().num_rounds / 2
    timings = answer.model_extra["timings"]
    assert samples[f"{speculation}_draft_tokens_total",] == timings["draft_n"]
    assert samples[f"{speculation}_accepted_tokens_total",] == timings["draft_n_accepted"]
    positions = [samples[f"{speculation}_accepted_tokens_per_pos_total", f"position={i}"] for i in range(3)]
    assert sum(positions) == timings["draft_n_accepted"] and positions == sorted(positions, reverse=True)
    assert samples["eyas:requests_total", "route=/v1/chat/completions", "status=200"] == 1
    assert samples["eyas:engine_up",] == 1 and samples["eyas:engine_restarts_total",] == 0


def test_the_phases_of_a_request_add_up(serve):
    server = serve(round_s=0.02)
    for n in (1, 3):
        server.chat("Hi", max_tokens=20, n=n)
    samples = scrape(httpx.get(f"{server.url}/metrics").text)[1]
    phases = ("queue", "prefill", "decode", "inference")
    assert {samples[f"vllm:request_{phase}_time_seconds_count",] for phase in phases} == {2}
    queue, prefill, decode, inference = (samples[f"vllm:request_{phase}_time_seconds_sum",] for phase in phases)
    assert queue > 0 and prefill >= 2 * 0.02 and decode >= 2 * 6 * 0.02
    assert queue + prefill == pytest.approx(samples["vllm:time_to_first_token_seconds_sum",])
    assert prefill + decode == pytest.approx(inference)
    assert queue + inference <= samples["vllm:e2e_request_latency_seconds_sum",]


def test_histograms_have_the_bounds_of_vllm_and_are_cumulative(server):
    server.chat("Hi", max_tokens=20)
    samples = scrape(httpx.get(f"{server.url}/metrics").text)[1]
    histograms = {name.removesuffix("_bucket") for name, *_ in samples if name.endswith("_bucket")}
    assert {f"vllm:{name}" for name in BOUNDS} <= histograms
    for name in histograms:
        bounds = [float(labels[0].removeprefix("le=")) for full, *labels in samples if full == f"{name}_bucket"]
        counts = [value for (full, *_), value in samples.items() if full == f"{name}_bucket"]
        assert bounds == sorted(bounds) and counts == sorted(counts) and bounds[-1] == float("inf")
        assert counts[-1] == samples[f"{name}_count",]
        assert set(map(float, BOUNDS.get(name.removeprefix("vllm:"), "").split())) <= set(bounds)


def test_constants_of_the_cache_are_labels():
    metrics = Metrics(Engine(pages_total={"full": 100, "sliding": 20}), "m")
    samples = scrape(metrics.text().decode())[1]
    ((_, *labels),) = [key for key in samples if key[0] == "vllm:cache_config_info"]
    assert {"block_size=16", "num_gpu_blocks=100", "kv_cache_size_tokens=1600"} <= set(labels)


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

"""What each engine says, recorded (each file names its source), against the acceptance length that it says itself."""

import json
import re
import time
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest
from tests.support.serving import served

from eyas.client.endpoint.acceptance.adapters import ADAPTERS, connect, read
from eyas.client.endpoint.acceptance.counts import Reading, difference

RECORDED = Path(__file__).parent / "recorded"
ENGINES = ["eyas", "sglang", "tensorrt-llm", "vllm", "llama.cpp", "ollama"]


def recorded(name):
    return (RECORDED / name).read_text()


def server(pages: Mapping[str, str]):
    """An engine that has these pages and no other."""

    def answer(request):
        page = pages.get(request.url.path)
        return httpx.Response(404, text="not found") if page is None else httpx.Response(200, text=page)

    return httpx.Client(base_url="http://engine:1", transport=httpx.MockTransport(answer))


def said(engine, pages):
    return read(engine, server(pages))


def without(text, word):
    return "".join(line for line in text.splitlines(keepends=True) if word not in line)


@pytest.mark.parametrize("page", ["<html>", '{"avg_spec_accept_length": "no"}', '{"a": ' + "[" * 100_000])
def test_a_page_that_is_none_says_nothing(page):
    assert said("sglang", {"/server_info": page}).length is None


@pytest.mark.parametrize("engine", ["vllm", "eyas"])
def test_vllm_counts_by_position_over_its_ranks(engine):
    found = said(engine, {"/metrics": recorded("vllm.prom")})
    counts = found.counts
    assert (counts.rounds, counts.accepted, counts.drafted) == (37, 19, 111)
    assert (counts.by_position, counts.histogram) == ((12, 7, 0), (25, 5, 7, 0))
    assert found.acceptance_length == 1 + 19 / 37
    assert counts.source == "/metrics"


def test_vllm_that_has_started_again_says_so_by_the_date_of_its_counters():
    before = said("vllm", {"/metrics": recorded("vllm.prom")})
    later = recorded("vllm.prom").replace("1.756736798733569e+09", "1.756737798733569e+09")
    assert difference(before, said("vllm", {"/metrics": later})) == "the server has started again in between"


def test_vllm_without_speculation_has_no_such_counters():
    found = said("vllm", {"/metrics": without(recorded("vllm.prom"), "spec_decode")})
    assert found.not_offered == "its /metrics counts no drafts: it runs without speculation"
    assert found.acceptance_length is None


def test_an_answer_of_vllm():
    answer = recorded("vllm_answer.json")
    counts = ADAPTERS["vllm"].of_answer([answer.encode()])
    own = json.loads(answer)["metrics"]["speculative_decoding"]
    assert counts.length == pytest.approx(own["mean_acceptance_length"])
    assert (counts.rounds, counts.accepted, counts.drafted) == (43, 10, 129)
    assert (counts.histogram, counts.by_position) == ((39, 1, 0, 3), (4, 3, 3))


def test_sglang_by_its_counters_of_finished_requests():
    found = said("sglang", {"/metrics": recorded("sglang.prom"), "/server_info": recorded("sglang_server_info.json")})
    assert (found.counts.rounds, found.counts.accepted, found.counts.drafted) == (188, 11, None)
    assert found.acceptance_length == 199 / 188  # its own 200 / 188 counts the token of the prompt's pass, too


def test_sglang_without_metrics_tells_its_mean_and_no_counts():
    for path in ("/server_info", "/get_server_info"):
        found = said("sglang", {path: recorded("sglang_server_info.json")})
        assert (found.acceptance_length, found.source) == (pytest.approx(2.6), path)
        assert found.not_offered == "it has no /metrics: start it with --enable-metrics"
        assert difference(found, found).startswith("not offered: ")


def test_sglang_of_a_build_without_the_counter_tells_by_its_gauge():
    text = without(recorded("sglang.prom"), "spec_verify_calls")
    found = said("sglang", {"/metrics": text, "/server_info": '{"internal_states": [{}]}'})
    assert (found.acceptance_length, found.is_recent) == (1.0638297872340425, True)
    assert found.not_offered == "its /metrics counts no verify passes"


def test_sglang_before_its_first_pass_is_a_first_reading():
    nothing = without(recorded("sglang.prom"), "accept_length").replace("188.0", "0.0").replace("150.0", "0.0")
    before = said("sglang", {"/metrics": nothing.replace(" 50.0", " 0.0").replace(" 1.0", " 0.0")})
    assert before.acceptance_length is None
    after = said("sglang", {"/metrics": recorded("sglang.prom")})
    assert difference(before, after).length == 199 / 188


def test_an_answer_of_sglang():
    body = json.loads(recorded("sglang_answer.json"))
    own = body["sglext"]["spec_tokens_details"]
    counts = ADAPTERS["sglang"].of_answer([json.dumps(body).encode()])
    assert counts.length == pytest.approx(own["spec_accept_length"])
    assert (counts.rounds, counts.accepted, counts.drafted) == (43, 63, 215)
    assert counts.histogram == (11, 14, 11, 4, 0, 3)
    body["sglext"]["spec_tokens_details"] = [own, own]  # of two choices
    twice = ADAPTERS["sglang"].of_answer([json.dumps(body).encode()])
    assert (twice.rounds, twice.length) == (86, counts.length)
    del own["spec_correct_drafts_histogram"]  # builds of 2025 have none
    plain = ADAPTERS["sglang"].of_answer([json.dumps({"sglext": {"spec_tokens_details": own}}).encode()])
    assert (plain.rounds, plain.accepted, plain.histogram) == (43, 63, None)
    assert ADAPTERS["sglang"].fields == {"return_spec_tokens_details": True}


def test_llama_cpp_is_what_its_log_says():
    found = said("llama.cpp", {"/metrics": recorded("llama_cpp.prom")})
    counts = found.counts
    assert (counts.rounds, counts.accepted, counts.drafted) == (87, 167, 259)
    assert f"{counts.length:.2f}" == "2.92"
    assert [f"{accepted / counts.rounds:.3f}" for accepted in counts.by_position] == ["0.805", "0.632", "0.483"]


def test_llama_cpp_of_a_build_that_does_not_count_drafts_or_that_shows_nothing():
    found = said("llama.cpp", {"/metrics": without(recorded("llama_cpp.prom"), "spec_decode")})
    assert found.not_offered == "its /metrics counts no drafts: its build is older than 0.5.0"
    assert said("llama.cpp", {}).not_offered == "it has no /metrics: start it with --metrics"


def test_an_answer_of_llama_cpp_counts_passes_without_drafts_too():
    body = json.loads(recorded("llama_cpp_answer.json"))
    counts = ADAPTERS["llama.cpp"].of_answer([json.dumps(body).encode()])
    assert (counts.rounds, counts.accepted, counts.drafted) == (88, 167, 259)  # the log: 87 with drafts
    last = {"choices": [], "timings": body.pop("timings")}  # of a stream, with usage
    events = [json.dumps(event).encode() for event in (body, last)]
    assert ADAPTERS["llama.cpp"].of_answer([*events, b"[DONE]"]) == counts
    del last["timings"]["draft_n"], last["timings"]["draft_n_accepted"]  # so it is without a draft model
    assert ADAPTERS["llama.cpp"].of_answer([events[0], json.dumps(last).encode()]) is None


def test_an_answer_of_llama_cpp_that_ends_by_itself_says_too_little():
    body = json.loads(recorded("llama_cpp_answer.json"))
    body["choices"][0]["finish_reason"] = "stop"
    assert ADAPTERS["llama.cpp"].of_answer([json.dumps(body).encode()]) is None


def test_tensorrt_llm_by_its_counters_of_positions():
    found = said("tensorrt-llm", {"/prometheus/metrics": recorded("tensorrt_llm.prom"), "/metrics": "[]"})
    counts = found.counts
    assert (counts.rounds, counts.accepted, counts.drafted) == (30, 60, 90)
    assert (counts.by_position, counts.histogram) == ((30, 20, 10), (0, 10, 10, 10))
    assert (found.acceptance_length, found.is_drained) == (3.0, False)


def test_tensorrt_llm_over_iterations_that_reading_empties():
    before = said("tensorrt-llm", {"/metrics": recorded("tensorrt_llm_iterations.json")})
    assert (before.counts.rounds, before.counts.accepted, before.counts.drafted) == (6, 14, 30)
    own = [item["specDecodingStats"] for item in json.loads(recorded("tensorrt_llm_iterations.json"))]
    weighted = sum(one["acceptanceLength"] * one["numRequestsWithDraftTokens"] for one in own if one)
    assert before.acceptance_length == pytest.approx(weighted / 6)
    after = said("tensorrt-llm", {"/metrics": "[]"})
    assert difference(before, after).rounds == 0
    assert difference(after, before) == before.counts


def test_tensorrt_llm_that_may_have_lost_iterations_is_not_believed():
    one = json.loads(recorded("tensorrt_llm_iterations.json"))[0]
    found = said("tensorrt-llm", {"/metrics": json.dumps([one] * 1000)})
    assert found.counts is None and "it keeps 1,000 iterations and there were more" in found.not_offered


def test_tensorrt_llm_by_its_gauge():
    text = without(without(recorded("tensorrt_llm.prom"), "drafted"), "accepted")
    found = said("tensorrt-llm", {"/metrics": "[]", "/prometheus/metrics": text})
    assert (found.acceptance_length, found.is_recent, found.counts) == (2.75, True, None)


def test_ollama_offers_nothing():
    assert said("ollama", {}).not_offered == "Ollama tells nothing of drafts"
    assert ADAPTERS["ollama"].of_answer([recorded("ollama_answer.json").encode()]) is None


def test_nothing_drafted_is_no_acceptance_length_and_nothing_accepted_is_one():
    none_drafted = recorded("vllm.prom").replace(" 66.0", " 0.0").replace(" 45.0", " 0.0")
    assert said("eyas", {"/metrics": none_drafted}).acceptance_length is None
    none_accepted = "".join(
        line.rsplit(" ", 1)[0] + " 0.0\n" if line.startswith("vllm:spec_decode_num_accepted") else line
        for line in recorded("vllm.prom").splitlines(keepends=True)
    )
    assert said("eyas", {"/metrics": none_accepted}).acceptance_length == 1.0


@pytest.mark.parametrize("engine", [*ENGINES, None])
@pytest.mark.parametrize(
    "page", ["", "<html>what</html>", "{", "vllm:spec_decode_num_drafts_total x", "[1]", "[]", "{}", "\ud7ff", "null"]
)
def test_an_engine_that_says_nothing_sensible_tells_nothing(engine, page):
    pages = dict.fromkeys(("/metrics", "/server_info", "/prometheus/metrics"), page)
    found = said(engine, pages)
    assert found.acceptance_length is None
    assert found.not_offered or found.counts.rounds == 0
    if engine is not None:
        assert ADAPTERS[engine].of_answer([page.encode()]) is None
        assert ADAPTERS[engine].of_answer([b"\xff"]) is None


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_that_is_not_there_tells_nothing(engine):
    with connect("http://127.0.0.1:9/v1") as client:
        assert read(engine, client).acceptance_length is None


@pytest.mark.slow
def test_our_own_server_tells_what_its_answers_say():
    with served("demo", "--draft", "auto", "--draft-tokens", "3") as ours, connect(f"{ours.url}/v1") as client:
        before = read("eyas", client)
        assert before.acceptance_length is None  # no traffic yet
        answers = []
        for question in ("What does len do in Python?", "What does os.path.join do?"):
            body = {"messages": [{"role": "user", "content": question}], "max_tokens": 64, "temperature": 0}
            answer = httpx.post(f"{ours.url}/v1/chat/completions", json=body, timeout=120)
            own = answer.json()["metrics"]["speculative_decoding"]
            answers.append(ADAPTERS["eyas"].of_answer([answer.content]))
            assert answers[-1].length == pytest.approx(own["mean_acceptance_length"], abs=1e-4)
            assert list(answers[-1].histogram) == own["acceptance_histogram"]
        counted = _until(client, before, sum(one.rounds for one in answers))
        log = [float(length) for length in re.findall(r"acceptance_length=([\d.]+)", ours.log)]
    assert log == pytest.approx([one.length for one in answers], abs=0.005)
    assert (counted.rounds, counted.accepted) == (sum(a.rounds for a in answers), sum(a.accepted for a in answers))
    assert counted.by_position == tuple(map(sum, zip(*(a.by_position for a in answers), strict=True)))
    assert counted.length > 1


def _until(client, before: Reading, rounds):
    """The difference once all requests are counted, which they are when they are over."""
    end = time.monotonic() + 10
    while (counted := difference(before, read("eyas", client))).rounds < rounds and time.monotonic() < end:
        time.sleep(0.01)
    return counted

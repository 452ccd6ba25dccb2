"""What a server logs of its work: numbers, and never a word of a prompt, an answer or a key."""

import logging

import pytest
from tests.gateway.support.gateway import CONTENT, eventually

from eyas.base.types import EngineStats
from eyas.gateway.http.outcome import Outcome
from eyas.gateway.operation.access_log import ProgressLog, log_request
from eyas.gateway.operation.auth import digests
from eyas.gateway.operation.metrics import EngineCounters


class Engine:
    """Only what the log asks of an engine."""

    failure = None

    def __init__(self, **stats):
        self.now = EngineStats(**stats)

    def stats(self):
        return self.now


@pytest.fixture(autouse=True)
def all_lines(caplog):
    caplog.set_level(logging.DEBUG)


def fields(caplog, message):
    return [record.fields for record in caplog.records if record.message == message]


def test_a_line_for_each_request_without_its_words(serve, caplog):
    server = serve(num_cached=2, gateway={"key_digests": digests("top-secret-key")})
    server.client.api_key = "top-secret-key"
    answer = server.chat("my secret question", max_tokens=30, user="someone")
    assert eventually(lambda: fields(caplog, "request"))
    (line,) = fields(caplog, "request")
    assert line["id"] == answer.id and line["status"] == 200 and line["finish"] == "length"
    assert line["tokens"] == answer.usage.completion_tokens and line["prompt"] == answer.usage.prompt_tokens
    assert line["cached"] == 2 and line["drafted"] == answer.model_extra["timings"]["draft_n"]
    assert line["acceptance_length"] > 1 and line["e2e_ms"] >= line["ttft_ms"] > 0
    everything = "".join(f"{vars(record)}" for record in caplog.records if record.name.startswith("eyas"))
    for word in ("secret", "question", "someone", *CONTENT.split()[:2]):
        assert word not in everything


@pytest.mark.parametrize(
    ("status", "level", "error"), [(400, "INFO", None), (499, "INFO", None), (500, "WARNING", "why")]
)
def test_errors_of_ours_are_warnings_and_others_are_not_quoted(caplog, status, level, error):
    log_request(Outcome(request_id="r", route="/x", status=status, error="why"))
    assert caplog.records[-1].levelname == level and caplog.records[-1].fields["error"] == error


def test_progress_is_told_of_the_time_since_the_last_line(caplog):
    engine = Engine(num_running=2, num_waiting=1, pages_used={"full": 1}, pages_total={"full": 8})
    progress = ProgressLog(EngineCounters(engine))
    progress.tick()
    engine.now = EngineStats(
        num_generated_tokens=30, num_accepted_tokens=20, num_prompt_tokens=100, num_cached_tokens=25, num_restarts=1
    )
    progress.tick()
    progress.tick()
    first, second = fields(caplog, "progress")
    assert (first["running"], first["waiting"], first["kv_used_percent"], first["tok_per_s"]) == (2, 1, 12.5, 0)
    assert second["tok_per_s"] > 0 and second["prompt_tok_per_s"] > second["tok_per_s"]
    assert (second["acceptance_length"], second["prefix_hit_percent"], second["restarts"]) == (3.0, 25.0, 1)

"""The page of metrics: what is counted where, from the start, and served."""

import socket
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from eyas.base.errors import UserError
from eyas.discord.metrics import Metrics


def samples(page):
    return {
        (sample.name.removeprefix("eyas:discord_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_every_series_is_there_from_the_start():
    found = samples(Metrics().text())
    assert {key for key in found if key[0].endswith("_total")} >= {
        *((("questions_total", place)) for place in ("server", "direct")),
        *(("answers_total", one) for one in ("done", "stopped", "timed_out", "failed", "refused", "empty", "cut")),
        *(("rate_limited_total", scope) for scope in ("user", "shared", "global")),
        *(("tokens_total", kind) for kind in ("prompt", "completion")),
        ("edits_total",),
        ("fallbacks_total",),
    }
    assert all(value == 0 for key, value in found.items() if not key[0].startswith("process_"))


def test_what_is_counted():
    metrics = Metrics()
    metrics.asked(is_direct=True)
    metrics.asked(is_direct=False)
    metrics.began()
    metrics.began()
    metrics.first_text(3.0)
    metrics.fell_back()
    metrics.edited()
    metrics.limited("global")
    metrics.ended("timed_out", prompt_tokens=7, completion_tokens=5)
    metrics.refused()
    found = samples(metrics.text())
    for key in [("questions_total", "direct"), ("questions_total", "server"), ("open_answers",), ("edits_total",),
                ("rate_limited_total", "global"), ("answers_total", "timed_out"), ("answers_total", "refused"),
                ("fallbacks_total",), ("time_to_first_text_seconds_count",)]:  # fmt: skip
        assert found[key] == 1, key
    assert (found["tokens_total", "prompt"], found["tokens_total", "completion"]) == (7, 5)
    assert found["time_to_first_text_seconds_bucket", "2.5"] == 0
    assert found["time_to_first_text_seconds_bucket", "5.0"] == 1


def test_two_bots_of_a_process_do_not_share_counts():
    one, other = Metrics(), Metrics()
    one.edited()
    assert samples(other.text())["edits_total",] == 0


def test_the_page_is_served_and_a_port_in_use_named():
    metrics = Metrics()
    metrics.edited()
    port = metrics.serve("127.0.0.1", 0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert samples(answer.read())["edits_total",] == 1
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match="label too long"):
            Metrics().serve("a" * 70, 0)
        with pytest.raises(UserError, match=rf"127\.0\.0\.1:{port}: .*; choose another metrics\.port"):
            Metrics().serve("127.0.0.1", port)

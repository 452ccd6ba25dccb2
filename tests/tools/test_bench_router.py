"""The router's benchmark: which requests are measured against which, and that it runs."""

import json

import pytest

import bench_router as bench
from eyas.bench.http.load import Singles


def test_added_time_is_counted_from_the_direct_median():
    direct = Singles(ttft_ms=(1.0, 2.0, 9.0), prompt_ms=())
    figures = bench._ttft_figures(Singles(ttft_ms=(2.5, 3.0, 12.0), prompt_ms=()), direct)
    assert [figures[f"added_ms_p{percent}"] for percent in (50, 95, 99)] == [1.0, 10.0, 10.0]


@pytest.mark.slow
def test_a_short_run_prints_figures_and_verdicts(capsys):
    code = bench.main(["--no-litellm", "--repeats", "1", "--requests", "5", "--streams", "2", "--seconds", "1"])
    *lines, last = capsys.readouterr().out.splitlines()
    report = json.loads(last)
    missed = [name for name, value in report["values"].items() if value > report["bars"][name]]
    assert code == bool(missed) and sum(line.endswith("MISSED") for line in lines) == len(missed)
    assert set(report["values"]) == set(report["bars"]) - {"share_of_litellm"}
    assert all(value > 0 for name, value in report["values"].items() if not name.startswith("added"))
    assert lines[1].startswith("hardware") and report["versions"]["aiohttp"]

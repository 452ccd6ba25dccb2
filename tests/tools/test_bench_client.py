"""The client's benchmark: both clients read the same chunks, and a run says whether the bar is met."""

import asyncio
import json

import openai
import pytest

import bench_client as bench
from eyas.bench.http.servers import null_server
from eyas.client import AsyncClient


@pytest.mark.slow
def test_a_short_run_prints_figures_and_a_verdict(capsys):
    code = bench.main(["--repeats", "1", "--streams", "2", "--rounds", "1"])
    *lines, last = capsys.readouterr().out.splitlines()
    report = json.loads(last)
    missed = [name for name, value in report["ratios"].items() if value > report["bar"]]
    assert code == bool(missed) and sum(line.endswith("MISSED") for line in lines) == len(missed)
    assert set(report["ratios"]) == set(bench.MODELS) and all(value > 0 for value in report["ratios"].values())
    assert lines[1].startswith("hardware") and report["versions"]["openai"]


@pytest.mark.slow
def test_both_clients_count_the_same_chunks():
    async def counts(url):
        async with AsyncClient(url, model="null") as ours, openai.AsyncOpenAI(base_url=url, api_key="none") as theirs:
            return await bench._eyas(ours), await bench._openai(theirs)

    with null_server("null", bench.CONTEXT) as (url, _):
        ours, theirs = asyncio.run(counts(url))
    assert ours == theirs > 1

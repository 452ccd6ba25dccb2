"""The demo model drafts: acceptance length over content on held-out prompts, as `eyas bench acceptance` says."""

import json
from pathlib import Path

import pytest

from eyas import cli

HELD_OUT = Path(__file__).parents[2] / "assets" / "demo_heldout.jsonl"


@pytest.mark.parametrize(
    ("temperature", "limit"), [(0, 3), *(pytest.param(t, 12, marks=pytest.mark.slow) for t in (0, 1))]
)
def test_acceptance_on_the_first_held_out_prompts(capsys, temperature, limit):
    argv = [
        "bench",
        "acceptance",
        "demo",
        "--prompts",
        str(HELD_OUT),
        "--temperature",
        str(temperature),
        "--limit",
        str(limit),
    ]
    assert cli.main([*argv, "--context", "2k", "--seed", "0"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert not report["simulated"] and report["draft_tokens"] == 4
    assert report["results"][0]["content"]["acceptance_length"] >= 3.6

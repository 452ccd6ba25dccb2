"""Flows of `tools/serving_bench.py`: commands are ones that exist, and a flow ends in its time."""

import argparse
import json
from pathlib import Path

import pytest
from tools.serving_bench import ENGINE, FLOWS, MIXED
from tools.training_bench.flow import Part, add_options, run_flow

from eyas.bench.engine import command, mixed

ROOT = Path(__file__).parents[2]
COMMANDS = {ENGINE: command, MIXED: mixed}


@pytest.mark.parametrize("flow", FLOWS)
def test_commands_of_parts_are_understood(flow):
    names = [part.name for part in FLOWS[flow]]
    assert len(set(names)) == len(names)
    for part in FLOWS[flow]:
        known = COMMANDS.get(part.command[: len(ENGINE)])
        if known is not None:
            parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
            known.add_arguments(parser)
            found = parser.parse_args(part.command[len(ENGINE) :])
            assert found.shape in ("gpt-oss-120b", "gpt-oss-20b")
        for word in part.command:
            if word.startswith("tests/"):
                assert "mark.gpu" in (ROOT / word).read_text()


def test_parts_that_were_asked_for_run_in_their_time(tmp_path, capsys):
    parser = argparse.ArgumentParser()
    parts = tuple(Part(name, ("-c", f"print('{name} ran')"), 60) for name in ("first", "second", "third"))
    add_options(parser, {"some": parts}, "runs/some")
    run_flow(parser, parser.parse_args(["some", "--out", str(tmp_path), "--parts", "first,third"]), parts)
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [(line["part"], line["ended"]) for line in lines] == [("first", "0"), ("third", "0")]
    log = (tmp_path / "log.txt").read_text()
    assert "third ran" in log and "second ran" not in log
    run_flow(parser, parser.parse_args(["some", "--out", str(tmp_path), "--minutes", "0.1"]), parts)
    assert "not begun" in (tmp_path / "results.jsonl").read_text().splitlines()[-1]
    with pytest.raises(SystemExit):
        run_flow(parser, parser.parse_args(["some", "--out", str(tmp_path), "--parts", "fourth"]), parts)
    assert "no part fourth; parts are first, second, third" in capsys.readouterr().err

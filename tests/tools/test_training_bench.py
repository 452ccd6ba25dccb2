"""Flows of `tools/training_bench`: no part stops another, nothing measured is lost, commands are ones that exist."""

import argparse
import json

import pytest
from tools.training_bench import curve
from tools.training_bench.__main__ import BENCH, CURVE, FLOWS, KERNELS
from tools.training_bench.flow import Part, run_part
from tools.training_bench.kernels import PARTS
from tools.training_bench.kernels import parser as kernels_parser

from eyas.bench.training.command import add_arguments


@pytest.mark.parametrize("flow", FLOWS)
def test_commands_of_parts_are_understood(flow):
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    names = [part.name for part in FLOWS[flow]]
    assert len(set(names)) == len(names) and not any("," in name for name in names)
    for part in FLOWS[flow]:
        if part.command[: len(BENCH)] == BENCH:
            found = parser.parse_args([*part.command[4:], "--lines", "x"])
            assert found.shape in ("gpt-oss-120b", "gpt-oss-20b") and found.repeats <= 8
        elif part.command[: len(KERNELS)] == KERNELS:
            assert kernels_parser.parse_args([*part.command[2:], "--lines", "x"]).part in PARTS
    assert sum(part.seconds for part in CURVE) <= 10 * 60


def part(code):
    return Part("some", ("-c", code), 60)


def test_a_part_that_fails_or_takes_too_long_leaves_what_it_wrote(tmp_path):
    line = f"import sys; open({str(tmp_path / 'lines')!r}, 'a').write('{{}}' + chr(10)); "
    command = part(line + "sys.exit('no such thing')").command
    assert run_part(part(""), command, tmp_path, 60)["ended"] == "1"
    # A process of its own, too, which would keep the memory of a GPU.
    child = "import subprocess; subprocess.run(['sleep', '1000'])"
    assert run_part(part(""), part(line + child).command, tmp_path, 2)["ended"] == "stopped at its limit"
    assert (tmp_path / "lines").read_text() == "{}\n{}\n"
    assert "no such thing" in (tmp_path / "log.txt").read_text()


def row(tokens, modes, why_not=(), **changes):
    measured = {name: {"peak_bytes": tokens << 20, "tokens_per_s": {"median": 1e6 / tokens}} for name in modes}
    place = {"shape": "x", "hardware": {"device": "GPU"}, "versions": {"torch": "2"}, "dtype": "bf16"}
    common = {"bench": "train", "supervised": 1.0, "with_target": False} | place
    lost = dict.fromkeys(why_not, "out of memory")
    return common | {"tokens": tokens, "modes": measured, "why_not": lost} | changes


def test_points_of_a_curve(tmp_path):
    rows = [row(8, ["ours"], ["plain"]), row(4, ["ours", "plain"]), row(8, ["hard"]), row(4, ["ours"], supervised=0.3)]
    longest = {key: value for key, value in row(9, ["ours"], longest="ours").items() if key != "modes"}
    found, title = curve.points([*rows, row(4, ["ours"], with_target=True), longest])
    assert {mode: ([x[0] for x in one.measured], one.out_of_memory) for mode, one in found.items()} == {
        "ours": ([4, 8], []), "hard": ([8], []), "plain": ([4], [8]),
    }  # fmt: skip
    assert "SIMULATED" in title and "GPU" in title
    curve.draw(found, title, tmp_path / "curve.svg")
    assert "<svg" in (tmp_path / "curve.svg").read_text()
    with pytest.raises(SystemExit, match="2 places"):
        curve.points([*rows[:2], row(4, ["ours"], dtype="fp32")])


@pytest.mark.slow
def test_lines_that_the_bench_writes_are_drawn(tmp_path, capsys):
    from eyas.cli import main

    settings, lines = tmp_path / "small.yaml", tmp_path / "lines.jsonl"
    settings.write_text(
        "head: {draft_vocab: 256, intermediate_size: 64, num_heads: 2, num_kv_heads: 1}\ntrain: {depths: 2}"
    )
    command = ["train", "bench", str(settings), "--tokens", "32,64", "--supervised", "1", "--mode", "ours,checkpoints"]
    assert main([*command, "--repeats", "1", "--lines", str(lines)]) == 0
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    whole = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [one["modes"] for one in rows] == [one["modes"] for one in whole["results"]]
    assert rows[0]["losses"] and rows[0]["planned_bytes"]["head pass"] > 0
    found, _ = curve.points(rows)
    assert [x[0] for x in found["ours"].measured] == [32, 64] and found.keys() == {"ours", "checkpoints"}

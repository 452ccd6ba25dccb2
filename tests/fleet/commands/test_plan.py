"""What a plan for this machine takes from it: its cache, paths from here; and that it needs no memory of its own."""

import argparse
import json

import pytest
from msgspec.structs import replace

from eyas import __version__
from eyas.cli import main
from eyas.fleet.commands.plan import add_ask_arguments, ask_of
from eyas.fleet.machines.measurements import file_of, identity, weights_of, write
from eyas.fleet.machines.node import LocalNode
from eyas.fleet.machines.probe import look
from eyas.recipes.measured import Measurements
from eyas.recipes.plan import Measured, Range
from eyas.recipes.planning.ask import Ask


@pytest.fixture
def planned(tmp_path, monkeypatch, capsys):
    """The plan of `eyas plan demo FLAGS`."""
    for name in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EYAS_HOME", str(tmp_path / "eyas"))
    monkeypatch.chdir(tmp_path)

    def plan(*flags):
        code = main(["plan", "demo", "--json", *flags])
        out, err = capsys.readouterr()
        assert code == 0, err
        return json.loads(out)

    return plan


def test_the_cache_of_this_machine(planned, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", "/c/hub")
    assert planned("--engine", "eyas")["choice"]["cache"] == "/c"
    assert planned("--engine", "eyas", "--cache", "/d")["choice"]["cache"] == "/d"
    assert planned("--engine", "llama.cpp", "--on", "spark")["choice"]["cache"]["expand"] == "home"


def test_a_program_is_found_from_here(planned, tmp_path):
    chosen = planned("--engine", "llama.cpp", "--binary", "./llama-server")
    assert chosen["emission"]["launches"][-1]["argv"][0] == str(tmp_path / "llama-server")
    chosen = planned("--engine", "llama.cpp", "--binary", "llama-server")
    assert chosen["emission"]["launches"][-1]["argv"][0] == "llama-server"


def test_no_state_folder_is_needed(planned, monkeypatch):
    monkeypatch.setenv("EYAS_HOME", "/proc/none")
    assert planned("--engine", "eyas")["choice"]["model"] == "demo"


def test_flags_that_nobody_gave_ask_for_nothing(monkeypatch):
    """`eyas up PLAN.yaml` refuses flags beside the file; a person's environment is none."""
    monkeypatch.setenv("HF_HOME", "/h")
    parser = argparse.ArgumentParser()
    add_ask_arguments(parser)
    assert ask_of(parser.parse_args(["plan.yaml"])) == Ask(model="plan.yaml")


def test_what_was_measured_here_takes_the_models_place_unless_it_shall_not(planned, tmp_path):
    ask, machine = Ask(model="demo"), look(LocalNode())
    row = Measured(
        engine="eyas",
        version=__version__,
        context=128,
        concurrency=4,
        windows=5,
        tokens_per_second=4321.0,
        interval=Range(low=4300.0, high=4340.0),
        expected=Range(low=100.0, high=200.0),
        date="2026-11-26",
    )
    found = Measurements(machine=identity(machine), model="demo", weights=weights_of(ask), rows=(row,))
    write(file_of(tmp_path / "eyas", ask), found)
    plan = planned()
    assert plan["speed"]["measured"]["tokens_per_second"] == 4321 and plan["choice"]["method"] == "none"
    assert "4321 tokens per second" in plan["reasons"][0]["text"]
    assert "measured" not in planned("--no-measurements")["speed"]
    assert "measured" not in planned("--concurrency", "3")["speed"]
    assert "measured" not in planned("--on", "h100", "--engine", "eyas")["speed"]
    write(file_of(tmp_path / "eyas", ask), replace(found, machine="another"))
    assert "measured" not in planned()["speed"]

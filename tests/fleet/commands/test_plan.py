"""What a plan for this machine takes from it: its cache, paths from here; and that it needs no memory of its own."""

import argparse
import json

import pytest

from eyas.cli import main
from eyas.fleet.commands.plan import add_ask_arguments, ask_of
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

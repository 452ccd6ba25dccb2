"""The folder of a run: one process at a time, one run, and the settings that it began with."""

import subprocess
import sys
from dataclasses import replace

import pytest
from tests.train.support import toy

from eyas.base.errors import UserError
from eyas.train.records.run_folder import RunFolder
from eyas.train.settings.reading import as_plain
from eyas.train.settings.schema import RunSettings, TrainSettings
from eyas.train.steps.processes import Processes

FACTS = {"data": "1", "vocabulary": "2"}
HOLD = """
import sys
from pathlib import Path
from eyas.train.steps.processes import Processes
from eyas.train.records.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])).taken(Processes()):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_belongs_to_one_process(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        folder = RunFolder(tmp_path / "run")
        with pytest.raises(UserError, match="in use by another run"), folder.taken(Processes()):
            pass
        other.kill()  # leaves nothing that has to be cleared away
    with folder.taken(Processes()):
        pass


def test_a_second_run_does_not_overwrite_the_first(tmp_path):
    folder = RunFolder(tmp_path)
    folder.begin(as_plain(RunSettings()), FACTS, toy.head())
    with pytest.raises(UserError, match="holds a run already"):
        folder.begin(as_plain(RunSettings()), FACTS, toy.head())


def test_a_changed_setting_is_named(tmp_path):
    folder, settings = RunFolder(tmp_path), RunSettings(train=TrainSettings(lr=1e-3))
    folder.begin(as_plain(settings), FACTS, toy.head())
    folder.check_settings(as_plain(settings))
    folder.check_settings(as_plain(replace(settings, train=replace(settings.train, log_every=7, keep=3))))
    folder.check_facts(FACTS)
    with pytest.raises(UserError, match=r"other settings: train\.lr, train\.betas; give them back"):
        folder.check_settings(as_plain(RunSettings(train=TrainSettings(betas=(0.9, 0.99)))))
    with pytest.raises(UserError, match="started with another vocabulary"):
        folder.check_facts(FACTS | {"vocabulary": "3"})
    assert folder.settings() == as_plain(settings)


def test_a_folder_without_a_run_says_so(tmp_path):
    with pytest.raises(UserError, match="holds no run"):
        RunFolder(tmp_path).settings()

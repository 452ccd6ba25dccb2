"""Every pinned plan in every format: written or refused in one line, and shellcheck has nothing to say."""

import shutil
import subprocess
from importlib import import_module

import pytest
import yaml
from tests.recipes.planning.test_golden import CASES, plan_for

from eyas.base.errors import UserError

COMMANDS = [case["plan"] for cases in CASES.values() for case in cases if "plan" in case]
FORMATS = ("shell", "compose", "systemd", "sbatch")


@pytest.mark.parametrize(
    "commands", [COMMANDS[::4], pytest.param(COMMANDS, marks=pytest.mark.slow)], ids=["every fourth", "all"]
)
@pytest.mark.parametrize("form", FORMATS)
def test_every_plan_is_written_or_refused(form, commands, tmp_path):
    scripts = []
    for number, command in enumerate(commands):
        try:
            files = import_module(f"eyas.recipes.emit.{form}").render(plan_for(command))
        except UserError as refusal:
            assert form != "shell", command
            assert "\n" not in str(refusal)
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, content in files.items():
            assert "/" not in name
            (folder / name).write_text(content)
            if name.endswith((".sh", ".sbatch")):
                scripts.append(folder / name)
            elif name.endswith(".yaml"):
                assert yaml.safe_load(content)
    assert len(scripts) > len(commands) / 2
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout

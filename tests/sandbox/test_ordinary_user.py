"""The same escapes for a user without rights, where the tests run as root: another way into the namespaces."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from tests.sandbox.support.escapes import ESCAPES
from tests.sandbox.support.outside import SECRET, left_behind, marked
from tests.sandbox.test_escapes import NAMES

from eyas.sandbox.ways import BUBBLEWRAP, NAMESPACES, find_bubblewrap

USER = 4242
RUN_ALL = """
import asyncio, json, sys
from eyas.base.errors import UserError
from eyas.sandbox.limits import Limits
from eyas.sandbox.sandbox import Sandbox
from eyas.sandbox.ways import find_bubblewrap, with_bubblewrap, with_namespaces

async def run(way, programs):
    found = {}
    for name, (code, limits) in programs.items():
        outcome = await Sandbox(way, "this way", Limits(**limits)).run(code)
        found[name] = (outcome.output, outcome.text)
    return found

way, programs = json.load(sys.stdin)
try:
    print(json.dumps(asyncio.run(run(with_bubblewrap(find_bubblewrap()) if way else with_namespaces, programs))))
except UserError as error:
    print(json.dumps(str(error)))
"""


@pytest.fixture
def as_user():
    """Runs a program of ours as a user who owns nothing, with a Python that this user may run."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("the tests run as an ordinary user already, or setpriv (util-linux) is missing")
    switch = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    python = shutil.which("python3", path="/usr/local/bin:/usr/bin")
    newer = [*switch, str(python), "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    if python is None or subprocess.run(newer, check=False).returncode:
        pytest.skip("no Python 3.11 that every user may run")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        source = Path(__file__).parents[2] / "src" / "eyas"
        for name in ("__init__.py", "base/__init__.py", "base/errors.py", "sandbox"):
            target = Path(folder, "eyas", name)
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if name == "sandbox" else shutil.copy)(source / name, target)
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": folder, "OPENAI_API_KEY": SECRET}

        def run(value):
            command = [*switch, python, "-B", "-c", RUN_ALL]
            done = subprocess.run(
                command, input=json.dumps(value), env=environment, capture_output=True, text=True, check=False, cwd="/"
            )
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)

        yield run


@pytest.mark.slow
@pytest.mark.parametrize("way", [NAMESPACES, BUBBLEWRAP])
def test_no_escape_works_for_an_ordinary_user(as_user, outside, way):
    if way == BUBBLEWRAP and find_bubblewrap() is None:
        pytest.skip("bubblewrap 0.7 or newer is not installed")
    programs = {}
    for name in NAMES:
        code = ESCAPES[name].code
        programs[name] = (marked(code.format(**outside) if "{" in code else code), ESCAPES[name].limits)
    found = as_user([way == BUBBLEWRAP, programs])
    if isinstance(found, str):
        pytest.skip(f"{way} do not work for an ordinary user: {found}")
    assert set(found) == set(NAMES)
    assert not {name: text for name, (output, text) in found.items() if ESCAPES[name].has_worked(output, text)}
    assert not any(SECRET in text or "API_KEY" in text for _, text in found.values())
    assert not left_behind() and not os.path.lexists(outside["trace"])

"""Engines of a sweep are started like those of `eyas up`, and are down whatever ends the sweep."""

import os
import signal
import subprocess
import sys

import httpx
import pytest
from tests.fleet.support.lab import members, wait_until

from eyas.base.errors import UserError
from eyas.base.settings.home import home
from eyas.fleet.preflight.plan_file import read_plan
from eyas.tune.guard import left_over
from eyas.tune.servers import Servers

SWEEP = """
import os, sys, time
from eyas.base.settings.home import home
from pathlib import Path
from eyas.fleet.preflight.plan_file import read_plan
from eyas.tune.servers import Servers
with Servers(home(os.environ), os.environ, print) as servers:
    print(servers.start(read_plan(Path(sys.argv[1]))), flush=True)
    time.sleep(600)
"""


def servers_of(lab):
    return Servers(home(os.environ), os.environ, lambda text: None)


def test_what_is_started_answers_and_is_stopped(lab):
    one, other = (read_plan(lab.plan(name=name, directory=lab.tmp / name)) for name in ("one", "other"))
    with servers_of(lab) as servers:
        url = servers.start(one)
        assert httpx.get(f"{url}/health").status_code == 200
        servers.start(other)
        servers.stop("one")
        assert not lab.is_supervised("one") and lab.is_supervised("other")
        assert len(lab.journal_lines()) == 2
    assert not lab.is_supervised("other")


def test_an_arm_that_ends_at_its_start_is_given_up_at_once(lab):
    plan = read_plan(lab.plan("--exit", 3))
    with servers_of(lab) as servers, pytest.raises(UserError, match=r"eyas logs lab --explain"):
        servers.start(plan)
    assert len(lab.journal_lines()) == 1 and not lab.is_supervised("lab")


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL], ids=str)
def test_a_sweep_that_dies_leaves_nothing(lab, number):
    path = lab.plan()
    with subprocess.Popen([sys.executable, "-c", SWEEP, str(path)], stdout=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().strip()
        assert httpx.get(f"{url}/health").status_code == 200
        process.send_signal(number)
        process.wait(60)
    wait_until(lambda: not members(lab.tmp))
    assert not lab.is_supervised("lab") and lab.row().status == "stopped"


def test_names_that_were_begun_and_not_ended():
    assert left_over(["+a\n", "+b\n", "-a\n", "+c\n", "-x\n"]) == ["c", "b"]
    assert left_over([]) == []

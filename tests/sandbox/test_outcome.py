"""The text of a result, and which limit is named, without running anything."""

import os
import signal

import pytest

from eyas.sandbox.limits import Limits
from eyas.sandbox.outcome import Outcome, note_of
from eyas.sandbox.usage import Usage, beyond, look

CASES = [
    (Outcome(output="7\n", seconds=0, exit_code=0), "7\n"),
    (Outcome(output="7", seconds=0, exit_code=0), "7"),
    (Outcome(output="", seconds=0, exit_code=0), "nothing was printed; use print()"),
    (Outcome(output=" \n", seconds=0, exit_code=2), " \nexit status 2, and nothing was printed"),
    (Outcome(output="so far", seconds=9, stopped="timed out after 10 s"), "so far\ntimed out after 10 s"),
    (Outcome(output="", seconds=0, exit_code=128 + signal.SIGSEGV), "killed by SIGSEGV"),
    (Outcome(output="x\n", seconds=0, exit_code=128 + 100), "x\nkilled by signal 100"),
    (Outcome(output="E: no\n", seconds=0, exit_code=1, note="the limit is 1"), "E: no\nthe limit is 1"),
    (Outcome(output="E: no\n", seconds=0, exit_code=1), "E: no\n"),
]


@pytest.mark.parametrize(("outcome", "text"), CASES)
def test_the_text_of_a_result(outcome, text):
    assert outcome.text == text and outcome.is_good == (outcome.exit_code == 0)


def test_only_the_last_line_names_a_limit():
    limits = Limits(open_files=9)
    assert note_of("OSError: [Errno 24] Too many open files\n\n", limits) == "the limit is 9 open files"
    assert note_of("OSError: [Errno 24] Too many open files\nValueError: 1\n", limits) is None
    assert note_of("", limits) is None


def test_which_limit_is_passed():
    limits = Limits(memory_bytes=1 << 20, cpu_s=2, files=3)
    assert beyond(Usage(memory_bytes=1 << 20, cpu_s=2.0, files=3), limits) is None
    assert beyond(Usage(memory_bytes=(1 << 20) + 1), limits) == "used more than 1 MiB of memory"
    assert beyond(Usage(cpu_s=2.01), limits) == "used more than 2 s of CPU time"
    assert beyond(Usage(files=4), limits) == "made more than 3 files"


def test_a_look_at_this_process_and_at_none():
    mine = look(os.getpid())
    assert mine.memory_bytes > 10 << 20 and mine.cpu_s > 0 and mine.files == 0
    assert look(2**22 + 1) == Usage()

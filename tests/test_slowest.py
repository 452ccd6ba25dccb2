"""The table of the slowest files: CPU time of all phases of all tests of a file, children that ended included."""

import os
import subprocess
import sys
from types import SimpleNamespace

from tests.support.slowest import NUM_FILES, SlowestFiles, cpu_s


def table_of(plugin):
    lines = []
    plugin.pytest_terminal_summary(SimpleNamespace(section=lines.append, line=lines.append))
    return lines[2:-1]


def test_files_are_added_up_and_the_slowest_named():
    plugin = SlowestFiles()
    for number in range(NUM_FILES + 5):
        for test in ("a", "b[x::y]"):
            for when in ("setup", "call"):
                report = SimpleNamespace(nodeid=f"tests/{number}.py::test_{test}", when=when, duration=2, cpu_s=number)
                plugin.pytest_runtest_logreport(report)
    plugin.pytest_runtest_logreport(SimpleNamespace(nodeid="tests/died.py::test_c", when="???", duration=900))
    words = [line.split() for line in table_of(plugin)]
    assert words == [[f"{4 * n}.0", "8.0", "2", f"tests/{n}.py"] for n in range(NUM_FILES + 4, 4, -1)]


def test_time_of_children_counts():
    before, own = cpu_s(), os.times().user
    subprocess.run([sys.executable, "-S", "-c", "sum(range(10**6))"], check=True)
    assert cpu_s() - before > os.times().user - own

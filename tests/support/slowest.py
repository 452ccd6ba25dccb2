"""A pytest plugin: the ten files of a run that took the most CPU time."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

NUM_FILES = 10


def cpu_s() -> float:
    """Seconds of CPU time of this process, all its threads, and of those children that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@dataclass
class Cost:
    tests: set[str] = field(default_factory=set)
    cpu_s: float = 0.0
    wall_s: float = 0.0


class SlowestFiles:
    """Measures where tests run (a worker, if there are any) and adds up where their reports arrive."""

    def __init__(self) -> None:
        self.costs: dict[str, Cost] = {}
        self.began = time.monotonic()
        self.marked_cpu_s = cpu_s()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        self.marked_cpu_s = cpu_s()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report = yield
        now = cpu_s()
        report.cpu_s, self.marked_cpu_s = now - self.marked_cpu_s, now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cost = self.costs.setdefault(report.nodeid.partition("::")[0], Cost())
        cost.tests.add(report.nodeid)
        cost.cpu_s += report.cpu_s if hasattr(report, "cpu_s") else 0.0  # a worker that died sends none
        cost.wall_s += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.costs:
            return
        total = sum(cost.cpu_s for cost in self.costs.values())
        slowest = sorted(self.costs.items(), key=lambda item: item[1].cpu_s, reverse=True)
        terminalreporter.section(f"slowest {NUM_FILES} files")
        terminalreporter.line("  CPU s   wall s  tests  file")
        for path, cost in slowest[:NUM_FILES]:
            terminalreporter.line(f"{cost.cpu_s:7.1f}  {cost.wall_s:7.1f}  {len(cost.tests):5}  {path}")
        terminalreporter.line(
            f"{total:7.1f}  CPU seconds in all tests; {time.monotonic() - self.began:.0f} s of wall time"
        )

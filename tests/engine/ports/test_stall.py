"""What counts as a stall: looks at one process over time, with pauses of either side and of the machine."""

import subprocess
import sys
import time

from hypothesis import given
from hypothesis import strategies as st

from eyas.engine.ports.stall import MAX_GAP_S, StallClock, processor_seconds

SECONDS = st.floats(0.01, 500.0)


def look_often(clock, now, used, seconds, *, runs=True, step=0.25):
    """Look every `step` seconds for `seconds`; the time and the processor time after that."""
    for _ in range(round(seconds / step)):
        now += step
        used += 0.001 * runs
        clock.look(now, used)
    return now, used


def test_time_counts_while_the_process_runs():
    clock = StallClock(100.0)
    look_often(clock, 100.0, 0.0, 120.0)
    assert abs(clock.stalled_s - 120.0) < 0.01 and clock.paused_s == 0


def test_beats_that_are_rarer_than_looks_are_enough():
    clock, now, used = StallClock(0.0), 0.0, 0.0
    for _ in range(100):
        now, used = look_often(clock, now, used, 0.25, runs=False)
        now, used = look_often(clock, now, used, 0.25)
    assert abs(clock.stalled_s - 50.0) < 0.01


@given(SECONDS)
def test_a_process_that_is_stopped_counts_as_one_gap_at_most(seconds):
    clock = StallClock(0.0)
    now, used = look_often(clock, 0.0, 1.0, seconds, runs=False)
    before = clock.stalled_s
    assert before <= MAX_GAP_S and abs(clock.paused_s - now) <= 1
    look_often(clock, now, used, 0.25)
    assert clock.stalled_s <= before + MAX_GAP_S and clock.paused_s == 0


@given(SECONDS)
def test_a_pause_of_the_one_who_looks_counts_as_one_gap_at_most(seconds):
    """A machine that was suspended, this process stopped: the clock jumps, and the other may have run meanwhile."""
    clock = StallClock(0.0)
    clock.look(seconds, 0.001)
    assert clock.stalled_s <= MAX_GAP_S


@given(st.lists(st.tuples(SECONDS, st.booleans(), st.booleans()), max_size=50))
def test_a_stall_is_never_longer_than_the_time_in_which_the_process_ran(looks):
    clock, now, used, most = StallClock(0.0), 0.0, 0.0, 0.0
    for gap, ran, is_behind in looks:
        now, used = now + gap, used + 0.001 * ran
        clock.look(now, used, is_behind=is_behind)
        most += MAX_GAP_S * (ran and not is_behind)
        assert 0 <= clock.stalled_s <= most + 1e-9 and (clock.paused_s == 0) == ran
    clock.progressed()
    assert clock.stalled_s == 0


def test_processor_time_of_another_process():
    code = "import sys\nprint(flush=True)\nsys.stdin.readline()\nsum(range(10**6))\nprint(flush=True)\nsys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        while (before := processor_seconds(process.pid)) != processor_seconds(process.pid):
            time.sleep(0.01)
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        assert 0 < before < processor_seconds(process.pid) < before + 60
        process.stdin.close()

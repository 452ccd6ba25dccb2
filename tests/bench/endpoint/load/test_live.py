"""The client's times beside those that a server in another process wrote down as it sent: slow, on a real clock.

Bars: medians within 1 ms of the record, 99th percentiles within 5 ms, where nothing else takes the processor. What the
client's own meter finds late is no measurement, here as in a report.
"""

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from tests.bench.endpoint.support.scripts import SCRIPTS, expected

from eyas.bench.endpoint.figures import end_to_end_s, first_final_s, first_text_s, gaps_s, tpot_s
from eyas.bench.endpoint.load.pace import Limits
from eyas.bench.endpoint.load.session import Settings, Side, run_to_end
from eyas.bench.endpoint.progress import Shown
from eyas.bench.endpoint.prompts.builtin import builtin
from eyas.bench.endpoint.records import Load
from eyas.bench.endpoint.target import Arm, identify
from eyas.bench.stats import percentile

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
NAMES = [name for name in SCRIPTS if name != "a call"]  # as the stub answers them, in turns
MEDIAN_S, P99_S = 0.001, 0.005
MAX_WINDOWS = 3
MAX_LAG_S = 0.002  # p99


@contextlib.contextmanager
def stub():
    command = [sys.executable, "-m", "tests.bench.endpoint.support.stub"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.terminate()


@pytest.mark.parametrize(
    "load", [Load(concurrency=8, max_tokens=64), Load(rate=20.0, max_tokens=64)], ids=["closed", "open"]
)
def test_medians_and_tails_are_those_of_the_record(load):
    idle = []
    for _ in range(MAX_WINDOWS):
        with stub() as url:  # its own in each: the answers that a run asks for first must not be those which are cut
            window, origin_s = measured(url, load)
            off_s = distances_s(window, httpx.get(f"{url}/record").json()["sent"], origin_s)
        for (name, percent), off in off_s.items():
            print(f"{name:<14} p{percent}: off by {1e3 * off:+.3f} ms")
        late_s = window.lag.loop_p99_s
        print(f"the client was {1e3 * late_s:.3f} ms late (p99)")
        missed = {of: off for of, off in off_s.items() if abs(off) > (MEDIAN_S if of[1] == 50 else P99_S)}
        if not missed:
            return
        if late_s <= MAX_LAG_S:
            idle.append(missed)
    assert not idle
    pytest.skip(f"the client was more than {1e3 * MAX_LAG_S:.0f} ms late in each of {MAX_WINDOWS} windows")


def measured(url, load):
    """Return a window of 240 requests and the clock's time at its beginning."""
    arm = Arm(name="A", url=url)
    settings = Settings(
        loads=(load,), prompts=("chat",), limits=Limits(warm_up_s=0, num_requests=240), turns=1, keeps_text=True
    )
    windows, origin_s = [], None

    def clock():
        nonlocal origin_s
        origin_s = time.monotonic() if origin_s is None else origin_s  # the run's times begin at its first look
        return time.monotonic()

    ended = run_to_end(
        [Side(arm=arm, endpoint=identify(arm))],
        builtin("chat"),
        settings,
        run="test",
        keep=windows.append,
        watcher=Shown(),
        clock=clock,
    )
    assert ended == ""
    (window,) = windows
    return window, origin_s


def distances_s(window, all_sent, origin_s):
    """Return our percentiles less the record's, after comparing each chunk with what was sent."""
    ours, theirs = {}, {}
    num_cut = 0
    for one in window.records:
        number = int(one.text.partition(" ")[0].removeprefix("#"))
        script, sent = SCRIPTS[NAMES[number % len(NAMES)]], all_sent[number]
        assert len(one.chunks) == len(sent)
        assert [(chunk.kind, chunk.num_chars, chunk.tokens) for chunk in one.chunks] == [tuple(it[1:]) for it in sent]
        assert (one.error is not None) == script.resets
        if script.resets:
            num_cut += 1
            continue
        hidden = script.reasoning if all(kind != "reasoning" for _, kind, _, _ in sent) else 0
        chunks = [(at - one.scheduled_s - origin_s, kind, tokens) for at, kind, _, tokens in sent]
        right = expected(chunks, script.tokens, hidden)
        for measure in (first_text_s, first_final_s, end_to_end_s, tpot_s):
            if getattr(right, measure.__name__) is not None:
                ours.setdefault(measure.__name__, []).append(measure(one))
                theirs.setdefault(measure.__name__, []).append(getattr(right, measure.__name__))
        ours.setdefault("gaps_s", []).extend(gaps_s(one))
        theirs.setdefault("gaps_s", []).extend(right.gaps_s)
    assert num_cut > 10
    return {
        (name, percent): percentile(values, percent) - percentile(theirs[name], percent)
        for name, values in ours.items()
        for percent in (50, 99)
    }

"""The engine in its own process: what it takes and refuses, its end, and every fault that it comes back from."""

import os
import queue
import random
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from eyas.base.errors import Busy, InvalidRequest, Unavailable, UserError
from eyas.base.settings.config import EngineConfig
from eyas.base.types import FinishReason, Request, SamplingParams
from eyas.engine.ports.process import EngineProcess

PROMPT = (4, 8, 15, 16, 23, 42)
LIMIT_S = 30  # how long a test waits for what must come


def start(model="null:2", **options):
    return closing(EngineProcess(EngineConfig(model=model, concurrency=4, context=4096), **options))


def request(name="r", prompt=PROMPT, **params):
    return Request(request_id=name, prompt_ids=prompt, params=SamplingParams(**params))


def submit(engine, *args, **params):
    inbox = queue.SimpleQueue()
    engine.submit(request(*args, **params), inbox.put)
    return inbox


def events_of(inbox, num_choices=1):
    """Events until each choice has ended."""
    events = []
    while sum(event.finish is not None for event in events) < num_choices:
        events.append(inbox.get(timeout=LIMIT_S))
    return events


def until(condition):
    """Wait for `condition`; the seconds that it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + LIMIT_S
        time.sleep(0.005)
    return time.monotonic() - began


def is_running(pid):
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def tokens_of(events):
    return [token for event in events for token in event.token_ids]


def test_answers_reports_and_numbers_come_through():
    with start() as engine:
        reports = []
        engine.observe(reports.append)
        events = events_of(submit(engine, max_tokens=20, n=2), 2)
        assert [event.finish for event in events if event.finish] == [FinishReason.STOP] * 2
        assert [len(tokens_of(e for e in events if e.choice == choice)) for choice in (0, 1)] == [20, 20]
        until(lambda: reports and reports[-1].events[-1] == events[-1])
        assert [event for report in reports for event in report.events] == events
        assert [report.step for report in reports] == list(range(1, len(reports) + 1))
        assert engine.stats().num_generated_tokens == 40 and engine.stats().num_running == 0
        assert engine.info.name == "null" and engine.tokenizer.vocab_size == engine.info.vocab_size
        assert (engine.model_folder / "tokenizer.json").is_file()
        assert (engine.state, engine.failure, engine.num_restarts, engine.num_in_flight) == ("ready", None, 0, 0)


def test_what_cannot_run_is_refused_before_it_is_sent():
    with start(max_queue=1) as engine:
        for wrong, words in [
            ({"prompt": ()}, "the prompt is empty"),
            ({"prompt": (1,) * 4096}, "the prompt has 4096 tokens, the context holds 4096"),
            ({"prompt": (4096,)}, "prompt has a token id outside 0..4095"),
            ({"logit_bias": {5000: 1.0}}, "logit_bias has a token id"),
        ]:
            with pytest.raises(InvalidRequest, match=words):
                submit(engine, **wrong)
        inbox = submit(engine, "a", n=4, max_tokens=4000)
        with pytest.raises(InvalidRequest, match="'a' is running"):
            submit(engine, "a")
        submit(engine, "b", max_tokens=4000)
        with pytest.raises(Busy, match="1 waiting, at most 1"):
            submit(engine, "c")
        with pytest.raises(InvalidRequest, match="n must be at most 5"):
            submit(engine, "c", n=6)
        engine.cancel("b")
        engine.cancel("a", 2)
        engine.cancel("nobody")
        assert events_of(inbox)[-1].choice == 2
        engine.cancel("a")
        assert {event.finish for event in events_of(inbox, 3) if event.finish} == {FinishReason.CANCELLED}
        assert events_of(submit(engine, "c", max_tokens=5))[-1].finish is FinishReason.STOP


def test_all_choices_of_a_request_count_for_the_queue():
    with start(max_queue=2) as engine:
        submit(engine, "a", n=5, max_tokens=4000)
        with pytest.raises(Busy, match="1 waiting, at most 2, and n asks for 2"):
            submit(engine, "b", n=2)
        submit(engine, "b")


def test_what_cannot_be_sent_is_refused_and_forgotten():
    with start() as engine:
        with pytest.raises(UnicodeEncodeError):
            submit(engine, "\ud800")
        assert engine.num_in_flight == 0
        assert len(tokens_of(events_of(submit(engine, max_tokens=20)))) == 20


def test_keys_are_no_part_of_the_engines_environment(monkeypatch):
    monkeypatch.setenv("EYAS_API_KEY", "crow")
    monkeypatch.setenv("RAVEN", "here")
    with start() as engine:
        environment = Path(f"/proc/{engine.pid}/environ").read_bytes()
        assert b"RAVEN=here" in environment and b"crow" not in environment and b"EYAS_" not in environment


def test_closing_cancels_what_runs_and_leaves_no_process():
    with start() as engine:
        inbox, pid = submit(engine, max_tokens=4000), engine.pid
        inbox.get(timeout=LIMIT_S)
        engine.close()
        last = events_of(inbox)[-1]
        assert (last.finish, last.error) == (FinishReason.CANCELLED, None)
        assert not Path(f"/proc/{pid}").exists() and engine.pid is None
        with pytest.raises(Unavailable, match="the engine was stopped"):
            submit(engine)
        engine.cancel("r")


def test_draining_lets_answers_end_and_takes_no_more():
    with start() as engine:
        inbox = submit(engine, max_tokens=100)
        engine.drain()
        assert engine.failure == "the server is stopping"
        with pytest.raises(Unavailable, match="stopping"):
            submit(engine, "late")
        assert len(tokens_of(events_of(inbox))) == 100


def test_a_model_that_cannot_be_loaded_is_the_callers_to_mend():
    for model, words in [("null:soon", "'soon' is not a number of milliseconds"), ("/no/such", "/no/such")]:
        with pytest.raises(UserError, match=words):
            EngineProcess(EngineConfig(model=model, offline=True))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV], ids=lambda number: number.name)
def test_a_process_that_dies_costs_its_requests_one_error_each(number):
    with start() as engine:
        inbox = submit(engine, n=3, max_tokens=4000)
        inbox.get(timeout=LIMIT_S)
        tokens, pid = engine.stats().num_generated_tokens, engine.pid
        os.kill(pid, number)
        began = time.monotonic()
        until(lambda: engine.failure)
        with pytest.raises(Unavailable, match="restarted"):
            submit(engine, "late")
        errors = [event for event in events_of(inbox, 3) if event.finish]
        print(f"\n{number.name}: error after {(time.monotonic() - began) * 1e3:.0f} ms", end="")
        until(lambda: engine.failure is None)
        print(f", ready after {(time.monotonic() - began) * 1e3:.0f} ms")
        text = f"the engine process was killed by {number.name}; it is being restarted, please send the request again"
        assert [(e.choice, e.finish, e.error) for e in errors] == [(i, FinishReason.ERROR, text) for i in range(3)]
        assert not Path(f"/proc/{pid}").exists() and engine.num_restarts == 1
        assert len(tokens_of(events_of(submit(engine, "r", max_tokens=20)))) == 20 and inbox.empty()
        assert engine.stats().num_generated_tokens >= tokens + 20  # counters go on
        assert engine.stats().num_restarts == 1


def test_a_step_that_takes_too_long_is_ended():
    with start("null:60000", step_timeout=1.0) as engine:
        error = events_of(submit(engine))[-1]
        assert error.finish is FinishReason.ERROR and "made no progress for 1 s and was killed" in error.error
        until(lambda: engine.failure is None)


def test_a_process_that_is_of_no_use_is_started_ever_later():
    with start() as engine:
        waits = []
        for _ in range(3):
            os.kill(engine.pid, signal.SIGKILL)
            until(lambda: engine.failure)
            waits.append(until(lambda: engine.failure is None))
        assert waits[1] >= 1 and waits[2] >= 2


def test_random_deaths_under_load_touch_nobody_twice():
    """Whatever happens, each choice gets tokens of its own answer only, in order, and one last event."""
    rng = random.Random(5)
    with start(max_queue=1000) as engine:
        whole = tokens_of(events_of(submit(engine, max_tokens=60)))
        asked, num_errors = [], 0
        for round_ in range(3):
            for index in range(40):
                try:
                    asked.append((submit(engine, f"{round_}-{index}", max_tokens=60, n=2), 2))
                except Unavailable:
                    num_errors += 1
                if index == 20:
                    time.sleep(rng.uniform(0, 0.05))  # rounds take 2 ms, an answer 20 of them
                    os.kill(engine.pid, signal.SIGKILL)
            until(lambda count=round_ + 1: engine.num_restarts == count and engine.failure is None)
            assert tokens_of(events_of(submit(engine, f"after {round_}", max_tokens=60))) == whole
        for inbox, n in asked:
            events = events_of(inbox, n)
            for choice in range(n):
                mine = [event for event in events if event.choice == choice]
                assert [event.finish is not None for event in mine] == [False] * (len(mine) - 1) + [True]
                tokens = tokens_of(mine)
                num_errors += mine[-1].finish is FinishReason.ERROR
                assert tokens == (whole[: len(tokens)] if mine[-1].finish is FinishReason.ERROR else whole)
            assert inbox.empty()
        assert num_errors and engine.num_restarts == 3 and engine.num_in_flight == 0


def test_a_slow_reader_slows_the_engine_down_and_loses_nothing():
    with start("null") as engine:
        engine.observe(lambda report: time.sleep(0.01) if report.step < 100 else None)
        whole = tokens_of(events_of(submit(engine, "alone", max_tokens=900)))
        inboxes = [submit(engine, str(index), max_tokens=900) for index in range(4)]
        assert [tokens_of(events_of(inbox)) for inbox in inboxes] == [whole] * 4
        assert engine.num_restarts == 0


LOADS = """
from eyas.base.settings.config import EngineConfig
from eyas.engine.ports.process import EngineProcess
engine = EngineProcess(EngineConfig(model="null"))
print(engine.pid, flush=True)
input()
"""


def test_the_process_ends_with_its_parent_however_that_ends():
    with subprocess.Popen([sys.executable, "-c", LOADS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()
        until(lambda: not is_running(pid))


def test_the_parent_needs_no_torch():
    code = (
        "import sys\nfrom eyas.engine.ports.process import EngineProcess\n"
        "from eyas.base.settings.config import EngineConfig\n"
        "EngineProcess(EngineConfig(model='null')).close()\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=LIMIT_S)

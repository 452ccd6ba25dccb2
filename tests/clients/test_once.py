"""Every tool runs once, although the engine's process is killed at random moments of the session."""

import os
import random
import signal
import threading

import pytest
from tests.clients.support.scripted import analysis, final
from tests.clients.support.steps import log_lines, logged

from eyas.base.harmony.rendering import Message

NUM_KILLS = 20
NUM_STEPS = 24


def preamble(text: str) -> Message:
    return Message(role="assistant", channel="commentary", content=text)


def steps(rng: random.Random) -> list[list[Message]]:
    """Return steps of all shapes: with reasoning, with words before the call, with neither."""
    found = []
    for number in range(NUM_STEPS):
        words = [preamble(f"Now comes the step with the number {number}, as it should.")]
        thought = [analysis(f"After step {number - 1} there is step {number}.")]
        found.append([*rng.choice([[], words, thought, thought + words]), logged(number)])
    return [*found, [analysis("That was all."), final("All steps are done, each of them once.")]]


class Killer:
    """Kills the engine's process: at the n-th token of an answer, drawn for some of the answers as they come."""

    def __init__(self, box, rng: random.Random) -> None:
        self._box = box
        self._rng = rng
        self._aims: dict[int, int] = {}  # of an answer: tokens until the kill
        self.num_kills = 0
        self._lock = threading.Lock()

    def on_token(self, exchange) -> None:
        with self._lock:
            key = id(exchange)
            if key not in self._aims:
                self._aims[key] = self._rng.randrange(70) if self._rng.random() < 0.4 else -1
            self._aims[key] -= 1
            if self._aims[key] == -1 and self.num_kills < NUM_KILLS and (pid := self._box.engine.pid) is not None:
                self.num_kills += 1
                os.kill(pid, signal.SIGKILL)


@pytest.mark.timeout(900)
def test_the_engine_is_killed_twenty_times(box, new_client):
    rng = random.Random(5)
    killer, num_restarts = Killer(box, rng), box.engine.num_restarts
    box.port.on_token = killer.on_token
    for session in range(6):
        client = new_client(f"session-{session}")
        box.script.on(f"TASK-ONCE-{session}", *steps(rng))
        run = client.run(box.settings(), f"TASK-ONCE-{session}: all steps", limit_s=400)
        assert run.result["result"] == "All steps are done, each of them once.", run.out
        assert log_lines(client.project) == [f"step {number}" for number in range(NUM_STEPS)]
        if killer.num_kills == NUM_KILLS:
            break
    print(f"\n{killer.num_kills} kills in {session + 1} sessions, {len(box.recorder.messages)} requests")
    assert killer.num_kills == NUM_KILLS == box.engine.num_restarts - num_restarts

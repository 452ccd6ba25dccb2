"""Every tool runs once, although the engine's process is killed at random moments of the session."""

import os
import random
import signal
import threading

import pytest
from tests.clients.support.box import Box
from tests.clients.support.scripted import Exchange, analysis, final
from tests.clients.support.steps import log_lines, logged
from tests.gateway.support.gateway import eventually

from eyas.base.harmony.rendering import Message

NUM_KILLS = 20
NUM_STEPS = 16
MOST_SESSIONS = 8


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


class Killer(threading.Thread):
    """Kills the engine's process, in turn some tokens later, within an answer, and some time later, at any moment.

    Between two kills one answer at least is whole: the client gives up after ten failures in a row.
    """

    def __init__(self, box: Box, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self._box = box
        self._rng = rng
        self._tokens_left = 0
        self._is_time = threading.Event()
        self.ended = threading.Event()
        self.num_kills = 0

    def run(self) -> None:
        num_whole = -1
        while self.num_kills < NUM_KILLS and not self.ended.wait(0.05):
            if self._box.engine.state != "ready" or self._num_whole() <= num_whole:
                continue
            num_whole = self._num_whole()
            if self.num_kills % 2:
                self.ended.wait(self._rng.uniform(0.0, 5.0))
            else:
                self._tokens_left = self._rng.randint(1, 60)
                self._is_time.clear()
                while not self._is_time.wait(0.05) and not self.ended.is_set():
                    pass
            if not self.ended.is_set() and (pid := self._box.engine.pid) is not None:
                os.kill(pid, signal.SIGKILL)
                self.num_kills += 1

    def _num_whole(self) -> int:
        return sum(exchange.finish == "stop" for exchange in self._box.recorder.messages)

    def on_token(self, exchange: Exchange) -> None:
        self._tokens_left -= 1
        if self._tokens_left == 0:
            self._is_time.set()


@pytest.mark.timeout(900)
def test_the_engine_is_killed_twenty_times(box, new_client):
    rng = random.Random(5)
    killer, num_restarts, session = Killer(box, rng), box.engine.num_restarts, 0
    box.port.on_token = killer.on_token
    killer.start()
    while killer.num_kills < NUM_KILLS and session < MOST_SESSIONS:
        session += 1
        client = new_client(f"session-{session}")
        box.script.on(f"TASK-ONCE-{session}:", *steps(rng))
        run = client.run(box.settings(), f"TASK-ONCE-{session}: all steps", limit_s=400)
        assert run.result["result"] == "All steps are done, each of them once.", run.out
        assert log_lines(client.project) == [f"step {number}" for number in range(NUM_STEPS)]
    killer.ended.set()
    killer.join()
    exchanges = box.recorder.messages
    num_failed = sum(exchange.status != 200 or exchange.finish == "error" for exchange in exchanges)
    print(f"\n{killer.num_kills} kills in {session} sessions: {len(exchanges)} requests, {num_failed} of them failed")
    assert killer.num_kills == NUM_KILLS and num_failed
    assert eventually(lambda: box.engine.num_restarts - num_restarts == NUM_KILLS, 30)

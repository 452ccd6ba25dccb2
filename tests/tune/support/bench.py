"""Engines whose true speeds are known: windows with these speeds, starts and stops, a clock that only they move."""

import random
from math import exp

from eyas.base.errors import UserError
from eyas.bench.endpoint.records import Chunk, Counts, Lag, Load, Record, Window
from eyas.tune.sweep import arm_and_context, window_name

__all__ = ["FakeHands", "names_of", "window"]

WINDOW_S = 10.0


def window(arm, cell, turn, speed, *, void="", length=None):
    """A window in which `speed` tokens a second arrived, rounded to a tenth, with an acceptance length."""
    tokens = round(speed * WINDOW_S)
    record = Record(
        prompt="chat/1",
        category="chat",
        scheduled_s=0.0,
        sent_s=0.0,
        ended_s=9.0,
        chunks=(Chunk(1.0, "text", 1, 1), Chunk(9.0, "text", 10, tokens)),
        output_tokens=tokens,
    )
    return Window(
        arm=window_name(arm, cell.context),
        load=Load(concurrency=cell.concurrency, max_tokens=128),
        turn=turn,
        started_s=0.0,
        ended_s=WINDOW_S,
        records=(record,),
        lag=Lag(loop_p99_s=0.0, send_p99_s=0.0, cpu_share=0.1),
        counts=None if length is None else Counts(rounds=100, accepted=round(100 * (length - 1))),
        void=void,
    )


class FakeHands:
    """Implements `Hands` over `truth`: tokens a second by arm, or by (arm, cell)."""

    def __init__(self, truth, *, noise=0.02, start_s=8.0, window_s=4.0, seed=0, broken=(), void=(), silent=()):
        self.truth, self.noise, self.start_s, self.window_s = truth, noise, start_s, window_s
        self.broken, self.void, self.silent = set(broken), set(void), set(silent)
        self.rng, self.now = random.Random(seed), 0.0
        self.up, self.log = [], []
        self.interrupt_after = None
        self.slow_s = []  # what the windows of the next pairs take

    def clock(self):
        return self.now

    def start(self, name, *, within_s):
        self.log.append(f"+{name}")
        self.now += min(self.start_s, within_s)
        if within_s < self.start_s:
            raise UserError("it is not ready")
        if name in self.broken:
            raise UserError("it ended: out of memory")
        assert name not in self.up
        self.up.append(name)

    def stop(self, name):
        self.log.append(f"-{name}")
        self.up.remove(name)

    def windows(self, names, cell, turn, *, within_s):
        assert set(names) <= set(self.up) and len(self.up) <= 2
        if self.interrupt_after is not None and self.now > self.interrupt_after:
            raise KeyboardInterrupt
        if self.silent & set(names):
            raise UserError("no answer")
        found = []
        end, window_s = self.now + within_s, self.slow_s.pop(0) if self.slow_s else self.window_s
        for name in names:
            self.now = min(self.now + window_s, end)
            if self.now == end:
                break
            speed = self.truth.get((name, cell), self.truth.get(name)) * exp(self.rng.gauss(0, self.noise))
            found.append(window(name, cell, turn, speed, void="the server restarted" if name in self.void else ""))
        return found


def names_of(windows):
    """The arms that windows are of."""
    return {arm_and_context(one.arm)[0] for one in windows}

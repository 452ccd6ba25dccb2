"""No more requests in any second than are let through, whatever asks when."""

from hypothesis import given
from hypothesis import strategies as st

from eyas.discord.gate import Gate


@given(st.integers(1, 5), st.lists(st.floats(0, 0.5), max_size=60), st.integers(0, 60), st.floats(0, 3))
def test_never_more_than_so_many_a_second(per_second, pauses, close_after, closed_s):
    gate, now, times = Gate(per_second), 100.0, []
    closed_until = 0.0
    for number, pause in enumerate(pauses):
        now = gate.opens_at(now + pause)
        assert now >= closed_until
        gate.take(now)
        times.append(now)
        if number == close_after:
            closed_until = now + closed_s
            gate.close(closed_until)
    for first, later in zip(times, times[per_second:], strict=False):
        assert later >= first + 1.0

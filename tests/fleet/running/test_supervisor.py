"""Signals that ask a supervisor to stop, at the worst moment."""

import os
import signal
import threading

import pytest

from eyas.fleet.running.supervisor import SIGNALS, stop_on_signals


@pytest.fixture(autouse=True)
def _handlers_are_left_as_they_were():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.timeout(20)
def test_a_signal_while_the_event_is_being_waited_for(number):
    """`wait` holds the lock of the event when it looks whether it is set, and a signal may come then."""
    stop = threading.Event()
    stop_on_signals(stop)
    with stop._cond:
        os.kill(os.getpid(), number)
        assert not stop.is_set()
    assert stop.wait(10)

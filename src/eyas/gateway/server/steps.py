"""Fans the engine's step reports out to listeners: traces, the live view. Without listeners nothing is observed."""

from __future__ import annotations

import logging
import threading

from eyas.base.ports import EnginePort, Observe
from eyas.base.types import StepReport

__all__ = ["StepHub"]

log = logging.getLogger(__name__)


class StepHub:
    """Calls listeners from the engine's thread, in the order of the steps; they must be quick.

    One that raises is removed: an error in a viewer never costs the engine a step.
    """

    def __init__(self, engine: EnginePort) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._listeners: tuple[Observe, ...] = ()

    @property
    def num_listeners(self) -> int:
        return len(self._listeners)

    def add(self, listener: Observe) -> None:
        """Report every step from now on to `listener`."""
        with self._lock:
            self._listeners += (listener,)
            if len(self._listeners) == 1:
                self._engine.observe(self._report)

    def remove(self, listener: Observe) -> None:
        """Stop reporting to `listener`; it may still get the current step. Ignores unknown ones."""
        with self._lock:
            before = len(self._listeners)
            self._listeners = tuple(one for one in self._listeners if one != listener)
            if before and not self._listeners:
                self._engine.observe(None)

    def _report(self, report: StepReport) -> None:
        for listener in self._listeners:
            try:
                listener(report)
            except Exception:
                log.exception("step listener raised; it is removed")
                self.remove(listener)

"""Computes masks in threads next to the step: a round waits for them briefly, then late sequences wait alone.

A round waits a few milliseconds for all of its masks together. Where some are late, the commit of their sequence is
cut before the first row without a mask, possibly to no token at all. The thread goes on, and the sequence stays out of
rounds until the thread is done. A sequence whose masks were slow comes back only when the mask of its next row is
ready, and drafts nothing for a while: it gets one token a round, and the others never wait for it.

Masks that are not known to be slow share one thread, so that a round hands over once: with a thread each, the threads
compete for the interpreter's lock, which took 1 ms of a round of 2 ms. If the shared thread is still at a mask when the
wait is over, another thread replaces it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

import numpy as np

from eyas.engine.sequences.constraint import Constraint, Words

__all__ = ["ALL", "ROUND_WAIT_S", "MaskThreads", "SequenceMasks", "wait_for_masks"]

ROUND_WAIT_S = 0.005  # one round's wait for all of its masks, after the target has verified
SLOW_S = 0.005  # masks of one sequence and round that take longer are slow
SLOW_JOBS = 4  # quick jobs after a slow one until a sequence drafts again
SLOW_NICE = 10  # niceness of threads with slow masks: where all cores are busy, the step goes first
ALL = 0xFFFFFFFF  # a word that allows its 32 tokens
log = logging.getLogger(__name__)


class MaskThreads:
    """Threads that run jobs: one for each job that is expected to be slow, one shared by all others."""

    def __init__(self) -> None:
        self._inbox: SimpleQueue[_Job | None] = SimpleQueue()
        self._ended: SimpleQueue[None] = SimpleQueue()  # has an entry if a job has ended since the last wait
        self._shared: _Worker | None = None
        weakref.finalize(self, self._inbox.put, None)

    def start(self, job: _Job, *, is_slow: bool) -> None:
        if is_slow:
            threading.Thread(
                target=_run, args=(job, self._ended, SLOW_NICE), name="eyas-slow-mask", daemon=True
            ).start()
            return
        if self._shared is None:
            self._shared = _Worker(self._inbox, self._ended)
        self._inbox.put(job)

    def wait(self, busy: Collection[SequenceMasks], seconds: float, *, for_any: bool) -> None:
        """Wait until all of `busy` have their masks (`for_any`: one of them), for at most `seconds`."""
        end, enough = time.monotonic() + seconds, any if for_any else all
        while not enough(not masks.is_busy for masks in busy):
            left = end - time.monotonic()
            if left <= 0:
                if self._shared is not None and self._shared.is_at_work:
                    self._shared.is_replaced = True
                    self._shared = _Worker(self._inbox, self._ended)
                return
            with suppress(Empty):
                self._ended.get(timeout=left)


class _Worker(threading.Thread):
    """Runs the jobs of an inbox until it reads None, or is replaced."""

    def __init__(self, inbox: SimpleQueue[_Job | None], ended: SimpleQueue[None]) -> None:
        super().__init__(name="eyas-mask", daemon=True)
        self.is_at_work = self.is_replaced = False
        self._inbox = inbox
        self._ended = ended
        self.start()

    def run(self) -> None:
        while not self.is_replaced and (job := self._inbox.get()) is not None:
            self.is_at_work = True
            _run(job, self._ended)
            self.is_at_work = False


def _run(job: _Job, ended: SimpleQueue[None], nice: int = 0) -> None:
    job.run(nice)
    if ended.empty():  # one entry is enough: what it wakes looks at all jobs
        ended.put(None)


class _Job:
    """A job: consume `tokens`, then compute the mask of the row after them and of the row after each draft.

    Rows below `num_ready` are written already and stay as they are.
    """

    def __init__(self, constraint: Constraint, tokens: Sequence[int], drafts: Sequence[int], words: Words) -> None:
        self.words_RW = words
        self.num_ready = 0
        self.began = time.monotonic()
        self.seconds = 0.0  # run time, 0 if there was nothing to do
        self.error: str | None = None
        self.has_ended = False
        self._constraint = constraint
        self._tokens = tokens
        self._drafts = drafts

    def run(self, nice: int = 0) -> None:
        began = time.monotonic()
        try:
            if nice:
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
            self._constraint.advance(self._tokens)
            for row in self._constraint.rows(self._drafts, self.words_RW, num_known=self.num_ready):
                self.num_ready = row + 1
        except BaseException as error:  # a panic of the library is not an Exception
            log.exception("computing a mask failed")
            self.error = f"the grammar cannot be followed further: {error!r}"
            self.words_RW[self.num_ready :] = 0
        self.num_ready = len(self.words_RW)  # also rows that no draft reaches
        self.seconds = time.monotonic() - began
        self.has_ended = True


class SequenceMasks:
    """The masks of one sequence. Used by the engine's thread; while a job runs, the constraint belongs to it."""

    def __init__(self, constraint: Constraint, threads: MaskThreads, num_words: int, first: Words | None) -> None:
        """`first` is the mask of the first token under the grammar, None without one."""
        self.num_consumed = 0  # generated tokens that the constraint has consumed
        self._constraint = constraint
        self.threads = threads
        self._num_words = num_words
        self._num_delivered = 0
        self._unseen: list[int] = []  # delivered, not consumed yet
        self._next: Words | None = None  # the mask of the row after all consumed tokens
        self._num_slow = 0  # coming jobs for which the sequence counts as slow
        self._job: _Job | None = None
        self._error: str | None = None
        if first is not None:
            self._next = first.copy()
            constraint.forbid((), self._next)

    @property
    def failure(self) -> str:
        """The reason why a row of the last masks allows no token."""
        return self._error or self._constraint.failure

    @property
    def is_slow(self) -> bool:
        return self._num_slow > 0

    @property
    def is_busy(self) -> bool:
        """Whether a job is running."""
        return self._job is not None and not self._job.has_ended

    @property
    def busy_s(self) -> float:
        """Seconds since the running job began; 0 without one."""
        return time.monotonic() - self._job.began if self._job is not None and self.is_busy else 0.0

    def delivered(self, tokens: Sequence[int]) -> None:
        """Note that the host has read these committed tokens. On a GPU `ask` may have had them before."""
        self._num_delivered += len(tokens)
        num_unseen = max(0, self._num_delivered - self.num_consumed)
        self._unseen = [*self._unseen, *tokens][-num_unseen:] if num_unseen else []

    def may_run(self, *, is_in_flight: bool) -> bool:
        """Whether the next round may take the sequence. If not, a thread computes the missing mask, or the host has yet
        to read what the last round committed (`is_in_flight`)."""
        if self.is_busy:
            return False
        self._settle()
        if not self.is_slow:
            return True
        if is_in_flight:
            return False
        if self._next is None or self._unseen:
            self.ask(self._unseen, (), np.full((1, self._num_words), ALL, dtype=np.uint32))
            return False
        return True

    def ask(self, tokens: Sequence[int], drafts: Sequence[int], words_RW: Words) -> None:
        """Start computing the masks after `tokens`, which are all tokens committed since the last call, and each draft.

        They are written to `words_RW`, whose bits are all set; a late job writes even after the round went on.
        """
        assert not self.is_busy, "one job at a time"
        self._settle()
        self._job = job = _Job(self._constraint, tuple(tokens), tuple(drafts), words_RW)
        if self._next is not None and not tokens:
            words_RW[0], job.num_ready = self._next, 1
        self.num_consumed += len(tokens)
        self._unseen, self._next = [], None
        if job.num_ready == len(words_RW):
            job.has_ended = True
        elif self._constraint.is_quick:
            job.run()
        else:
            self.threads.start(job, is_slow=self.is_slow)

    def num_ready(self) -> int | None:
        """Return how many of the masks that were asked for are written, None for all of them."""
        assert self._job is not None
        self._error = self._job.error
        num_ready = self._job.num_ready
        return num_ready if num_ready < len(self._job.words_RW) else None

    def _settle(self) -> None:
        """Keep the first mask of a finished job, and note whether the job was slow."""
        if (job := self._job) is not None:
            self._job, self._next = None, job.words_RW[0]
            if job.seconds:
                self._num_slow = SLOW_JOBS if job.seconds > SLOW_S else max(0, self._num_slow - 1)


def wait_for_masks(sequences: Iterable[SequenceMasks], seconds: float, *, for_any: bool = False) -> None:
    """Wait until none of these sequences has a running job (`for_any`: until one job ends), at most `seconds`."""
    busy = [masks for masks in sequences if masks.is_busy]
    if busy:
        busy[0].threads.wait(busy, seconds, for_any=for_any)

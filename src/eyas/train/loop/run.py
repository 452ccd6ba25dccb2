"""A run from its first step, or its last checkpoint, to its end: steps, evaluations, checkpoints, the exported head."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from eyas.train.evaluation.evaluate import evaluate
from eyas.train.evaluation.results import Evaluation
from eyas.train.loop.parts import Parts
from eyas.train.records.checkpoints import Checkpoint, Checkpoints, write_atomically
from eyas.train.records.metrics import Metrics, read_metrics
from eyas.train.records.plots import write_plots
from eyas.train.records.progress import Progress
from eyas.train.steps.processes import Processes
from eyas.train.steps.trainer import Trainer

__all__ = ["Outcome", "train"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The end of a run. `is_whole`: all steps were done, or the evaluation stopped them."""

    step: int
    is_whole: bool
    best_step: int | None
    evaluation: Evaluation | None  # of the best head


@dataclass(kw_only=True, slots=True)
class _Best:
    """The evaluation so far that decides, and how many came after it."""

    step: int | None = None
    length: float = 0.0
    num_since: int = 0


def train(parts: Parts, out: Path, processes: Processes, *, resume: bool, progress: Progress) -> Outcome:
    """Train until the last step, an early stop, or Ctrl-C, after which a checkpoint is written.

    The best checkpoint's weights are in `parts.head` at the end of a whole run. Raises UserError.
    """
    settings = parts.settings
    checkpoints = Checkpoints(out / "checkpoints", keep=settings.train.keep)
    trainer = Trainer(
        parts.head,
        parts.source,
        settings.train,
        rule=settings.data.supervise,
        num_steps=parts.num_steps,
        processes=processes,
        longest_below=parts.longest_below,
    )
    step, best = 0, _Best()
    if resume and checkpoints.steps():
        step, best = _restore(checkpoints.load(), parts, trainer)
        progress.say(f"going on after step {step}")
    run = _Run(parts, out, processes, checkpoints, trainer, best)
    with _interruptible() as interrupted, run.metrics(first_step=step) as metrics:
        saved = step
        while not run.is_over(step) and not processes.any(interrupted()):
            report = trainer.step(step, parts.batches(step))
            step += 1
            progress.step(report, parts.num_steps)
            if metrics is not None:
                metrics.add(step, report.row())
            is_best = False
            if step == parts.num_steps or (settings.eval.every and step % settings.eval.every == 0):
                is_best = run.evaluate(step, metrics, progress)
            if is_best or run.is_over(step) or step % settings.train.save_every == 0:
                run.save(step)
                saved = step
        if saved < step:
            run.save(step)
    is_whole = run.is_over(step)
    if processes.is_first:
        write_plots(list(read_metrics(out / "metrics.jsonl")), out / "plots")
    if is_whole and best.step is not None and best.step != step:
        parts.head.load_state_dict(dict(checkpoints.load(best.step).head))
    return Outcome(step=step, is_whole=is_whole, best_step=best.step, evaluation=run.evaluation)


def _restore(checkpoint: Checkpoint, parts: Parts, trainer: Trainer) -> tuple[int, _Best]:
    parts.head.load_state_dict(dict(checkpoint.head))
    trainer.optimizers.load(checkpoint.optimizer)
    return checkpoint.step, _Best(**checkpoint.state["best"])


class _Run:
    """Evaluations and checkpoints between steps."""

    def __init__(
        self,
        parts: Parts,
        out: Path,
        processes: Processes,
        checkpoints: Checkpoints,
        trainer: Trainer,
        best: _Best,
    ) -> None:
        self._parts, self._out, self._processes = parts, out, processes
        self._checkpoints, self._trainer, self._best = checkpoints, trainer, best
        self.evaluation: Evaluation | None = None

    @contextmanager
    def metrics(self, *, first_step: int) -> Iterator[Metrics | None]:
        if not self._processes.is_first:
            yield None
            return
        with Metrics(self._out, first_step=first_step, tensorboard=self._parts.settings.train.tensorboard) as metrics:
            yield metrics

    def is_over(self, step: int) -> bool:
        """Whether all steps are done, or the acceptance length no longer grows."""
        return step == self._parts.num_steps or 0 < self._parts.settings.eval.patience <= self._best.num_since

    def evaluate(self, step: int, metrics: Metrics | None, progress: Progress) -> bool:
        """Evaluate the head on the held-out chats, if there are any, and return whether it is the best one so far."""
        settings, best = self._parts.settings.eval, self._best
        if not self._parts.held_out:
            return False
        source = self._parts.exact_source
        temperature = None if source.labels_only else 1.0
        found = evaluate(self._parts.head, source, self._parts.held_out_batches(), temperature=temperature)
        lengths = {
            reading: acceptance.content.length
            for reading in found.acceptance
            if (acceptance := found.at(reading, min(settings.draft_tokens, self._parts.head.num_depths)))
            and acceptance.content.length is not None
        }
        if metrics is not None:
            metrics.add(step, {"acceptance_length": lengths, "evaluation": found.json()})
        shown = ", ".join(f"{name} {length:.2f}" for name, length in lengths.items())
        progress.say(f"step {step}: acceptance length on held-out chats: {shown or 'no rounds'}")
        length = self._processes.of_first(lengths.get("target", 0.0))
        is_best = best.step is None or length > best.length
        if is_best:
            best.step, best.length, best.num_since = step, length, 0
            self.evaluation = found
            if self._processes.is_first:
                write_atomically(self._out / "evaluation.json", json.dumps({"step": step} | found.json()) + "\n")
        else:
            best.num_since += 1
        return is_best

    def save(self, step: int) -> None:
        """Write a checkpoint; all processes go on once it is whole."""
        if self._processes.is_first:
            self._checkpoints.save(
                Checkpoint(
                    step=step,
                    head=self._parts.head.state_dict(),
                    optimizer=self._trainer.optimizers.tensors(),
                    state={"best": asdict(self._best)},
                ),
                best_step=self._best.step,
            )
        self._processes.wait()


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether Ctrl-C or SIGTERM asked for the end; a second Ctrl-C ends at once."""
    asked: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""An engine in this process, for the commands that use one: loading it with progress, asking it, measuring it.

This module knows the engine and Harmony, and nothing of HTTP.
"""

from __future__ import annotations

import argparse
import datetime
import queue
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, get_args

from eyas.base.bundled import NULL_NAME
from eyas.base.errors import EyasError
from eyas.base.harmony.rendering import Effort, Message, developer_message, render_conversation, system_message
from eyas.base.settings.config import EngineConfig
from eyas.base.types import FinishReason, Request, SamplingParams, TokenEvent
from eyas.base.units import readable

if TYPE_CHECKING:
    from eyas.base.ports import EnginePort
    from eyas.engine.ports.threaded import Engine
    from eyas.engine.startup.load import LoadedModel

__all__ = [
    "Meter",
    "add_sampling_arguments",
    "ask",
    "describe",
    "load_engine",
    "load_model",
    "load_shape",
    "prelude",
    "progress_line",
    "sampling_params",
]


SIMULATED = " (SIMULATED: random weights)"
NULL = " (SIMULATED: no model, its answers are made up)"
SAMPLING_FLAGS: dict[str, tuple[type, str, str]] = {  # by the name in SamplingParams: type, metavar, help
    "temperature": (float, "T", "sampling temperature; 0 always takes the most likely token"),
    "top_p": (float, "P", "sample from the most likely tokens that add up to P"),
    "top_k": (int, "K", "sample from the K most likely tokens"),
    "min_p": (float, "P", "drop tokens less likely than P times the most likely one"),
    "max_tokens": (int, "N", "end the answer after N tokens"),
}


def load_engine(config: EngineConfig) -> Engine:
    """Load what `config` names, with a progress line on a terminal. Raises UserError."""
    from eyas.engine.ports.threaded import Engine

    with progress_line() as show:
        return Engine.load(config, progress=lambda done, total: show(f"loading {100 * done // max(total, 1)} %"))


def load_model(config: EngineConfig) -> LoadedModel:
    """Load only the model that `config` names: for benchmarks, which build several engines from it."""
    from eyas.engine.startup import load

    with progress_line() as show:
        return load.load_model(config, progress=lambda done, total: show(f"loading {100 * done // max(total, 1)} %"))


def load_shape(name: str, config: EngineConfig) -> LoadedModel:
    """Make random weights of a published shape, for benchmarks."""
    from eyas.engine.startup.random_model import random_model

    return random_model(name, config)


@contextmanager
def progress_line() -> Generator[Callable[[str], None], None, None]:
    """Show the latest text as one line on a terminal's stderr, wiped at the end."""
    is_terminal = sys.stderr.isatty()

    def show(text: str) -> None:
        if is_terminal:
            with suppress(OSError):  # the terminal is gone; the loading goes on
                print(f"\r{text}\033[K", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        show("")


def describe(engine: EnginePort) -> str:
    """Describe, for people, what was loaded and what owns how much memory."""
    info = engine.info
    owners = engine.stats().memory_bytes
    memory = ", ".join(f"{owner} {readable(num)}" for owner, num in owners.items() if num)
    note = NULL if info.name == NULL_NAME else SIMULATED if info.simulated else ""
    return (
        f"model    {info.name}{note}: context {info.context:,} tokens, vocabulary {info.vocab_size:,}\n"
        f"drafter  {info.drafter}{''.join(f', {name} {value}' for name, value in info.details.items())}\n"
        f"memory   {memory or 'none held'}"
    )


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Add flags for SamplingParams, whose defaults they keep, and for the reasoning effort."""
    group = parser.add_argument_group("sampling", "--seed, below, also seeds the answer")
    for name, (kind, metavar, text) in SAMPLING_FLAGS.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=metavar, help=text)
    group.add_argument(
        "--reasoning-effort", choices=get_args(Effort), default="medium", help="how long to reason (default: medium)"
    )
    group.add_argument("--system", metavar="TEXT", help="instructions that the model follows")


def sampling_params(args: argparse.Namespace, config: EngineConfig) -> SamplingParams:
    given = {name: value for name in SAMPLING_FLAGS if (value := getattr(args, name)) is not None}
    return SamplingParams(seed=config.seed, **given)


def prelude(effort: Effort, instructions: str | None) -> list[Message]:
    """Return the messages before the first user's."""
    messages = [system_message(date=datetime.date.today().isoformat(), effort=effort)]
    return messages + ([developer_message(instructions)] if instructions else [])


def ask(engine: Engine, messages: Sequence[Message], params: SamplingParams) -> Generator[TokenEvent, None, None]:
    """Yield the events of one answer; closing the iterator early cancels it. Raises EyasError if it fails."""
    request_id = f"local-{time.monotonic_ns()}"
    events: queue.SimpleQueue[TokenEvent] = queue.SimpleQueue()
    prompt_ids = tuple(render_conversation(engine.tokenizer, messages))
    engine.submit(Request(request_id=request_id, prompt_ids=prompt_ids, params=params), events.put)
    try:
        while True:
            event = events.get()
            if event.finish is FinishReason.ERROR:
                raise EyasError(event.error or "the engine failed")
            yield event
            if event.finish is not None:
                return
    finally:
        engine.cancel(request_id)


@dataclass(kw_only=True)
class Meter:
    """Measures speed and acceptance of one answer."""

    simulated: bool = False
    num_tokens: int = 0
    num_rounds: int = 0
    num_in_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    started: float = field(default_factory=time.perf_counter)
    first: float = 0.0
    last: float = 0.0

    def add(self, event: TokenEvent) -> None:
        self.last = time.perf_counter()
        if not self.num_tokens:
            self.first = self.last
        self.num_tokens += len(event.token_ids)
        if event.round is not None:
            self.num_rounds += 1
            self.num_in_rounds += len(event.token_ids)
            self.num_drafted += len(event.round.draft_ids)
            self.num_accepted += event.round.num_accepted

    def line(self) -> str:
        """Format `52 tokens, 31.0 tok/s, first after 120 ms | acceptance length 2.60, 0.38 target steps per token`."""
        text = f"{'SIMULATED: ' if self.simulated else ''}{self.num_tokens} tokens"
        if self.last > self.first:
            text += f", {self.num_in_rounds / (self.last - self.first):.1f} tok/s"
        text += f", first after {(self.first - self.started) * 1e3:.0f} ms"
        if self.num_in_rounds:
            length, steps = self.num_in_rounds / self.num_rounds, self.num_rounds / self.num_in_rounds
            text += f" | acceptance length {length:.2f}, {steps:.2f} target steps per token"
            text += f", {self.num_accepted} of {self.num_drafted} drafts accepted"
        return text

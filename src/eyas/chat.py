"""`eyas chat`: a conversation in the terminal, with the speed and acceptance of every answer."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from eyas.base import config as settings
from eyas.base.config import EngineConfig
from eyas.base.errors import InvalidRequest
from eyas.base.harmony import Message
from eyas.base.harmony_parser import StreamParser
from eyas.base.types import SamplingParams
from eyas.local import Meter, add_sampling_arguments, ask, describe, load_engine, prelude, sampling_params
from eyas.terminal import DIM, RESET, AnswerPrinter, has_colour

if TYPE_CHECKING:
    from eyas.engine.engine import Engine

__all__ = ["add_arguments", "run"]

HINT = "Ctrl-C stops an answer, Ctrl-D ends the chat, /clear begins a new one."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_sampling_arguments(parser)
    settings.add_arguments(parser, EngineConfig, positional="model")


def run(args: argparse.Namespace) -> int:
    config = settings.load(EngineConfig, args, os.environ)
    params = sampling_params(args, config)
    start = prelude(args.reasoning_effort, args.system)
    with closing(load_engine(config)) as engine:
        print(f"{describe(engine)}\n\n{HINT}")
        history = list(start)
        while (text := _read()) is not None:
            if text == "/clear":
                history = list(start)
            elif text:
                question = Message(role="user", content=text)
                try:
                    history += [question, *_answer(engine, [*history, question], params)]
                except InvalidRequest as error:
                    print(f"{error}; /clear begins a new chat")
    return 0


def _read() -> str | None:
    """The next line, or None at the end."""
    with suppress(ImportError):  # not on every system
        import readline  # noqa: F401  # arrow keys and history for input()
    print()
    try:
        return input("> ").strip()
    except EOFError:
        print()
        return None


def _answer(engine: Engine, messages: list[Message], params: SamplingParams) -> tuple[Message, ...]:
    """Stream one answer; Ctrl-C keeps what has come until then."""
    parser, printer, meter = (
        StreamParser(engine.tokenizer),
        AnswerPrinter(sys.stdout),
        Meter(simulated=engine.info.simulated),
    )
    with closing(ask(engine, messages, params)) as events:
        try:
            for event in events:
                meter.add(event)
                printer.show(parser.feed(event.token_ids))
        except KeyboardInterrupt:
            pass
    printer.show(parser.finish())
    printer.end()
    dim, reset = (DIM, RESET) if has_colour(sys.stdout) else ("", "")
    print(f"{dim}{meter.line()}{reset}")
    return parser.messages

"""`eyas chat`: a conversation in the terminal, with the speed and acceptance of every answer."""

from __future__ import annotations

import argparse
import os
import re
import sys
from contextlib import closing, suppress
from typing import TYPE_CHECKING, get_args

from eyas.base.errors import InvalidRequest
from eyas.base.harmony.parser import StreamParser
from eyas.base.harmony.rendering import Effort, Message
from eyas.base.settings import config as settings
from eyas.base.settings.config import EngineConfig
from eyas.base.types import SamplingParams
from eyas.local import Meter, add_sampling_arguments, ask, describe, load_engine, prelude, sampling_params
from eyas.terminal import DIM, RESET, AnswerPrinter, has_colour

if TYPE_CHECKING:
    from eyas.engine.ports.threaded import Engine

__all__ = ["add_arguments", "run"]

HINT = "Ctrl-C stops an answer, Ctrl-D ends the chat, /help lists what else there is."
EFFORTS = get_args(Effort)
COMMANDS = {
    "/new": "begin a new chat",
    "/effort LEVEL": f"how long to think before answering: {', '.join(EFFORTS)}",
    "/help": "show this list",
    "/quit": "end the chat",
}
COMMAND = re.compile(r"(/[A-Za-z?]*)(?:\s+(.*))?")  # "/etc/hosts" begins a question


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_sampling_arguments(parser)
    settings.add_arguments(parser, EngineConfig, positional="model")


def run(args: argparse.Namespace) -> int:
    config = settings.load(EngineConfig, args, os.environ)
    params = sampling_params(args, config)
    with closing(load_engine(config)) as engine:
        print(f"{describe(engine)}\n\n{HINT}")
        chat = _Chat(engine, params, args.reasoning_effort, args.system)
        while (text := _read()) is not None:
            if command := COMMAND.fullmatch(text):
                if command[1] == "/quit":
                    break
                print(chat.command(command[1], command[2] or ""))
            elif text:
                chat.ask(text)
    return 0


class _Chat:
    """The conversation so far, and what its commands change."""

    def __init__(self, engine: Engine, params: SamplingParams, effort: Effort, instructions: str | None) -> None:
        self._engine = engine
        self._params = params
        self._effort = effort
        self._instructions = instructions
        self._history: list[Message] = []

    def ask(self, text: str) -> None:
        question = Message(role="user", content=text)
        messages = [*prelude(self._effort, self._instructions), *self._history, question]
        try:
            self._history += [question, *_answer(self._engine, messages, self._params)]
        except InvalidRequest as error:
            print(f"{error}; /new begins a new chat")

    def command(self, name: str, argument: str) -> str:
        """Carry out a command; return the text to print."""
        if name == "/new":
            self._history.clear()
            return "a new chat"
        if name == "/effort":
            return self._set_effort(argument)
        if name == "/help":
            width = max(map(len, COMMANDS))
            return "\n".join(f"{usage:{width}}  {meaning}" for usage, meaning in COMMANDS.items())
        return f"unknown command {name!r}: there are {', '.join(COMMANDS)}"

    def _set_effort(self, argument: str) -> str:
        found = next((effort for effort in EFFORTS if effort == argument.strip().lower()), None)
        if found is None:
            asked = f", not {argument!r}" if argument else f"; now it is {self._effort}"
            return f"the effort can be {', '.join(EFFORTS)}{asked}"
        self._effort = found
        return f"effort {found}, from the next answer on"


def _read() -> str | None:
    """Read the next line; None at the end of input. Ctrl-C drops the line."""
    with suppress(ImportError):  # not on every system
        import readline  # noqa: F401  # arrow keys and history for input()
    print()
    try:
        return input("> ").strip()
    except EOFError:
        print()
        return None
    except KeyboardInterrupt:
        print("\nCtrl-D or /quit ends the chat")
        return ""


def _answer(engine: Engine, messages: list[Message], params: SamplingParams) -> tuple[Message, ...]:
    """Stream one answer; Ctrl-C keeps what has arrived so far."""
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

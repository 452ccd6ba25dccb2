"""The `eyas` command: a table of subcommands.

Each names a module with `add_arguments(parser)` and `run(args) -> exit code`; only the chosen one is imported,
so that `eyas --help` stays instant. Exit codes: 0 done, 1 user error, 2 wrong usage, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import takewhile
from typing import Any, NoReturn

from eyas.base.errors import EyasError, nearest

__all__ = ["COMMANDS", "main", "runner_of"]

ENGINE_PACKAGES = ("numpy", "safetensors", "torch")
# Old spellings and what replaced them (CHANGELOG.md).
RENAMED_COMMANDS = {"model": "eyas models"}
RENAMED_OPTIONS = {
    "--head": "--draft",
    "--listen": "--host",
    "--api-keys": "--api-key",
    "--key": "--api-key",
    "--api-key-env": "--api-key env:NAME",
    "--model": "the argument MODEL",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """One subcommand. `part` names what in the module has `add_arguments` and `run`, if not the module itself."""

    module: str
    help: str
    part: str | None = None


COMMANDS = {
    "serve": Command(module="eyas.serve", help="serve a model over HTTP, with the OpenAI API"),
    "chat": Command(module="eyas.chat", help="talk to a model in the terminal"),
    "generate": Command(module="eyas.generate", help="answer one prompt and report acceptance and speed"),
    "ask": Command(module="eyas.ask", help="ask any OpenAI endpoint, and run the Python that it calls in a sandbox"),
    "check": Command(module="eyas.check", help="try what an OpenAI-compatible server does, and advise on tuning it"),
    "doctor": Command(
        module="eyas.fleet.commands.doctor", help="describe this machine, the models that would fit and what is missing"
    ),
    "plan": Command(
        module="eyas.fleet.commands.plan",
        help="choose the engine, draft head and flags for a model on a box, and say why",
    ),
    "tune": Command(
        module="eyas.tune.command", help="measure engines and draft lengths here, and advise; plans then read it"
    ),
    "up": Command(module="eyas.fleet.commands.up", help="start a model or a plan, and wait until it is ready"),
    "down": Command(module="eyas.fleet.commands.down", help="stop deployments on all of their machines"),
    "ps": Command(module="eyas.fleet.commands.ps", help="list deployments, their status and where they run"),
    "logs": Command(module="eyas.fleet.commands.logs", help="show the logs of a deployment and explain known errors"),
    "models list": Command(
        module="eyas.fleet.commands.models_list", help="list the models in the cache and what uses them"
    ),
    "models rm": Command(module="eyas.fleet.commands.models_rm", help="delete models from the cache"),
    "models info": Command(
        module="eyas.model.commands.models_info", help="describe a model or a draft head without loading its weights"
    ),
    "models make": Command(module="eyas.model.commands.models_make", help="write a model with random weights"),
    "train init": Command(module="eyas.train.commands.init", help="write a settings file for training a draft head"),
    "train run": Command(module="eyas.training", part="run", help="train a draft head by a settings file"),
    "train resume": Command(module="eyas.training", part="resume", help="go on with a run that was stopped"),
    "train plan": Command(
        module="eyas.train.commands.plan", help="estimate memory, the longest context and the time of a run"
    ),
    "train eval": Command(
        module="eyas.training", part="evaluation", help="measure the acceptance of a head on held-out chats"
    ),
    "train export": Command(
        module="eyas.train.commands.export", help="write a checkpoint of a run as a head that engines load"
    ),
    "train capture": Command(
        module="eyas.train.commands.capture", help="write the target's hidden states of a run's chats into a folder"
    ),
    "train inspect": Command(
        module="eyas.train.commands.inspect", help="show what of a chat is taught, and count what a file holds"
    ),
    "train regenerate": Command(
        module="eyas.train.commands.regenerate", help="let the model answer the prompts of recorded chats once more"
    ),
    "train bench": Command(
        module="eyas.bench.training.command", help="measure speed and memory of training steps, by document length"
    ),
    "router": Command(
        module="eyas.router.commands.router", help="serve one address in front of many engines, as a file says"
    ),
    "router plan": Command(
        module="eyas.router.commands.plan", help="say which models would be unloaded for which, without doing it"
    ),
    "router alerts": Command(
        module="eyas.router.commands.alerts", help="print alerting rules for Prometheus over a router's metrics"
    ),
    "claude": Command(module="eyas.claude.commands.start", help="start Claude Code on a server"),
    "claude print": Command(module="eyas.claude.commands.print", help="print the settings of Claude Code for a server"),
    "claude write": Command(
        module="eyas.claude.commands.write", help="write the settings for a server into Claude Code's settings.json"
    ),
    "claude undo": Command(module="eyas.claude.commands.undo", help="take out what eyas claude write has written"),
    "claude check": Command(module="eyas.claude.commands.check", help="try on a server what Claude Code needs of it"),
    "discord": Command(module="eyas.discord.commands.discord", help="answer on Discord, as a file says"),
    "key": Command(module="eyas.key", help="make an API key for clients of a server, and its digest"),
    "bench engine": Command(
        module="eyas.bench.engine.command", help="measure the engine's speed by batch size and draft length"
    ),
    "bench mixed": Command(module="eyas.bench.engine.mixed", help="measure latency under mixed prefill and decode"),
    "bench acceptance": Command(
        module="eyas.bench.engine.acceptance", help="measure the acceptance length on a file of prompts"
    ),
    "bench load": Command(
        module="eyas.bench.engine.load", help="measure how fast a checkpoint loads, against reading its files"
    ),
    "bench http": Command(
        module="eyas.bench.http.command",
        help="measure the overhead of the HTTP side: time to first token, CPU per chunk",
    ),
    "bench endpoint": Command(
        module="eyas.bench.endpoint.command",
        help="put load on OpenAI-compatible endpoints: time to first text, speed, goodput",
    ),
    "bench report": Command(
        module="eyas.bench.endpoint.reports.report_command",
        help="write a run against an endpoint as HTML, Markdown or JSON",
    ),
    "bench compare": Command(
        module="eyas.bench.endpoint.reports.compare_command",
        help="say what changed between two runs against endpoints",
    ),
    "export gguf": Command(
        module="eyas.model.commands.export", help="write a model and its draft head as GGUF files for llama.cpp"
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code; errors for users become one line on stderr."""
    try:
        return _dispatch(list(sys.argv[1:] if argv is None else argv))
    except EyasError as error:
        print(f"eyas: error: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if error.name not in ENGINE_PACKAGES:
            raise
        print(f"eyas: error: this needs {error.name}; install it with: pip install 'eyas[engine]'", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of a pipe has gone; keep the interpreter from flushing into it once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _dispatch(argv: list[str]) -> int:
    if argv[:1] == ["--version"]:
        from eyas.base.commit import version_text

        print(f"eyas {version_text()}")
        return 0
    name = next((name for name in (" ".join(argv[:2]), " ".join(argv[:1])) if name in COMMANDS), None)
    if name is None:
        return _overview(argv)
    command = COMMANDS[name]
    runner = runner_of(command)
    parser = _Parser(prog=f"eyas {name}", description=f"{command.help[0].upper()}{command.help[1:]}.")
    runner.add_arguments(parser)
    words = argv[len(name.split()) :]
    options = [option for action in parser._actions for option in action.option_strings]
    _refuse_old_options(parser, options, words)
    args, unknown = parser.parse_known_args(words)
    if unknown:
        word = unknown[0].split("=")[0]  # not its value, which could be a key
        parser.error(f"unexpected '{word}'{nearest(word, options)}")
    return int(runner.run(args))


def runner_of(command: Command) -> Any:
    """Import what has a command's `add_arguments` and `run`."""
    module = import_module(command.module)
    return module if command.part is None else getattr(module, command.part)


def _refuse_old_options(parser: argparse.ArgumentParser, options: Sequence[str], words: Sequence[str]) -> None:
    """Name the new spelling of a renamed option before the parser can complain about anything else."""
    for word in takewhile(lambda word: word != "--", words):
        old = word.split("=")[0]
        if old in RENAMED_OPTIONS and old not in options:
            parser.error(f"no option {old}; it is {RENAMED_OPTIONS[old]} now")


def _overview(argv: list[str]) -> int:
    """Print help for the table itself: all of it, or one group such as `bench`."""
    words = [word for word in argv if word not in ("-h", "--help")]
    group = words[0] + " " if words and any(name.startswith(words[0] + " ") for name in COMMANDS) else ""
    extra = words[1:] if group else words
    if extra:
        known = [name.removeprefix(group).split()[0] for name in COMMANDS if name.startswith(group)]
        renamed = "" if group else RENAMED_COMMANDS.get(extra[0])
        hint = f"; it is {renamed} now" if renamed else nearest(extra[0], known)
        print(f"eyas: error: no command '{group}{extra[0]}'{hint}; try: eyas --help", file=sys.stderr)
        return 2
    print(f"usage: eyas {group or ''}COMMAND ...\n")
    if not group:
        print("gpt-oss made fast with EAGLE-3 speculative decoding.\n")
    for name, command in COMMANDS.items():
        if name.startswith(group):
            print(f"  eyas {name:<17} {command.help}")
    print(f"\nEvery command explains itself: eyas {group}COMMAND --help")
    return 0


class _Parser(argparse.ArgumentParser):
    """Accepts flags by their full names only, and reports a usage error in one line, like every other error."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False} | options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"eyas: error: {message}; try: {self.prog} --help\n")

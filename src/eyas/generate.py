"""`eyas generate`: answers one prompt and reports acceptance and speed."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import closing

from eyas.base.harmony.parser import StreamParser
from eyas.base.harmony.rendering import Message
from eyas.base.settings import config as settings
from eyas.base.settings.config import EngineConfig
from eyas.local import Meter, add_sampling_arguments, ask, load_engine, prelude, sampling_params
from eyas.terminal import AnswerPrinter, DraftPrinter

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", metavar="PROMPT", help="the prompt; '-' reads it from standard input")
    parser.add_argument(
        "--show-draft",
        action="store_true",
        help="mark every token as drafted or the target's own, and show rejected drafts",
    )
    add_sampling_arguments(parser)
    settings.add_arguments(parser, EngineConfig)


def run(args: argparse.Namespace) -> int:
    config = settings.load(EngineConfig, args, os.environ)
    params = sampling_params(args, config)
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    messages = [*prelude(args.reasoning_effort, args.system), Message(role="user", content=prompt)]
    with closing(load_engine(config)) as engine:
        parser = StreamParser(engine.tokenizer)
        answer, drafts = AnswerPrinter(sys.stdout), DraftPrinter(sys.stdout, engine.tokenizer)
        if args.show_draft:
            drafts.legend()
        meter = Meter(simulated=engine.info.simulated)
        with closing(ask(engine, messages, params)) as events:
            for event in events:
                meter.add(event)
                if args.show_draft:
                    drafts.show(event)
                else:
                    answer.show(parser.feed(event.token_ids))
        if args.show_draft:
            drafts.end()
        else:
            answer.show(parser.finish())
            answer.end()
        print(meter.line(), file=sys.stderr)
    return 0

"""`eyas train regenerate`: recorded prompts answered by the target through an OpenAI endpoint, as chats to train on.

httpx is imported by `run` alone, so that help stays instant.
"""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path

from eyas.base.errors import UserError
from eyas.base.settings.config import argument, int_from, key_from

__all__ = ["add_arguments", "run"]

EFFORTS = ("low", "medium", "high")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prompts", type=Path, metavar="PROMPTS.jsonl",
        help="chats, one a line: OpenAI's 'messages' and 'tools', or ShareGPT's 'conversations'. User turns are "
        "answered in their order; a recorded tool result is used where name and arguments of the new call are the same",
    )  # fmt: skip
    parser.add_argument(
        "out", type=Path, metavar="OUT.jsonl",
        help="file of new chats; the same command goes on where it was. OUT.jsonl.run holds the settings",
    )  # fmt: skip
    parser.add_argument("--url", required=True, metavar="URL", help="base URL, such as http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="", metavar="NAME", help="name of the model (default: the endpoint's first)")
    parser.add_argument(
        "--api-key", type=_variable, metavar="env:NAME", help="environment variable that holds the endpoint's API key"
    )
    parser.add_argument(
        "--concurrency", type=argument(int_from(1, 4096)), default=16, metavar="N", help="chats at once (default: 16)"
    )
    parser.add_argument(
        "--temperature", type=_temperature, default=1.0, metavar="T",
        help="temperature (default: 1, the model's own distribution)",
    )  # fmt: skip
    parser.add_argument(
        "--max-tokens", type=argument(int_from(1)), metavar="N",
        help="most tokens of an answer; one that reaches it is left out and ends its chat (default: the endpoint's)",
    )  # fmt: skip
    parser.add_argument("--effort", choices=EFFORTS, help="reasoning effort (default: the chat's, else the endpoint's)")
    parser.add_argument(
        "--python", action="store_true",
        help="offer a 'python' tool in every chat and run its calls here, in a sandbox without network and files",
    )  # fmt: skip
    parser.add_argument("--limit", type=argument(int_from(1)), metavar="N", help="answer the first N chats only")
    parser.add_argument(
        "--seed",
        type=argument(int_from(0)),
        metavar="N",
        help="makes answers repeatable where the endpoint does; each has its own",
    )
    parser.add_argument(
        "--patience", type=argument(int_from(0)), default=120, metavar="S",
        help="seconds for which the endpoint may answer nothing and is tried again (default: 120)",
    )  # fmt: skip
    parser.add_argument(
        "--timeout",
        type=argument(int_from(1)),
        default=3600,
        metavar="S",
        help="seconds for one answer (default: 3600)",
    )


def run(args: argparse.Namespace) -> int:
    from eyas.train.regeneration.endpoint import Sampling, base_url
    from eyas.train.regeneration.run import Job
    from eyas.train.regeneration.run import run as regenerate

    try:
        url = base_url(args.url)
        key = None if args.api_key is None else key_from(f"env:{args.api_key}")
    except ValueError as error:
        raise UserError(f"--url {error}") from None
    sampling = Sampling(
        model=args.model,
        temperature=args.temperature,
        max_tokens=args.max_tokens,
        effort=args.effort,
        seed=args.seed,
    )
    return regenerate(
        Job(
            prompts=args.prompts,
            out=args.out,
            url=url,
            key=key,
            sampling=sampling,
            concurrency=args.concurrency,
            patience=args.patience,
            timeout=args.timeout,
            limit=args.limit,
            python=args.python,
        )
    )


def _variable(text: str) -> str:
    """Return NAME of `env:NAME`, a variable that is set. No error quotes the text: it could be the key."""
    name = text.removeprefix("env:")
    if not text.startswith("env:") or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise argparse.ArgumentTypeError("wants env:NAME, the name of an environment variable, not the key itself")
    argument(key_from)(text)
    return name


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 2:
        raise argparse.ArgumentTypeError(f"wants 0 to 2, got '{text}'")
    return value

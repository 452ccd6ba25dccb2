"""`eyas ask`: asks any OpenAI endpoint one question, and runs the Python that the model calls for in a sandbox."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO, get_args

from eyas.base.errors import UserError
from eyas.base.harmony.rendering import Effort
from eyas.base.settings.config import argument, int_from, key_from
from eyas.terminal import DIM, RESET, has_colour

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eyas.client.pieces import End
    from eyas.client.tools import Tool

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("url", metavar="URL", help="address of the server, with or without /v1")
    add("question", metavar="QUESTION", help="the question; '-' reads it from standard input")
    add(
        "--python",
        action="store_true",
        help="offer a 'python' tool. The model's programs run here, in a sandbox without network and files; "
        "nothing is kept between them",
    )
    add("--model", metavar="NAME", help="name of the model (default: the server's first)")
    add(
        "--api-key", type=argument(key_from), default=os.environ.get("OPENAI_API_KEY"), metavar="KEY",
        help="API key, or env:NAME for one in an environment variable (default: that in OPENAI_API_KEY)",
    )  # fmt: skip
    add("--system", metavar="TEXT", help="instructions for the model")
    add("--effort", choices=get_args(Effort), help="reasoning effort (default: the server's)")
    add("--temperature", type=float, metavar="T", help="sampling temperature (default: the server's)")
    add("--seed", type=int, metavar="N", help="makes the answer repeatable where the server does")
    add(
        "--max-tokens", type=argument(int_from(1)), metavar="N", help="most tokens of an answer (default: the server's)"
    )
    add(
        "--rounds",
        type=argument(int_from(1)),
        default=16,
        metavar="N",
        help="most answers with calls in a row (default: 16)",
    )
    add("--json", action="store_true", help="end with one line of JSON")


def run(args: argparse.Namespace) -> int:
    question = sys.stdin.read() if args.question == "-" else args.question
    if not question.strip():
        raise UserError("the question is empty; write it after the URL, or - to read it from standard input")
    messages = [{"role": "system", "content": args.system}] if args.system else []
    said = _Said(_Screen(sys.stdout))
    asyncio.run(_ask(args, [*messages, {"role": "user", "content": question}], said))
    print(said.line(), file=sys.stderr)
    if args.json:
        print(json.dumps(said.described()), flush=True)
    return 0


async def _ask(args: argparse.Namespace, messages: list[dict[str, Any]], said: _Said) -> None:
    from eyas.client.client import AsyncClient
    from eyas.client.tools import stream_with_tools

    fields = {"temperature": args.temperature, "seed": args.seed, "reasoning_effort": args.effort}
    tools = await _python() if args.python else []
    async with AsyncClient(args.url, args.api_key, args.model) as client:
        pieces = stream_with_tools(
            client, messages, tools, max_rounds=args.rounds, max_tokens=args.max_tokens, **fields
        )
        async with aclosing(pieces):
            async for piece in pieces:
                said.add(piece)


async def _python() -> Sequence[Tool]:
    from eyas.sandbox.sandbox import find_sandbox
    from eyas.sandbox.tool import PythonTool

    return [PythonTool(await find_sandbox())]


class _Screen:
    """Writes text in blocks, each with a mark before it. Control characters of a text do not reach the terminal."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._colour = has_colour(out)
        self._mark: str | None = None

    def show(self, mark: str, text: str, *, is_dim: bool = False) -> None:
        """Go on with the block of this mark, or begin it."""
        if mark != self._mark:
            self.end()
            self._out.write(mark)
            self._mark = mark
        shown = "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)
        self._out.write(f"{DIM}{shown}{RESET}" if is_dim and self._colour else shown)
        self._out.flush()

    def block(self, mark: str, text: str, *, is_dim: bool = False) -> None:
        """Show a block of its own."""
        self.end()
        self.show(mark, text.rstrip("\n"), is_dim=is_dim)
        self.end()

    def end(self) -> None:
        if self._mark is not None:
            self._out.write("\n")
            self._out.flush()
        self._mark = None


@dataclass
class _Said:
    """All that was said, shown as it comes."""

    screen: _Screen
    answer: str = ""
    reasoning: str = ""
    calls: list[dict[str, str]] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def add(self, piece: object) -> None:
        from eyas.client.pieces import Content, End, Reasoning
        from eyas.client.tools import Result
        from eyas.sandbox.tool import code_of

        match piece:
            case Reasoning(text=text):
                self.reasoning += text
                self.screen.show("(thinking) ", text, is_dim=True)
            case Content(text=text):
                self.answer += text
                self.screen.show("", text)
            case Result(call=call, text=text):
                code = code_of(call.arguments) or call.arguments
                self.answer = ""  # what was said before a call is no answer
                self.calls.append({"name": call.name, "code": code, "result": text})
                self.screen.block(f"({call.name}) ", code)
                self.screen.block("(result) ", text, is_dim=True)
            case End():
                self.ends.append(piece)
                self.screen.end()

    def line(self) -> str:
        """Say in one line what it took."""
        found = self.described()
        tokens = found["completion_tokens"]
        parts = [
            f"{found['model']}: {found['answers']} {'answer' if found['answers'] == 1 else 'answers'}",
            f"{len(self.calls)} executed" if self.calls else "",
            "tokens unknown" if tokens is None else f"{tokens:,} tokens",
            f"{found['seconds']:.1f} s",
            "cut at the most tokens" if found["finish_reason"] == "length" else "",
        ]
        return ", ".join(part for part in parts if part)

    def described(self) -> dict[str, Any]:
        """Return all of it. Tokens are sums over the answers, None where the server does not say them."""
        usage = [end.usage for end in self.ends if end.usage is not None]
        last = self.ends[-1]
        return {
            "answer": self.answer,
            "reasoning": self.reasoning,
            "calls": self.calls,
            "finish_reason": last.finish_reason,
            "model": last.model,
            "endpoint": last.endpoint,
            "answers": len(self.ends),
            "prompt_tokens": sum(one.prompt_tokens for one in usage) if usage else None,
            "completion_tokens": sum(one.completion_tokens for one in usage) if usage else None,
            "seconds": round(time.monotonic() - self.began, 3),
        }

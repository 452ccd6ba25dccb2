"""Measures what a chunk of a streamed answer costs at the client: `eyas.AsyncClient` beside the `openai` SDK.

    python tools/bench_client.py [--repeats 5] [--streams 16] [--rounds 2]

Both read the same answers of `eyas serve null`, whose engine computes nothing, in this process and in turns. The exit
code is 1 if the bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

import openai

from eyas.bench.http.servers import null_server
from eyas.bench.machine import machine
from eyas.bench.report import positive_int, print_json, provenance, table
from eyas.bench.stats import Spread, paired_ratio
from eyas.client import AsyncClient
from eyas.client.pieces import Content

__all__ = ["main"]

BAR = 1 / 3  # of the SDK's CPU time a chunk, at most
PAUSE_MS = 20
CONTEXT = 32 << 10
NUM_TOKENS = 256
PROMPT = "Hi"
MODELS = {"flat out": "null", "paced": f"null:{PAUSE_MS}"}
DEFINITIONS = """\
chunk     one server-sent event with text, as the program gets it
CPU       user and system time of this process over chunks: sockets, HTTP, events, JSON, objects
paced     the null engine pauses 20 ms before each round, so that chunks come one by one; flat out: it does not, and
          several may come in one read
ratio     of two measurements one after the other"""

Read = Callable[[], Awaitable[int]]  # reads one answer, returns its chunks


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    lines, origin = provenance(machine(), libraries=("aiohttp", "msgspec", "openai", "httpx"))
    print("\n".join(["bench client", *lines, _method(args)]), flush=True)
    figures = {name: asyncio.run(_measure(args, model)) for name, model in MODELS.items()}
    ratios = {name: paired_ratio(found["eyas"], found["openai"]) for name, found in figures.items()}
    print("\n".join(["", *_table(figures, ratios), "", DEFINITIONS, ""]))
    values = {name: round(ratio.median, 4) for name, ratio in ratios.items()}
    shown = {name: {key: one.json() for key, one in group.items()} for name, group in figures.items()}
    print_json({"bench": "client", **origin, **vars(args), "us_per_chunk": shown, "bar": BAR, "ratios": values})
    return int(any(value > BAR for value in values.values()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--repeats", type=positive_int, default=5, metavar="N", help="repeats, in turns (default: 5)")
    add("--streams", type=positive_int, default=16, metavar="N", help="answers streamed at once (default: 16)")
    add("--rounds", type=positive_int, default=2, metavar="N", help="answers of each stream a repeat (default: 2)")
    return parser


def _method(args: argparse.Namespace) -> str:
    return (
        f"method    {args.repeats} repeats in turns, median (min..max); in each {args.streams} streams at once, "
        f"{args.rounds} answers of {NUM_TOKENS} tokens each;\n          one client object and its connections for all"
    )


async def _measure(args: argparse.Namespace, model: str) -> dict[str, Spread]:
    """Return the CPU time a chunk of each client, in us."""
    with null_server(model, CONTEXT) as (url, _):
        ours, theirs = AsyncClient(url, model="null"), openai.AsyncOpenAI(base_url=url, api_key="none")
        async with ours, theirs:
            readers: dict[str, Read] = {"eyas": lambda: _eyas(ours), "openai": lambda: _openai(theirs)}
            values: dict[str, list[float]] = {name: [] for name in readers}
            for read in readers.values():
                await _us_per_chunk(read, args.streams, 1)  # warm
            for _ in range(args.repeats):
                for name, read in readers.items():
                    values[name].append(await _us_per_chunk(read, args.streams, args.rounds))
    return {name: Spread(tuple(found)) for name, found in values.items()}


async def _us_per_chunk(read: Read, num_streams: int, num_rounds: int) -> float:
    async def stream() -> int:
        return sum([await read() for _ in range(num_rounds)])

    began = time.process_time()
    num_chunks = sum(await asyncio.gather(*(stream() for _ in range(num_streams))))
    return 1e6 * (time.process_time() - began) / num_chunks


async def _eyas(client: AsyncClient) -> int:
    num = 0
    async for piece in client.stream(PROMPT, max_tokens=NUM_TOKENS, ignore_eos=True):
        num += isinstance(piece, Content)
    return num


async def _openai(client: openai.AsyncOpenAI) -> int:
    num = 0
    stream = await client.chat.completions.create(
        model="null",
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=NUM_TOKENS,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    async for chunk in stream:
        num += bool(chunk.choices and chunk.choices[0].delta.content)
    return num


def _table(figures: Mapping[str, Mapping[str, Spread]], ratios: Mapping[str, Spread]) -> list[str]:
    rows = [
        [
            name,
            found["eyas"].text(1),
            found["openai"].text(1),
            ratios[name].text(3),
            "met" if ratios[name].median <= BAR else "MISSED",
        ]
        for name, found in figures.items()
    ]
    return table(["CPU us/chunk", "eyas.AsyncClient", "openai SDK", "ratio", f"at most {BAR:.3f}"], rows)


if __name__ == "__main__":
    sys.exit(main())

"""Load of `eyas bench http`: requests one after the other, and many streams with single probe requests."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from eyas.bench.http.client import Answer, Connection, Target

__all__ = ["HistoryRun", "Singles", "StreamRun", "cpu_seconds", "run_history", "run_sequential", "run_streams"]

LAG_STEP_S = 0.005
PROBE_TOKENS = 8
PROBE_PAUSE_S = 0.02
QUESTION = "Say how the weather is, and why. This is question number {}."


@dataclass(frozen=True, kw_only=True, slots=True)
class Singles:
    """Times to first token of single requests, and how much of each the server says that its engine took, in ms."""

    ttft_ms: tuple[float, ...]
    prompt_ms: tuple[float, ...]  # none where the API does not say

    @classmethod
    def of(cls, answers: list[Answer]) -> Singles:
        assert all(one.first is not None for one in answers), "the client refuses answers without text"
        return cls(
            ttft_ms=tuple(map(_ttft_ms, answers)),
            prompt_ms=tuple(one.prompt_ms for one in answers if one.prompt_ms is not None),
        )

    def added_ms(self, engine: Singles) -> list[float]:
        """Return the times without the engine's part; where the API does not say it, the median of `engine`."""
        if self.prompt_ms:
            return [whole - own for whole, own in zip(self.ttft_ms, self.prompt_ms, strict=True)]
        own = median(engine.prompt_ms) if engine.prompt_ms else 0.0
        return [whole - own for whole in self.ttft_ms]


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamRun:
    """Measurements while all streams ran: `cpu_s` is the server's, None if its process is not known."""

    seconds: float
    num_events: int
    num_tokens_per_event: float
    cpu_s: float | None
    client_cpu_s: float
    lags_ms: tuple[float, ...]
    probes: Singles  # single requests while the streams run


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process and its threads, from /proc."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


async def run_sequential(target: Target, *, num_requests: int) -> Singles:
    """Measure time to first token on one connection, one request after the other."""
    async with Connection.open(target) as connection:
        requests = [target.request(QUESTION.format(number), max_tokens=PROBE_TOKENS) for number in range(num_requests)]
        answers = [await connection.ask(request) for request in requests]
    return Singles.of(answers)


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryRun:
    """Times to first token of a conversation that the server has not seen, and of its next question, in ms."""

    num_prompt: int  # tokens of the first
    new_ms: float
    known_ms: float


async def run_history(target: Target, *, num_tokens: int, seed: int) -> HistoryRun:
    """Ask at the end of a conversation of about `num_tokens` tokens, and once more a turn later."""
    async with Connection.open(target) as connection:

        async def ask(*contents: str) -> Answer:
            return await connection.ask(target.request(*contents, max_tokens=PROBE_TOKENS))

        one, two = await ask("Hi"), await ask(f"Hi {_message(seed, -1)}")
        num_turns = 2 * round(num_tokens / (two.num_prompt - one.num_prompt) / 2)
        history = [_message(seed, number) for number in range(num_turns)]
        new = await ask(*history, QUESTION.format(1))
        known = await ask(*history, QUESTION.format(1), "It rains.", QUESTION.format(2))
    return HistoryRun(num_prompt=new.num_prompt, new_ms=_ttft_ms(new), known_ms=_ttft_ms(known))


def _ttft_ms(answer: Answer) -> float:
    return 1e3 * ((answer.first or 0.0) - answer.sent)


def _message(seed: int, number: int) -> str:
    """Return a text of some 500 tokens that no other message has."""
    return " ".join(f"Line {line} of message {number} in {seed}: wind from the west." for line in range(40))


async def run_streams(
    target: Target, *, num_streams: int, max_tokens: int, warm_s: float, seconds: float, pid: int | None
) -> StreamRun:
    """Keep `num_streams` answers running; measure for `seconds` after `warm_s`."""
    over = asyncio.Event()
    streams = [asyncio.create_task(_stream(target, number, max_tokens, over)) for number in range(num_streams)]
    lags = asyncio.create_task(_lags(over))
    await asyncio.sleep(warm_s)
    probe = asyncio.create_task(_probe(target, over))
    before, own_before, start = cpu_seconds(pid) if pid else None, time.process_time(), time.perf_counter()
    await asyncio.sleep(seconds)
    after, own_after, stop = cpu_seconds(pid) if pid else None, time.process_time(), time.perf_counter()
    over.set()
    answers = [answer for group in await asyncio.gather(*streams) for answer in group]
    probes = await probe
    num_events = sum(count for one in answers for now, count in one.events if start <= now < stop)
    return StreamRun(
        seconds=stop - start,
        num_events=num_events,
        num_tokens_per_event=sum(one.num_tokens for one in answers) / sum(one.num_events for one in answers),
        cpu_s=None if before is None or after is None else after - before,
        client_cpu_s=own_after - own_before,
        lags_ms=tuple(await lags),
        probes=Singles.of(probes),
    )


async def _stream(target: Target, number: int, max_tokens: int, over: asyncio.Event) -> list[Answer]:
    answers: list[Answer] = []
    async with Connection.open(target) as connection:
        while not over.is_set():
            question = QUESTION.format(f"{number}, part {len(answers)}")
            answers.append(await connection.ask(target.request(question, max_tokens=max_tokens)))
    return answers


async def _probe(target: Target, over: asyncio.Event) -> list[Answer]:
    answers: list[Answer] = []
    async with Connection.open(target) as connection:
        while not over.is_set():
            question = QUESTION.format(f"of the probe, {len(answers)}")
            answers.append(await connection.ask(target.request(question, max_tokens=PROBE_TOKENS)))
            await asyncio.sleep(PROBE_PAUSE_S)
    return answers


async def _lags(over: asyncio.Event) -> list[float]:
    """Measure how late this client's own loop is, in ms: its share of what it measures."""
    lags = []
    while not over.is_set():
        now = time.perf_counter()
        await asyncio.sleep(LAG_STEP_S)
        lags.append((time.perf_counter() - now - LAG_STEP_S) * 1e3)
    return lags

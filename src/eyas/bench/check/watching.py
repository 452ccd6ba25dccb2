"""Checks of what an operator sees: garbage behind a healthy status, counters that move, a slot that is freed."""

from __future__ import annotations

import asyncio
from statistics import median

from eyas.bench.check.asking import Endpoint, Streamed
from eyas.bench.check.finding import Failed, Refused, Result, broken, missing, ok, unclear
from eyas.client.endpoint import canary
from eyas.client.endpoint.acceptance.pages import samples_of, sums_of

__all__ = ["cancel", "counters", "garbage"]

PATHS = ("/metrics", "/prometheus/metrics")  # the second: TensorRT-LLM
# Counters of tokens written and gauges of requests that run: vllm/v1/metrics/loggers.py, sglang's metrics_collector.py,
# llama.cpp's tools/server. Ours has vLLM's names.
WRITTEN = ("vllm:generation_tokens_total", "sglang:generation_tokens_total", "llamacpp:tokens_predicted_total")
RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing")
MOVES_S = 5.0  # after an answer: some engines count once a second
FREED_S = 10.0  # after the client has left
LOOK_S = 0.1
TRIES = 2
NUM_LEAVING = 4
SLOWER, SLOWER_S = 4.0, 1.0  # a first token after a cancel that is later than all of this waits for a slot
LONG = "Count from 1 to 2000 in words, one a line. Do not stop before the end."
TOKENS = 4096


async def garbage(endpoint: Endpoint) -> Result:
    """Hold the conversation of the canary, which `eyas up` and the router hold, too."""
    talk = canary.conversation(endpoint.model)
    body = next(talk)
    try:
        while True:
            reply = await endpoint.send("POST", canary.PATH, body)
            body = talk.send((reply.status, reply.text))
    except StopIteration as end:
        fault: str | None = end.value
    return broken(fault) if fault else ok("a short answer does not repeat itself")


async def counters(endpoint: Endpoint) -> Result:
    before = await _metrics(endpoint)
    if before is None:
        return missing(f"no metrics at {' or '.join(PATHS)}")
    answer = await endpoint.chat("Name the planets.", max_tokens=32)
    loop = asyncio.get_running_loop()
    end = loop.time() + MOVES_S
    while True:
        after = await _metrics(endpoint) or {}
        moved = [name for name, value in after.items() if name.endswith("_total") and value > before.get(name, 0.0)]
        tokens = [name for name in WRITTEN if name in after]
        if set(moved) & set(tokens) or (moved and not tokens):
            break
        if loop.time() > end:
            which = f"{tokens[0]} does" if tokens else "its counters do"
            return broken(f"{which} not move within {MOVES_S:g} s of an answer")
        await asyncio.sleep(LOOK_S)
    if not tokens:
        return ok(f"{len(moved)} counters moved, none of them known to count tokens")
    grown, counted = after[tokens[0]] - before.get(tokens[0], 0.0), answer.usage
    said = f", {counted.completion_tokens} by usage" if counted else ""
    return ok(f"{tokens[0]} grew by {grown:.0f}{said}")


async def _metrics(endpoint: Endpoint) -> dict[str, float] | None:
    """Return the sums of the samples of the first path that has any."""
    for path in PATHS:
        reply = await endpoint.get(path)
        try:
            found = sums_of(samples_of(reply.text)) if reply.status == 200 and reply.value is None else {}
        except ValueError:
            continue
        if found:
            return found
    return None


async def cancel(endpoint: Endpoint) -> Result:
    """Leave long answers, and look whether the server goes on with them: by its gauge, else by the next first token."""
    running = await _running(endpoint)
    if running:
        return unclear(f"{running:.0f} other requests run")
    usual = [await _first_s(endpoint) for _ in range(3)]
    if None in usual:
        return unclear("no first token came")
    seen: list[str] = []
    for _ in range(TRIES):
        left = await asyncio.gather(*(_leave(endpoint, number) for number in range(NUM_LEAVING)))
        request = endpoint.last
        if not any(one.ended == "left" for one in left):
            return unclear("the answers are over before they can be left")
        text, is_freed = await _after_leaving(endpoint, median(one for one in usual if one is not None), running)
        if is_freed:
            return ok(text)
        seen.append(text)
    return broken(f"{seen[0]}; again the same", request)


async def _after_leaving(endpoint: Endpoint, usual_s: float, running: float | None) -> tuple[str, bool]:
    """Return what is seen after clients have left, and whether it shows that their slots are free."""
    loop = asyncio.get_running_loop()
    left_at = loop.time()
    first_s = await _first_s(endpoint)
    late_s = SLOWER * usual_s + SLOWER_S
    if first_s is None or first_s > late_s:
        waited = "none came" if first_s is None else f"it came after {first_s:.1f} s"
        return f"the next first token waits for answers whose clients have left: {waited}, usual {usual_s:.1f} s", False
    if running is None:
        return f"the next first token came after {first_s:.2f} s, usual {usual_s:.2f} s (no gauge to look at)", True
    while (now := await _running(endpoint) or 0) > 0:
        if loop.time() > left_at + FREED_S:
            return f"{now:.0f} requests still run {FREED_S:g} s after their clients have left", False
        await asyncio.sleep(LOOK_S)
    return f"no request runs {loop.time() - left_at:.1f} s after its client has left", True


async def _leave(endpoint: Endpoint, number: int) -> Streamed:
    """Begin a long answer and leave it after some pieces. Each differs, so that none is the other's."""
    text = f"{LONG} This is list {number + 1}."
    return await endpoint.stream(text, max_tokens=_tokens(endpoint), until=lambda found: len(found.times_s) >= 3)


def _tokens(endpoint: Endpoint) -> int:
    return TOKENS if endpoint.context is None else max(16, min(TOKENS, endpoint.context // 2))


async def _running(endpoint: Endpoint) -> float | None:
    """Return how many requests run by the server's gauge; None without one."""
    found = await _metrics(endpoint)
    return next((found[name] for name in RUNNING if name in found), None) if found else None


async def _first_s(endpoint: Endpoint) -> float | None:
    """Return the seconds to the first text of a short answer, which is read to its end: it leaves no slot."""
    try:
        found = await endpoint.stream("Say hello.", max_tokens=16)
    except (Failed, Refused):
        return None
    return found.times_s[0] - found.sent_s if found.times_s else None

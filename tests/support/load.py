"""A mixed crowd of clients against a running server: what they ask, when they leave, and what may come back."""

import asyncio
import itertools
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

QUESTIONS = (
    "What does os.path.join do?",
    "What does shutil.rmtree do?",
    "Hello!",
    "What is 3 plus 4?",
    "Who are you?",
    "What does json.dumps do? And what does json.loads do?",
)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "count": {"type": "integer", "minimum": 0}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
WORDS = tuple(" ".join(QUESTIONS).split())
MANUAL = {"role": "system", "content": "Answer in few words, as the manual of a library does. " * 20}
RETRY_AFTER_S = 1
MAX_TRIES = 20
ANSWER_S = 110
ECHO = {"echo": True, "logprobs": 2}
TOOL = {"type": "function", "function": {"name": "look_up", "description": "Look up a name.", "parameters": SCHEMA}}


@dataclass(frozen=True)
class Ask:
    """One request. `expect` are the statuses that this request may get; 429 may always come from a full queue.

    `then` makes the next one of the same client from the answer.
    """

    kind: str
    path: str
    body: dict[str, Any] | bytes
    expect: frozenset[int] = frozenset({200})
    stream: bool = False
    then: Callable[[Any], "Ask"] | None = None
    method: str = "POST"


@dataclass
class Tally:
    """What came back: (kind, outcome) counts, and whatever is not documented."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    num_queue_full: int = 0

    def total(self, outcome: str) -> int:
        return sum(count for (_, what), count in self.outcomes.items() if what == outcome)


def _chat(rng: random.Random, **fields: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": rng.choice(QUESTIONS)}],
        "max_tokens": rng.randint(1, 48),
        "temperature": rng.choice([0, 0.7, 1.0]),
        "reasoning_effort": "low",
    } | fields


def mixed_ask(rng: random.Random) -> Ask:
    """A request of a random kind; about one in seven is one that must be refused."""
    chat, path = _chat(rng), "/v1/chat/completions"
    kinds: list[tuple[int, Callable[[], Ask]]] = [
        (30, lambda: Ask("chat stream", path, chat | {"stream": True}, stream=True)),
        (12, lambda: Ask("chat", path, chat)),
        (4, lambda: Ask("chat n", path, chat | {"n": rng.randint(2, 4)})),
        (4, lambda: Ask("chat logprobs", path, chat | {"logprobs": True, "top_logprobs": 3, "stop": ["\n", "the"]})),
        (4, lambda: Ask("chat penalties", path, chat | {"presence_penalty": 0.5, "top_p": 0.9, "top_k": 40})),
        (5, lambda: Ask("tool stream", path, _tool(chat) | {"stream": True}, stream=True)),
        (4, lambda: Ask("tool", path, _tool(chat))),
        (5, lambda: Ask("schema", path, chat | {"response_format": _format(), "max_tokens": 40})),
        (6, lambda: Ask("responses stream", "/v1/responses", _respond(chat) | {"stream": True}, stream=True)),
        (4, lambda: Ask("responses", "/v1/responses", _respond(chat))),
        (4, lambda: Ask("responses stored", "/v1/responses", _respond(chat) | {"store": True}, then=_continue)),
        (4, lambda: Ask("chat prefix", path, _chat(rng, messages=[MANUAL, *chat["messages"]]))),
        (2, lambda: Ask("long prompt", path, _chat(rng, messages=[_text(rng)], max_tokens=8))),
        (6, lambda: Ask("completions", "/v1/completions", {"prompt": "import os", "max_tokens": rng.randint(1, 24)})),
        (2, lambda: Ask("echo", "/v1/completions", {"prompt": "import os", "max_tokens": 1, **ECHO})),
        (2, lambda: Ask("tokenize", "/tokenize", {"prompt": "import os"})),
        (3, lambda: Ask("bad json", path, b'{"messages": [', frozenset({400}))),
        (3, lambda: Ask("bad field", path, chat | {"temprature": 1}, frozenset({400}))),
        (3, lambda: Ask("bad model", path, chat | {"model": "gpt-9"}, frozenset({404}))),
        (3, lambda: Ask("too long", path, _chat(rng, messages=[{"role": "user", "content": "eyas " * 20_000}]),
                        frozenset({400}))),
    ]  # fmt: skip
    return rng.choices([make for _, make in kinds], [weight for weight, _ in kinds])[0]()


def _tool(chat: dict[str, Any]) -> dict[str, Any]:
    return chat | {"tools": [TOOL], "tool_choice": "required", "max_tokens": 60}


def _format() -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "item", "schema": SCHEMA, "strict": True}}


def _text(rng: random.Random) -> dict[str, Any]:
    """A message of 1,000 to 3,000 tokens that has not been seen before."""
    return {"role": "user", "content": " ".join(rng.choices(WORDS, k=rng.randint(500, 1500)))}


def _continue(first: Any) -> Ask:
    """The next turn of a stored conversation; both turns are deleted afterwards."""
    body = {"input": "And what else?", "previous_response_id": first["id"], "max_output_tokens": 16}
    deleted = _delete(first)
    return Ask(
        "responses continued",
        "/v1/responses",
        body,
        then=lambda second: replace(_delete(second), then=lambda _: deleted),
    )


def _delete(answer: Any) -> Ask:
    return Ask("responses deleted", f"/v1/responses/{answer['id']}", b"", method="DELETE")


def _respond(chat: dict[str, Any]) -> dict[str, Any]:
    return {
        "input": chat["messages"][0]["content"],
        "max_output_tokens": chat["max_tokens"],
        "temperature": chat["temperature"],
        "store": False,
    }


async def run_crowd(
    url: str,
    *,
    concurrency: int,
    num_requests: int = sys.maxsize,
    seconds: float = math.inf,
    seed: int = 0,
    leave: float = 0.15,
    on_done: Callable[[int], None] = lambda count: None,
) -> Tally:
    """Send `num_requests`, or for `seconds`, `concurrency` at a time; a share `leave` hangs up before the end.

    Who is told that the queue is full waits as long as told and asks again, `MAX_TRIES` times at most.
    """
    rng, tally, end = random.Random(seed), Tally(), time.monotonic() + seconds
    in_time = itertools.takewhile(lambda _: time.monotonic() < end, range(num_requests))
    asks = ((mixed_ask(rng), rng.random() < leave, rng.uniform(0.0, 0.5)) for _ in in_time)
    num_done = 0
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=120) as client:

        async def work() -> None:
            nonlocal num_done
            for ask, leaves, patience_s in asks:
                try:
                    async with asyncio.timeout(patience_s if leaves else None):
                        outcome = await _converse(client, ask, tally)
                except TimeoutError:
                    outcome = "left"
                except httpx.HTTPError as error:
                    outcome = f"broken: {type(error).__name__}"
                tally.outcomes[ask.kind, outcome] += 1
                if outcome not in ("answered", "refused", "queue full", "left"):
                    tally.wrong.append(f"{ask.kind}: {outcome}")
                num_done += 1
                on_done(num_done)

        await asyncio.gather(*(work() for _ in range(concurrency)))
    return tally


async def _converse(client: httpx.AsyncClient, ask: Ask, tally: Tally) -> str:
    """How an ask and those that follow from its answers ended."""
    following: Ask | None = ask
    while following:
        outcome, then = await _ask(client, following)
        for _ in range(MAX_TRIES):
            if outcome != "queue full":
                break
            tally.num_queue_full += 1
            await asyncio.sleep(RETRY_AFTER_S)
            outcome, then = await _ask(client, following)
        following = then
    return outcome


async def _ask(client: httpx.AsyncClient, ask: Ask) -> tuple[str, Ask | None]:
    """How one request ended, and the one that follows from its answer."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return await _send(client, ask)
    except TimeoutError:
        return "stuck", None


async def _send(client: httpx.AsyncClient, ask: Ask) -> tuple[str, Ask | None]:
    content = ask.body if isinstance(ask.body, bytes) else json.dumps(ask.body).encode()
    headers = {"Content-Type": "application/json"}
    async with client.stream(ask.method, ask.path, content=content, headers=headers) as answer:
        if answer.status_code == 200 and ask.stream:
            return await _judge_stream(ask, answer.aiter_lines()), None
        outcome = _judge(ask, answer.status_code, answer.headers, body := await answer.aread())
        return outcome, ask.then(json.loads(body)) if outcome == "answered" and ask.then else None


def _judge(ask: Ask, status: int, headers: httpx.Headers, body: bytes) -> str:
    message = json.loads(body)
    if status == 429:
        advice = headers.get("retry-after") == str(RETRY_AFTER_S) and message["error"]["message"]
        return "queue full" if advice else "429 without advice"
    if status not in ask.expect:
        return f"status {status}: {message}"
    if status == 200:
        return "answered"
    return "refused" if message["error"]["message"] else "an error without a message"


async def _judge_stream(ask: Ask, lines: AsyncIterator[str]) -> str:
    """A stream ends with [DONE] (chat) or with a final event (responses); nothing else is an answer."""
    last = ""
    async for line in lines:
        if line.startswith("data: "):
            last = line.removeprefix("data: ")
            if '"error":{' in last:
                return f"error in the stream: {last}"
    if ask.path == "/v1/responses":
        done = json.loads(last)["type"] in ("response.completed", "response.incomplete")
    else:
        done = last == "[DONE]"
    return "answered" if done else f"the stream ended with {last[:200]!r}"

"""What a client gets through the router is what the server itself says, byte for byte, but for ids and times."""

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from tests.router.support.running import RouterProcess, router_process
from tests.support.load import mixed_ask
from tests.support.serving import served

MODEL = "eyas-demo"
MAX_TOKENS = 12
# Greedy and without drafts, the server itself gives an answer the same bytes every time.
OPTIONS = ("--draft", "none", "--live", "off", "--concurrency", "4", "--context", "4k")
ID = re.compile(rb'(?<=")(?:chatcmpl|cmpl|resp|msg|rs|fc|call|ctc|toolu|req|item)[-_][0-9A-Za-z_-]+(?=")')
REQUEST_ID = re.compile(rb'(?<="request_id":")[0-9a-f]+(?=")')
TIMES = re.compile(
    rb'"(?:created|created_at|completed_at|time_to_first_token_ms|generation_time_ms|mean_itl_ms|tokens_per_second)":'
    rb'[\d.]+|"timings":\{[^}]*\}'
)
MESSAGES = {"anthropic-version": "2023-06-01"}
OWN_HEADERS = {"date", "x-request-id", "request-id", "x-eyas-backend", "x-eyas-route", "content-length"}


def plain(body: bytes) -> bytes:
    """An answer with its ids numbered as they come, and without times."""
    numbers: dict[bytes, int] = {}
    body = REQUEST_ID.sub(b"-", TIMES.sub(b'"time":0', body))
    return ID.sub(lambda match: b"id%d" % numbers.setdefault(match[0], len(numbers)), body)


def headers_of(response: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name not in OWN_HEADERS}


def short(body: dict[str, Any]) -> dict[str, Any]:
    return body | {name: min(MAX_TOKENS, body[name]) for name in ("max_tokens", "max_output_tokens") if name in body}


def requests(rng: random.Random) -> Iterator[tuple[str, str, Any, dict[str, str]]]:
    """Method, path, body and headers: of every dialect, streamed and whole, good and refused."""
    while True:
        ask = mixed_ask(rng)
        if ask.then is not None or ask.kind == "bad model":
            continue  # what changes the server's state; a name that the router itself refuses
        body = ask.body if isinstance(ask.body, bytes) else {"model": MODEL, **short(ask.body), "temperature": 0}
        if ask.stream and isinstance(body, dict):
            body = body | ({} if "input" in body else {"stream_options": {"include_usage": True}})
        yield ask.method, ask.path, body, {}
        if isinstance(body, dict) and ask.kind in ("chat", "chat stream"):
            body = {name: body[name] for name in ("model", "messages", "max_tokens", "temperature")}
            yield "POST", "/v1/messages", body | {"stream": ask.stream}, MESSAGES


def send(client: httpx.Client, url: str, method: str, path: str, body: Any, headers: dict[str, str]) -> httpx.Response:
    content = {"content": body} if isinstance(body, bytes) else {"json": body}
    return client.request(method, url + path, headers={"content-type": "application/json"} | headers, **content)


def send_at_once(client: httpx.Client, url: str, *request: Any) -> httpx.Response:
    """Send it again while the answer begins with a comment, as after a second on a busy machine."""
    while (response := send(client, url, *request)).content.startswith(b":"):
        print("the first text took more than a second")
    return response


@contextmanager
def served_twice(tmp_path) -> Iterator[tuple[str, RouterProcess]]:
    with served("demo", *OPTIONS) as server, router_process(tmp_path, {"engine": server.url}, model=MODEL) as router:
        yield server.url, router


@pytest.mark.timeout(900)
@pytest.mark.parametrize("num", [pytest.param(80, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.soak)])
def test_answers_are_the_same(tmp_path, num):
    differ, kinds = [], set()
    with served_twice(tmp_path) as (url, router), httpx.Client(timeout=60) as client:
        for number, request in zip(range(num), requests(random.Random(19)), strict=False):
            send(client, url, *request)  # the prefix cache has it now, which usage says
            direct, relayed = (send_at_once(client, address, *request) for address in (url, router.url))
            kinds.add((request[1], direct.headers["content-type"], direct.status_code))
            if (direct.status_code, plain(direct.content), headers_of(direct)) != (
                relayed.status_code, plain(relayed.content), headers_of(relayed),
            ):  # fmt: skip
                differ.append((number, request[:3], direct.status_code, relayed.status_code, headers_of(relayed),
                               plain(direct.content)[-600:], plain(relayed.content)[-600:]))  # fmt: skip
    print(f"\n{num} answers of {len(kinds)} kinds: {sorted(kinds)}")
    assert not differ, (len(differ), differ[:3])

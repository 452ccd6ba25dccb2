"""Large bodies, many at once, against `eyas serve`: memory, time, and a stream beside them. `-s` prints the figures."""

import json

import pytest
from tests.support.flood import KINDS, Flood, flood, memory_mib, text_body
from tests.support.serving import Served, served

pytestmark = pytest.mark.slow

SIZE = 16_600_000  # just below --max-body
NUM = 16
MAX_MIB = 400
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize")
USER = {"role": "user", "content": "Hi"}


@pytest.fixture(scope="module")
def server():
    """The HTTP side alone: an engine that computes nothing leaves the cores to it."""
    with served("null:20") as server:
        server.get("/health")
        yield server


def check(name: str, result: Flood, statuses: set[int]) -> None:
    print(f"\n{name}: {result}")
    assert set(result.statuses) <= statuses, result.answers[0][:500]
    assert result.peak_mib < MAX_MIB
    assert result.wall_s < 60 and result.late_ms < 3000  # 5 s and 100 ms on a machine that does nothing else


@pytest.mark.parametrize("model", ["demo", "null:20"])
def test_sixteen_bodies_at_once(model):
    body = text_body(SIZE)
    with served(model) as server:
        before = memory_mib(server.process.pid)
        for number in range(3):
            result = flood(server, PATHS[0], [body] * NUM, beside=True)
            check(
                f"{model}, {NUM} x {len(body) / 1e6:.1f} MB of 7, {number + 1}. time, {before:.0f} MiB before",
                result,
                {400},
            )
            assert all(json.loads(answer)["error"]["code"] == "context_length_exceeded" for answer in result.answers)
        assert server.get("/health").status_code == 200 and server.get("/ready").status_code == 200


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        *((path, "7") for path in PATHS),
        *((path, unit) for path in PATHS[::3] for unit in ("a", " ", "hello, ", "\n", "\u00e9", "\U0001f985")),
        *((path, "<|start|>") for path in PATHS[1::2]),
    ],
)
def test_texts(server, path, unit):
    check(f"{path}, {unit!r}", flood(server, path, [text_body(SIZE, unit, path)] * 4, beside=True), {400})


def chat(**fields) -> bytes:
    return json.dumps({"messages": [USER], **fields}, ensure_ascii=False).encode()


def tool(**fields) -> dict:
    return {"type": "function", "function": {"name": "f", **fields}}


def repeated(before: bytes, item: bytes, after: bytes) -> bytes:
    return before + b",".join([item] * ((SIZE - 200) // (len(item) + 1))) + after


ELSEWHERE = {
    "letters and an eagle": lambda: chat(messages=[USER | {"content": "a" * (SIZE - 100) + "\U0001f985"}]),
    "tiny messages": lambda: repeated(b'{"messages":[', b'{"role":"user","content":""}', b"]}"),
    "10,000 messages": lambda: chat(messages=[USER | {"content": "x" * 1500}] * 10_000),
    "10,000 empty messages": lambda: chat(messages=[USER | {"content": ""}] * 10_000),
    "description": lambda: chat(tools=[tool(description="\n" * (SIZE // 3))]),
    "schema": lambda: chat(tools=[tool(parameters={"description": "7" * SIZE})]),
    "lists": lambda: repeated(b'{"messages":[{"role":"user","content":"","parsed":[', b"[]", b"]}]}"),
    "stop": lambda: chat(stop="7" * SIZE),
    "stops": lambda: repeated(b'{"messages":[{"role":"user","content":""}],"stop":[', b'""', b"]}"),
    "choice": lambda: chat(structured_outputs={"choice": ["7" * SIZE]}),
    "regex": lambda: chat(structured_outputs={"regex": "/" * SIZE}),
    "label": lambda: chat(user="7" * SIZE),
    "name": lambda: chat(**{"7" * SIZE: 1}),
    "image": lambda: chat(messages=[USER | {"content": [{"type": "image_url", "image_url": {"url": "7" * SIZE}}]}]),
    "no JSON": lambda: b"\xff" * SIZE,
    "brackets": lambda: b'{"messages":' + b"[" * SIZE,
}  # fmt: skip


@pytest.mark.parametrize("name", ELSEWHERE)
def test_elsewhere_in_a_chat(server, name):
    check(name, flood(server, PATHS[0], [ELSEWHERE[name]()] * 4, beside=True), {400})


@pytest.mark.parametrize("num", [500_000, 2_000_000])
def test_token_ids(server, num):
    ids = b",".join([b"1234"] * num)
    for path, name in (("/v1/completions", b"prompt"), ("/detokenize", b"tokens")):
        result = flood(server, path, [b'{"%b":[%b]}' % (name, ids)] * 4, beside=True)
        check(f"{path}, {num} ids", result, {200} if path == "/detokenize" and num == 500_000 else {400})


def test_history(server: Served):
    """A conversation grows by as much as fits: what is kept counts once it is read again."""
    import httpx

    items = [{"role": "user", "content": "ab, " * 300_000}]
    body = {"input": items, "truncation": "auto"}
    answer = httpx.post(f"{server.url}/v1/responses", json=body | {"input": [USER]}, headers=KINDS)
    previous = answer.json()["id"]
    for _ in range(6):
        long = flood(
            server, "/v1/responses", [json.dumps(body | {"previous_response_id": previous}).encode()] * 4, beside=True
        )
        check("history", long, {400})
        turn = {
            "input": [USER | {"content": "ab, " * 15_000}, USER],
            "previous_response_id": previous,
            "truncation": "auto",
        }
        previous = httpx.post(f"{server.url}/v1/responses", json=turn, timeout=60).json()["id"]

"""Changed bodies, headers and methods at every endpoint: an answer or a documented error, and nothing left behind."""

import json
import random
from collections import Counter
from types import SimpleNamespace

import httpx
import pytest
from tests.gateway.conftest import stub_server
from tests.gateway.support.fuzz import CONTENT_TYPES, GOOD, Client, complaint, encoded, mutate, tuned
from tests.gateway.support.gateway import eventually, running

from eyas.base.settings.config import EngineConfig
from eyas.gateway.app import create_app
from eyas.gateway.server.context import GatewayOptions

DOCUMENTED = {200, 400, 404, 415, 429}


@pytest.fixture(scope="module")
def target(codec):
    with stub_server(codec, None, context=1200) as server:
        yield server


def fuzz(target, caplog, *, seed: int, rounds: int, only: str = "/") -> Counter:
    """Send `rounds` changed bodies to each endpoint below `only`; return the statuses that came back."""
    rng, client, statuses = random.Random(seed), Client(target.url), Counter()
    for number in range(rounds):
        for path, bodies in (one for one in GOOD.items() if one[0].startswith(only)):
            good = rng.choice(bodies)
            body = json.dumps(tuned(rng, good)).encode() if number % 3 == 0 else encoded(rng, mutate(rng, good))
            headers = {"content-type": rng.choice(CONTENT_TYPES).encode("latin-1")} if rng.random() < 0.1 else {}
            status, answer, answered = client.send("POST", path, body, headers)
            assert (wrong := complaint(status, answer, answered)) is None, (
                wrong,
                number,
                path,
                body[:2000],
                answer[:500],
            )
            statuses[status] += 1
    client.close()
    assert eventually(lambda: target.engine.stats().num_running == 0)
    assert not [record for record in caplog.records if record.exc_info or record.levelname == "ERROR"]
    assert httpx.get(f"{target.url}/ready").status_code == 200
    return statuses


def test_good_bodies_are_good(target):
    for path, bodies in GOOD.items():
        for body in bodies:
            answer = httpx.post(target.url + path, json=body)
            assert answer.status_code == 200, (path, body, answer.text)


def test_changed_bodies(target, caplog):
    statuses = fuzz(target, caplog, seed=1, rounds=150)
    assert statuses[200] > 30 and statuses[400] > 300 and set(statuses) <= DOCUMENTED


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 4))
def test_many_changed_bodies(target, caplog, seed):
    statuses = fuzz(target, caplog, seed=seed, rounds=1000)
    print(dict(statuses))
    assert sum(statuses.values()) == 1000 * len(GOOD) and set(statuses) <= DOCUMENTED


@pytest.mark.soak
def test_twenty_thousand_changed_messages(target, caplog):
    statuses = fuzz(target, caplog, seed=11, rounds=10_000, only="/v1/messages")
    print(dict(statuses))
    assert sum(statuses.values()) == 20_000 and statuses[200] > 3000 and set(statuses) <= DOCUMENTED


@pytest.mark.slow
def test_changed_bodies_on_the_demo_model(caplog):
    """The same with a model behind it: grammars, penalties and biases are computed, and no page is left held."""
    from eyas.engine.ports.threaded import Engine

    engine = Engine.load(EngineConfig(model="demo", context=1024, concurrency=4))
    with running(create_app(engine, engine.tokenizer, GatewayOptions(served_name="stub")), engine) as url:
        target = SimpleNamespace(url=url, engine=engine)
        statuses = fuzz(target, caplog, seed=7, rounds=30)
        assert statuses[200] > 15 and set(statuses) <= DOCUMENTED
        assert eventually(lambda: set(engine.stats().pages_used.values()) == {0})


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "POST"])
def test_methods(target, method, caplog):
    others = ("/health", "/ready", "/metrics", "/version", "/openapi.json", "/v1/models", "/nowhere", "//", "/%00")
    with httpx.Client() as client:
        for path in (*GOOD, *others):
            answer = client.request(method, target.url + path)
            assert answer.status_code < 500
            if answer.status_code >= 400 and method != "HEAD":
                assert answer.json()["error"]["message"]
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    "headers",
    [{"content-encoding": "gzip"}, {"content-type": "text/plain"}, {"expect": "100-continue"}, {"accept": "text/xml"},
     {"content-length": "007"}, {"x-request-id": "\x7f"}, {"host": ""}],
    ids=str,
)  # fmt: skip
def test_headers(target, headers, caplog):
    client = Client(target.url)
    status, body, answered = client.send("POST", "/v1/chat/completions", b'{"a": 1', headers)
    client.close()
    assert 400 <= status < 500 and complaint(status, body, answered) is None
    assert not [record for record in caplog.records if record.exc_info]


def test_grammars_that_recurse(target):
    """Each of these ended the process with an overflown stack."""
    defs: dict = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(1500)}
    schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": {**defs, "d1500": {}}}
    lark = "start: r0\n" + "\n".join(f'r{i}: "a" r{i + 1} | "b"' for i in range(3000)) + '\nr3000: "c"'
    messages = [{"role": "user", "content": "Hi"}]
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    bodies = [
        ("chat/completions", {"messages": messages, "response_format": wanted}, "response_format.json_schema.schema"),
        ("chat/completions", {"messages": messages, "tools": [tool], "tool_choice": "required"}, "tools[0]"),
        ("completions", {"prompt": "Hi", "structured_outputs": {"grammar": lark}}, "structured_outputs.grammar"),
        ("completions", {"prompt": "Hi", "structured_outputs": {"json": schema}}, "structured_outputs.json"),
    ]
    with httpx.Client() as client:
        for path, body, param in bodies:
            answer = client.post(f"{target.url}/v1/{path}", json={"model": "stub", "max_tokens": 4, **body})
            assert answer.status_code == 400, (path, answer.text)
            assert answer.json()["error"]["param"].startswith(param)

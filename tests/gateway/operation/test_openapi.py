"""The OpenAPI file against the running server: schemathesis makes requests of it and checks each answer against it."""

import json
import re
from contextlib import nullcontext

import httpx
import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.gateway.conftest import stub_server
from tests.gateway.support.gateway import eventually

import eyas
from eyas.base.commit import commit
from eyas.base.errors import InvalidRequest
from eyas.base.types import ModelInfo
from eyas.engine.ports.stub import StubEngine
from eyas.gateway.app import DIALECTS, create_app
from eyas.gateway.http.body import decode
from eyas.gateway.openai.chat.routes import ChatBody
from eyas.gateway.openai.responses.body import ResponsesBody
from eyas.gateway.operation.auth import digests
from eyas.gateway.operation.openapi import operations
from eyas.gateway.server.dialect import Dialects

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
INFO = ModelInfo(name="stub", context=600, vocab_size=400, eos_ids=(), drafter="none")
CHOSEN = {"type": "function", "function": {"name": "f"}}
PARTS = ("/page/{file}", "/live")  # a stream without end has a test of its own


@pytest.fixture(scope="module")
def target(codec):
    with stub_server(codec, None) as server:
        yield server


@pytest.fixture(scope="module")
def description(target):
    return httpx.get(f"{target.url}/openapi.json").json()


def ask_and_check(target, description, method: str, path: str, *, num: int) -> None:
    operation = schemathesis.openapi.from_dict(description)[path][method.upper()]
    relaxed = settings(max_examples=num, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)

    @relaxed
    @given(case=operation.as_strategy())
    def check(case):
        case.call_and_validate(base_url=target.url, checks=CHECKS, timeout=20)

    check()


ASKED = [(one.method, one.path) for one, _ in operations(Dialects(DIALECTS)) if one.path not in PARTS]


@pytest.mark.parametrize(("method", "path"), ASKED)
def test_the_server_is_as_described(target, description, method, path, caplog):
    ask_and_check(target, description, method, path, num=6 if method == "post" else 3)
    assert eventually(lambda: target.engine.stats().num_running == 0)
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), [one for one in ASKED if one[0] == "post"])
def test_the_server_is_as_described_at_length(target, description, method, path, caplog):
    ask_and_check(target, description, method, path, num=400)
    assert not [record for record in caplog.records if record.exc_info]


def test_the_version_names_the_commit(target):
    assert httpx.get(f"{target.url}/version").json() == {"version": eyas.__version__, "commit": commit()}


def test_every_route_is_described(codec, description):
    """Not one more and not one less than the app has."""
    engine = StubEngine(INFO, lambda request, choice: [])
    app = create_app(engine, codec)
    routes = found_routes(app)
    engine.close()
    described = {(method, path) for path, methods in description["paths"].items() for method in methods}
    assert described == routes


def found_routes(app) -> set[tuple[str, str]]:
    """Method and path of each route under the layers of an app."""
    while not hasattr(app, "routes"):
        app = app._app if hasattr(app, "_app") else app.app
    return {
        (method.lower(), re.sub(r":\w+}", "}", route.path))
        for route in app.routes
        for method in route.methods - {"HEAD"}
    }


def test_bodies_say_what_is_optional(description):
    chat = description["components"]["schemas"]["ChatBody"]
    assert chat["required"] == ["messages"] and chat["additionalProperties"] is False
    assert "\\A" not in str(description)


def allowed(mode):
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [CHOSEN]}}


@pytest.mark.parametrize(
    ("kind", "body", "is_valid"),
    [
        ("ChatBody", {"verbosity": "medium", "service_tier": "flex", "prompt_cache_retention": "24h"}, True),
        ("ChatBody", {"verbosity": "low"}, False),
        ("ChatBody", {"reasoning_effort": "minimal", "cache_prompt": True}, True),
        ("ChatBody", {"reasoning_effort": "max"}, False),
        ("ChatBody", {"tool_choice": allowed("auto")}, True),
        ("ChatBody", {"tool_choice": allowed("none")}, False),
        ("ChatBody", {"tool_choice": CHOSEN}, True),
        ("ChatBody", {"messages": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}]}, True),
        ("ChatBody", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, False),
        ("ResponsesBody", {"text": {"verbosity": "medium"}, "reasoning": {"effort": "none"}}, True),
        ("ResponsesBody", {"text": {"verbosity": "high"}}, False),
    ],
)  # fmt: skip
def test_what_is_described_is_what_is_taken(description, kind, body, is_valid):
    whole = {"messages": [{"role": "user", "content": "Hi"}]} | body if kind == "ChatBody" else {"input": "Hi"} | body
    schema = {"$ref": f"#/components/schemas/{kind}", "components": description["components"]}
    assert jsonschema_rs.is_valid(schema, whole) == is_valid
    types = {"ChatBody": ChatBody, "ResponsesBody": ResponsesBody}
    with nullcontext() if is_valid else pytest.raises(InvalidRequest):
        decode(json.dumps(whole).encode(), types[kind])


def test_keys_are_described_where_they_are_asked_for(codec):
    with stub_server(codec, None, gateway={"key_digests": digests("secret")}) as server:
        description = httpx.get(f"{server.url}/openapi.json", headers={"x-api-key": "secret"}).json()
    assert description["security"] == [{"bearer": []}, {"header": []}]
    assert description["paths"]["/health"]["get"]["security"] == []

"""API keys and origins of a running server, and how settings of both are read."""

import hashlib
import re
import socket

import httpx
import pytest
from tests.gateway.conftest import stub_server

from eyas import cli
from eyas.base.errors import UserError
from eyas.gateway.operation.auth import digests, origins, public_warning

KEYS = ("first-key", "second-key")
BODY = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture(scope="module")
def guarded(codec):
    options = {"key_digests": digests(",".join(KEYS)), "cors_origins": origins("https://chat.example")}
    with stub_server(codec, None, gateway=options) as server:
        yield server


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("form", ["Authorization: Bearer {}", "authorization: bearer  {}", "x-api-key: {}"])
def test_known_keys_are_let_in(guarded, key, form):
    name, value = form.format(key).split(": ", 1)
    answer = httpx.post(f"{guarded.url}/v1/chat/completions", json=BODY, headers={name: value})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer first-key2"},
        {"authorization": "Bearer"},
        {"authorization": "Basic first-key"},
        {"authorization": "first-key"},
        {"x-api-key": "FIRST-KEY"},
        {"x-api-key": f"sha256:{hashlib.sha256(b'first-key').hexdigest()}"},
        {"x-api-key": "\u00e4".encode("latin-1")},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/openapi.json", "/version", "/nowhere", "/live"])
def test_all_else_is_401(guarded, headers, path):
    answer = httpx.get(guarded.url + path, headers=headers)
    assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "invalid_api_key" and answer.headers["x-request-id"]
    assert "first" not in answer.text
    assert "x-api-key" not in answer.text, "Claude Code would tell its user to log in elsewhere"


def test_a_known_key_beside_an_unknown_one_is_enough(guarded):
    headers = {"authorization": "Bearer wrong", "x-api-key": "second-key"}
    assert httpx.get(f"{guarded.url}/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_probes_need_no_key(guarded, path):
    assert httpx.get(guarded.url + path).status_code == 200


def test_a_stranger_is_answered_before_the_body_comes(guarded):
    with socket.create_connection(httpx.URL(guarded.url).netloc.decode().split(":"), timeout=10) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 401 ")


def test_pages_of_a_known_origin_may_call(guarded):
    ask = {"origin": "https://chat.example", "access-control-request-method": "POST"}
    headers = ask | {"access-control-request-headers": "authorization,content-type"}
    preflight = httpx.options(f"{guarded.url}/v1/chat/completions", headers=headers)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://chat.example"
    answer = httpx.get(f"{guarded.url}/v1/models", headers=ask | {"x-api-key": KEYS[0]})
    assert answer.headers["access-control-allow-origin"] == "https://chat.example"
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("origin", ["https://chat.example.evil", "http://chat.example", "null"])
def test_pages_of_other_origins_may_not(guarded, origin):
    answer = httpx.get(f"{guarded.url}/v1/models", headers={"origin": origin, "x-api-key": KEYS[0]})
    assert "access-control-allow-origin" not in answer.headers


def test_no_origin_is_known_unless_asked_for(server):
    headers = {"origin": "https://chat.example", "access-control-request-method": "POST"}
    assert (
        "access-control-allow-origin" not in httpx.options(f"{server.url}/v1/chat/completions", headers=headers).headers
    )


def test_digests_of_keys_and_of_digests_are_the_same():
    digest = hashlib.sha256(b"secret").hexdigest()
    assert digests(f"secret, sha256:{digest.upper()}") == (bytes.fromhex(digest),) * 2
    assert digests(None) == digests("") == ()


@pytest.mark.parametrize("text", ["a,,b", "a b", "sha256:12", "sha256:" + "g" * 64, "\u00e4", ",", "topsecret,"])
def test_bad_keys_are_refused_without_being_quoted(text):
    with pytest.raises(UserError, match=r"entry [12] of api_key") as caught:
        digests(text)
    assert "topsecret" not in str(caught.value)


@pytest.mark.parametrize("text", ["chat.example", "https://chat.example/", "https://a b", ","])
def test_bad_origins_are_refused(text):
    with pytest.raises(UserError, match="cors takes origins"):
        origins(text)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_no_warning_on_this_machine_alone(host):
    assert public_warning(host, ()) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "box.example"])
def test_a_warning_where_strangers_can_come_in(host):
    assert "eyas key" in public_warning(host, ())
    assert public_warning(host, digests("key")) is None


def test_eyas_key_prints_a_key_and_its_digest(capsys):
    keys = set()
    for _ in range(2):
        assert cli.main(["key"]) == 0
        out = capsys.readouterr().out
        key, digest = re.search(r"key +(\S+)", out)[1], re.search(r"sha256:[0-9a-f]{64}", out)[0]
        assert digests(key) == digests(digest) and len(key) > 40
        keys.add(key)
    assert len(keys) == 2

"""The names that a server answers to, and the origins of pages that may ask it."""

import socket

import httpx
import pytest
from tests.gateway.conftest import stub_server
from tests.gateway.support.operation import GOOD

from eyas.base.errors import UserError
from eyas.gateway.operation.auth import digests
from eyas.gateway.server.hosts import Hosts, allowed_hosts, hosts_of

LOOPBACK = ["localhost", "a.localhost", "127.0.0.1", "127.8.9.1", "::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1"]
OTHERS = [
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "notlocalhost",
    "127.1",
    "box",
    "box.local",
]
ADDRESSES = ["192.168.1.2", "0.0.0.0", "10.0.0.1", "fe80::1", "::ffff:10.0.0.1"]
PATHS = ["/", "/page/app.js", "/live", "/v1/models", "/metrics", "/openapi.json", "/health", "/ready", "/nowhere"]
OWN = socket.gethostname().lower()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost", "127.5.5.5"])
@pytest.mark.parametrize("has_keys", [False, True])
def test_a_loopback_address_has_loopback_names(address, has_keys):
    hosts = hosts_of(address, None, has_keys=has_keys)
    assert [host for host in LOOPBACK if not hosts.include(host)] == []
    assert [host for host in [*OTHERS, *ADDRESSES, OWN] if hosts.include(host)] == []


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.168.1.2", "Box"])
def test_beyond_it_without_keys_addresses_and_own_names_are_added(address):
    hosts = hosts_of(address, None, has_keys=False)
    own = [OWN, socket.getfqdn().lower(), f"{OWN.partition('.')[0]}.local", *(["box"] if address == "Box" else [])]
    assert [host for host in [*LOOPBACK, *ADDRESSES, *own] if not hosts.include(host)] == []
    assert [host for host in OTHERS if hosts.include(host) and host not in own] == []


def test_beyond_it_with_keys_any_name_will_do():
    hosts = hosts_of("0.0.0.0", None, has_keys=True)
    assert all(hosts.include(host) for host in [*LOOPBACK, *OTHERS, *ADDRESSES])


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_further_names(address):
    hosts = hosts_of(address, "Box, *.example, 10.9.9.9,[FE80::0:7], my_service.", has_keys=False)
    for host in ("box", "a.example", "b.a.example", "10.9.9.9", "fe80::7", "my_service", "localhost"):
        assert hosts.include(host), host
    for host in ("a.box", "example", "badexample", "box.evil"):
        assert not hosts.include(host), host
    assert hosts_of(address, "*", has_keys=False).include("evil.example")


@pytest.mark.parametrize("text", ["a,,b", "box:8000", "http://box", "a b", "*.", "b*x", ".box", "[::1]:80"])
def test_bad_names_are_refused(text):
    for address in ("127.0.0.1", "0.0.0.0"):
        with pytest.raises(UserError, match="allowed_hosts takes names without a port"):
            hosts_of(address, text, has_keys=True)
    assert allowed_hosts(None) == allowed_hosts("") == ()


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
@pytest.mark.parametrize("path", PATHS)
def test_all_paths_want_a_known_name(server, path, method):
    answer = httpx.request(method, server.url + path, headers={"host": "evil.example:8000"}, timeout=5)
    assert answer.status_code == 403 and answer.headers["x-request-id"]
    error = answer.json()["error"]
    assert error["code"] == "host_not_allowed" and "--allowed-hosts evil.example" in error["message"]


def test_the_name_in_the_target_counts(connect, server):
    def ask(target: bytes, host: bytes) -> int:
        return connect(server).send(b"GET %s/health HTTP/1.1\r\nHost: %s\r\n\r\n" % (target, host)).answer()[0]

    assert ask(b"http://evil.example", b"localhost") == 403 == ask(b"", b"evil.example")
    assert ask(b"http://localhost:1", b"evil.example") == 200 == ask(b"https://[::1]", b"localhost")


def test_a_service_of_a_cluster_is_named_or_has_keys(codec):
    for gateway in ({"hosts": Hosts(names=("eyas",))}, {"hosts": hosts_of("0.0.0.0", None, has_keys=True)}):
        with stub_server(codec, None, gateway=gateway | {"key_digests": digests("k")}) as server:
            ask = {"headers": {"host": "eyas:8000", "x-api-key": "k"}}
            assert httpx.get(f"{server.url}/v1/models", **ask).status_code == 200


ORIGINS = [
    ({"origin": "http://evil.example"}, False),
    ({"origin": "null"}, False),
    ({"origin": "http://localhost:1"}, False),
    ({"origin": "http://localhost"}, False),
    ({"origin": "https://localhost:8000.evil.example"}, False),
    ({"sec-fetch-site": "cross-site", "sec-fetch-dest": "image"}, False),
    ({"sec-fetch-site": "same-site", "sec-fetch-dest": "empty"}, False),
    ({"sec-fetch-site": "cross-site", "sec-fetch-dest": "document", "origin": "null"}, False),
    ({"sec-fetch-site": "cross-site", "sec-fetch-dest": "iframe"}, False),
    ({"sec-fetch-site": "cross-site", "sec-fetch-dest": "document"}, True),  # a link to the page
    ({"sec-fetch-site": "none", "sec-fetch-dest": "document"}, True),
    ({"sec-fetch-site": "same-origin", "origin": "https://chat.example"}, True),  # behind a proxy that renames
    ({"origin": "http://localhost:8000"}, True),
    ({"origin": "https://LOCALHOST:8000"}, True),
    ({}, True),
]


@pytest.mark.parametrize(("headers", "is_allowed"), ORIGINS, ids=str)
def test_pages_of_other_origins_may_not_ask(server, headers, is_allowed):
    headers = headers | {"host": "localhost:8000", "content-type": "application/json"}
    before = server.engine.stats().num_generated_tokens
    answer = httpx.post(f"{server.url}/v1/chat/completions", content=GOOD, headers=headers)
    assert answer.status_code == (200 if is_allowed else 403), answer.text
    assert (server.engine.stats().num_generated_tokens > before) is is_allowed
    with httpx.stream("GET", f"{server.url}/live", headers=headers) as live:
        assert live.status_code == (200 if is_allowed else 403)
    if not is_allowed:
        error = answer.json()["error"]
        assert error["code"] == "origin_not_allowed" and "--cors" in error["message"]


@pytest.mark.parametrize("setting", ["https://chat.example", "*"])
def test_pages_of_a_known_origin_may(codec, setting):
    with stub_server(codec, None, gateway={"cors_origins": (setting,)}) as server:
        headers = {"origin": "https://chat.example", "sec-fetch-site": "cross-site"}
        with httpx.stream("GET", f"{server.url}/live", headers=headers) as live:
            assert live.status_code == 200
        other = httpx.get(f"{server.url}/v1/models", headers=headers | {"origin": "https://evil.example"})
        assert other.status_code == (200 if setting == "*" else 403)


@pytest.mark.parametrize(
    ("host", "origin"), [("box.example", "https://box.example:443"), ("box.example:80", "http://box.example")]
)
def test_usual_ports_may_be_left_out(codec, host, origin):
    with stub_server(codec, None, gateway={"hosts": Hosts(names=("*.example",))}) as server:
        headers = {"host": host, "origin": origin}
        assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 200

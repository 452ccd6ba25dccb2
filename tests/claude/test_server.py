"""What is asked of a server, and one line for each way in which it can be wrong."""

import socket

import pytest

from eyas.base.errors import UserError
from eyas.claude.server import Server, ask


def test_the_facts(server):
    assert ask(server.url) == Server(url=server.url, model="claude-local-gpt-oss-20b", context=65536, version="1.2.3")
    server.models[1] = {"id": "Claude-x", "max_input_tokens": 131072}
    server.statuses["/version"] = server.statuses["/ready"] = (404, "no")
    assert ask(server.url) == Server(url=server.url, model="Claude-x", context=131072, version=None)


def test_a_model_by_its_name(server):
    server.models.append({"id": "other", "max_model_len": 70000})
    assert ask(server.url, model="gpt-oss-20b").model == "claude-local-gpt-oss-20b"
    assert ask(server.url, model="claude-local-gpt-oss-20b").model == "claude-local-gpt-oss-20b"
    assert ask(server.url, model="other").model == "other"  # another server's, without an alias
    wrong(
        server.url,
        r"has no model 'gpt-oss-20' \(did you mean 'gpt-oss-20b'\?\); it has gpt-oss-20b, ",
        model="gpt-oss-20",
    )


def wrong(url, match, **options):
    with pytest.raises(UserError, match=match) as caught:
        ask(url, **options)
    assert "\n" not in str(caught.value) and "s3cret" not in str(caught.value)


def test_no_server():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    wrong(f"http://127.0.0.1:{port}", r"no server answers at .*Connection refused.*start one: eyas serve ")


def test_a_server_that_says_nothing(monkeypatch):
    monkeypatch.setattr("eyas.claude.server.TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        wrong(f"http://127.0.0.1:{silent.getsockname()[1]}", r"does not answer within 0\.05 s")


def test_a_proxy_is_not_asked(server, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert ask(server.url).context == 65536


def test_keys(server):
    server.key = "s3cret"
    assert ask(server.url, key="s3cret").context == 65536
    wrong(server.url, r"wants an API key: --api-key env:NAME")
    wrong(server.url, r"refuses this API key", key="s3cret2")
    wrong(server.url, r"must be printable ASCII", key="s3cret\n")
    wrong(server.url, r"must be printable ASCII", key="")


@pytest.mark.parametrize(
    "answer",
    [(404, "no"), (302, "no"), (200, "no JSON"), (200, {"data": 3}), (200, {"data": [{}]}), (200, []), (500, {})],
)
def test_another_kind_of_server(server, answer):
    server.statuses["/v1/models"] = answer
    wrong(server.url, rf"does not look like a server of models: .* status {answer[0]}")


def test_an_engine_that_is_down(server):
    server.statuses["/ready"] = (503, {"status": "failed", "error": "out of memory"})
    wrong(server.url, r"the engine of the server at .* does not serve \(out of memory\)")
    server.statuses["/ready"] = (503, "?")
    wrong(server.url, r"does not serve \(status 503\)")


def test_no_name_for_claude_code(server):
    del server.models[1]
    wrong(server.url, r"offers no model to Claude Code, .* 'claude' in it; it has gpt-oss-20b\. .*--model NAME")
    server.models.clear()
    wrong(server.url, r"it has none\.")


@pytest.mark.parametrize("context", [None, 0, "65536"])
def test_a_context_that_is_not_known(server, context):
    server.models[:] = [{"id": "claude", "max_model_len": context}]
    wrong(server.url, r"does not say how many tokens of context 'claude' has")

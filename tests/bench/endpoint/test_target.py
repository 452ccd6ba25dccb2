"""Who an endpoint says that it is, from answers as each engine gives them."""

import httpx
import pytest

from eyas.base.errors import UserError
from eyas.bench.endpoint.target import Arm, identify, root_of

ENGINES = {  # owned_by, Server header, what else it answers; as in the sources that target.py names
    "eyas": ("eyas", {}, {"/version": {"version": "0.1.0", "commit": "abc"}}, "0.1.0"),
    "vllm": ("vllm", {}, {"/version": {"version": "0.14.1"}}, "0.14.1"),
    "sglang": ("sglang", {}, {"/server_info": {"version": "0.5.6", "tp_size": 1}}, "0.5.6"),
    "tensorrt-llm": ("tensorrt_llm", {}, {"/version": {"version": "1.3.0"}}, "1.3.0"),
    "llama.cpp": ("llamacpp", {"Server": "llama.cpp"}, {"/props": {"build_info": "b7000-1234"}}, "b7000-1234"),
    "ollama": ("library", {}, {"/api/version": {"version": "0.13.5"}}, "0.13.5"),
}


def transport(owner, headers, answers, model="gpt-oss-20b"):
    def handle(request):
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": model, "owned_by": owner}]}, headers=headers)
        if request.url.path in answers:
            return httpx.Response(200, json=answers[request.url.path])
        return httpx.Response(404)

    return httpx.MockTransport(handle)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("says_owner", [True, False])
def test_each_engine_is_known(engine, says_owner):
    owner, headers, answers, version = ENGINES[engine]
    found = identify(
        Arm(name="A", url="http://192.0.2.1:8000/v1/"),
        transport=transport(owner if says_owner else "x", headers, answers),
    )
    if says_owner or engine in ("llama.cpp", "ollama", "sglang"):
        assert (found.engine, found.version) == (engine, version)
    else:
        assert found.engine is None  # `/version` belongs to several engines
    assert found.root == "http://192.0.2.1:8000" and found.model == "gpt-oss-20b" and not found.is_here


def test_figures_of_made_up_answers_are_simulated():
    owner, headers, answers, _ = ENGINES["eyas"]
    arm = Arm(name="A", url="http://127.0.0.1:1")
    assert identify(arm, transport=transport(owner, headers, answers, "null")).simulated.startswith("SIMULATED")
    found = identify(arm, transport=transport(owner, headers, answers))
    assert found.simulated == "" and found.is_here


def test_a_list_of_models_that_is_none():
    deep = httpx.MockTransport(lambda request: httpx.Response(200, content=b'{"a": ' + b"[" * 100_000))
    with pytest.raises(UserError, match="names no model at /v1/models"):
        identify(Arm(name="A", url="http://192.0.2.1"), transport=deep)


def test_a_key_is_sent_and_not_shown():
    seen = []

    def handle(request):
        seen.append(request.headers.get("authorization"))
        return httpx.Response(200, json={"data": [{"id": "m"}]})

    arm = Arm(name="A", url="http://192.0.2.1", key="sesame")
    identify(arm, transport=httpx.MockTransport(handle))
    assert set(seen) == {"Bearer sesame"} and "sesame" not in repr(arm)


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("http://a:1", "http://a:1"),
        ("a:1/v1", "http://a:1"),
        ("https://a/proxy/v1/chat/completions", "https://a/proxy"),
        ("http://a/v1/completions/", "http://a"),
    ],
)
def test_the_root_of_an_address(url, root):
    assert root_of(url) == root


@pytest.mark.parametrize("url", ["ftp://a", "http://", "http://a?key=secret", "http://user:secret@?x"])
def test_no_address(url):
    with pytest.raises(UserError) as error:
        root_of(url)
    assert "is no address of an endpoint" in str(error.value) and "secret" not in str(error.value)

"""What is looked at for tips: the machine, process and prompts of a server that is here; nothing of one elsewhere."""

import http.server
import os
import sys
import threading
from pathlib import Path

import pytest

from eyas.fleet.advice import looking
from eyas.fleet.advice.looking import engine_of, is_here, known_model, longest_prompt, seen

HISTOGRAM = """\
# TYPE {name} histogram
{name}_bucket{{model="a",le="1000"}} 40
{name}_bucket{{model="a",le="5000"}} {at_5000}
{name}_bucket{{model="a",le="20000"}} 50
{name}_bucket{{model="a",le="+Inf"}} 50
{name}_count{{model="a"}} 50
{name}_sum{{model="a"}} 50000
"""


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://localhost", True),
        ("http://[::1]:80", True),
        ("http://10.0.0.2:1", False),
    ],
)
def test_where_a_server_is(url, expected):
    assert is_here(url) == expected


@pytest.mark.parametrize(
    ("owner", "engine"),
    [("vllm", "vllm"), ("llamacpp", "llama.cpp"), ("sglang", "sglang"), ("library", "ollama"), ("someone", None)],
)
def test_the_engine(owner, engine):
    models = {"data": [{"id": "other", "owned_by": "vllm"}, {"id": "m", "owned_by": owner}]}
    assert engine_of(models, "m") == engine
    assert engine_of(models, "none") is engine_of(None, "m") is None


@pytest.mark.parametrize(
    ("served", "name"),
    [
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("gpt-oss:120b", "gpt-oss-120b"),
        ("/models/gpt-oss-20b-mxfp4.gguf", "gpt-oss-20b"),
        ("nvidia/Llama-3.3-70B-Instruct-FP4", "llama-3.3-70b-fp4"),
        ("claude-local-gpt-oss-120b", "gpt-oss-120b"),
        ("mine", ""),
    ],
)
def test_the_model(served, name):
    assert known_model(served) == name


@pytest.mark.parametrize("name", ["vllm:request_prompt_tokens", "sglang:prompt_tokens_histogram"])
@pytest.mark.parametrize(("at_5000", "longest"), [(50, 5000), (49, 20000)])
def test_the_longest_prompt(name, at_5000, longest):
    found = longest_prompt(HISTOGRAM.format(name=name, at_5000=at_5000))
    assert (found.count, found.longest) == (50, longest)


def test_no_longest_prompt():
    assert longest_prompt("") is longest_prompt("vllm:prompt_tokens_total 7\n") is None
    beyond = HISTOGRAM.format(name="vllm:request_prompt_tokens", at_5000=50).replace('+Inf"} 50', '+Inf"} 51')
    assert longest_prompt(beyond) is None


def test_a_server_here_and_its_process():
    """This very process listens."""
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        found = seen(
            url, {"data": [{"id": "gpt-oss-20b", "owned_by": "vllm"}]}, "gpt-oss-20b", 4096, "no metrics {", None
        )
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert found.machine.memory_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert (found.facts.engine, found.facts.model, found.facts.context) == ("vllm", "gpt-oss-20b", 4096)
    assert found.prompts is None and found.copies is not None
    assert found.argv is None or Path(found.argv[0]).name == Path(sys.orig_argv[0]).name


def test_nothing_is_looked_at_for_a_server_elsewhere(monkeypatch):
    monkeypatch.setattr(looking, "look", None)  # calling it fails
    found = seen("http://10.0.0.2:8000", None, "m", 4096, "", None)
    assert found.machine is found.facts is found.copies is found.argv is None and found.context == 4096


def test_a_tunnel_is_a_server_elsewhere(monkeypatch):
    listening = 'LISTEN 0 128 127.0.0.1:8000 0.0.0.0:* users:(("ssh",pid=4242,fd=4))'
    monkeypatch.setattr(looking, "ask", lambda *_, **__: {"listeners": listening})
    assert seen("http://127.0.0.1:8000", None, "m", None, "", None).machine is None

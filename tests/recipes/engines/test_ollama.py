"""Ollama's server and pull, to the word, and what it cannot do."""

import pytest
from tests.recipes.engines.test_llama_cpp import SPARK, choice

from eyas.base.errors import UserError
from eyas.recipes.engines.ollama import emit
from eyas.recipes.knowledge.tables import knowledge


def made(model="gpt-oss-120b", head=None, **changes):
    known = knowledge()
    base = {"engine": "ollama", "version": "0.33.0", "port": 11434, "concurrency": 2}
    chosen = choice(**base | {"model": model} | changes)
    return emit(chosen, SPARK, known.model(model), known.head(head) if head else None)


def test_server_then_pull():
    emission = made()
    server, pull = emission.launches
    assert server.argv == ("ollama", "serve") and not server.is_once and server.wait.port == 11434
    env = {variable.name: variable.value for variable in server.env}
    assert env == {
        "OLLAMA_HOST": "127.0.0.1:11434",
        "OLLAMA_CONTEXT_LENGTH": "65536",
        "OLLAMA_NUM_PARALLEL": "2",
        "OLLAMA_MAX_LOADED_MODELS": "1",
        "OLLAMA_KEEP_ALIVE": "-1",
        "OLLAMA_FLASH_ATTENTION": "1",
    }
    assert pull.argv == ("ollama", "pull", "gpt-oss:120b") and pull.is_once and pull.wait.timeout_s > 30_000
    assert [variable.name for variable in pull.env] == ["OLLAMA_HOST"]
    assert (emission.readiness.path, emission.readiness.model) == ("/api/version", "gpt-oss:120b")


def test_addresses_and_a_smaller_cache():
    env = {v.name: v.value for v in made(listen="::1", kv_dtype="fp8").launches[0].env}
    assert env["OLLAMA_HOST"] == "[::1]:11434" and env["OLLAMA_KV_CACHE_TYPE"] == "q8_0"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": "nvidia-v3", "method": "eagle3"}, "no EAGLE-3"),
        ({"api_key_env": "KEY"}, "knows no API keys"),
        ({"image": "ollama/ollama"}, "not as a container"),
        ({"model": "qwen3-32b"}, "has no qwen3-32b"),
        ({"model_path": "/models/oss"}, "its own library"),
    ],
)
def test_what_it_cannot_do(changes, message):
    with pytest.raises(UserError, match=message):
        made(**changes)

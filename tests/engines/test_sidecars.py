"""A real llama-server, started as eyas plans it for each role, and the canary's question for each."""

import pytest
from tests.engines.support.llama import free_port, running
from tests.engines.support.tiny_vision import write

from eyas.base.bundled import DEMO
from eyas.client.endpoint import canary
from eyas.model.gguf.export import export_target
from eyas.recipes.engines.llama_cpp import emit
from eyas.recipes.knowledge.boxes import parse_box
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.plan import Choice, Node

PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The demo model as GGUF, and a vision encoder that fits it."""
    out = tmp_path_factory.mktemp("sidecars")
    export_target(DEMO, out / "model.gguf", weights="f32", name="test")
    write(out / "mmproj.gguf", knowledge().models["demo"].hidden_size)
    return out


def command(binary, folder, model, role):
    """The argv of a plan for `model`, with the demo model's file in its place."""
    choice = Choice(
        model=model, model_path=str(folder / "model.gguf"), engine="llama.cpp", version="0.5.0", image=None,
        method="none", role=role, context=2048, concurrency=2, nodes=(Node(name="here"),), port=free_port(),
        cache="/nowhere", directory="/nowhere", name="test", binary=str(binary),
    )  # fmt: skip
    (launch,) = emit(choice, parse_box("spark"), knowledge().model(model), None).launches
    return [*launch.argv, "-t", "2", "--poll", "0"]


def says(client, model, role):
    return canary.ask(client, knowledge().model(model).repo, PATIENCE_S, role)


@pytest.mark.parametrize("model", ["demo", "nomic-embed-text", "qwen3-embedding"])
def test_embeddings(llama_server, folder, model, tmp_path):
    """With the mean of all tokens, and with the last: vectors that the canary takes."""
    with running(command(llama_server, folder, model, "embeddings"), tmp_path / "log") as client:
        assert says(client, model, "embeddings") is None
        whole, longer = (client.post("/v1/embeddings", json={"input": "x y " * count}) for count in (1000, 1100))
        assert whole.json()["usage"]["prompt_tokens"] <= 2048
        assert longer.status_code >= 400 and ("too large" in longer.text or "exceeds the available" in longer.text)


@pytest.mark.parametrize("model", ["qwen2.5-vl-3b", "gemma-3-4b"])
def test_pictures(llama_server, folder, model, tmp_path):
    argv = [*command(llama_server, folder, model, "vision"), "--mmproj", str(folder / "mmproj.gguf")]
    with running(argv, tmp_path / "log") as client:
        assert says(client, model, "vision") is None
        assert "does not support embeddings" in says(client, model, "embeddings")
    assert "loaded multimodal model" in (tmp_path / "log").read_text()


def test_without_eyes_it_is_said(llama_server, folder, tmp_path):
    with running(command(llama_server, folder, "gemma-3-4b", "text"), tmp_path / "log") as client:
        assert says(client, "gemma-3-4b", "text") is None
        assert "image input is not supported" in says(client, "gemma-3-4b", "vision")

"""Copies of one model on the disk, wherever engines keep them."""

import pytest

from eyas.fleet.advice.copies import copies, family, several


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("ggml-org/gpt-oss-120b-GGUF", "gpt-oss-120b"),
        ("gpt-oss-120b-mxfp4-00001-of-00003.gguf", "gpt-oss-120b"),
        ("gpt-oss-120b-UD-Q4_K_XL.gguf", "gpt-oss-120b"),
        ("gpt-oss:120b", "gpt-oss-120b"),
        ("gpt-oss:latest", "gpt-oss"),
        ("Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b"),
        ("nvidia/Qwen3-235B-A22B-FP4", "qwen3-235b-a22b"),
        ("lmsys/EAGLE3-gpt-oss-120b-bf16", "eagle3-gpt-oss-120b"),  # a head is another model
        ("nvidia/gpt-oss-120b-Eagle3-v3", "gpt-oss-120b-eagle3-v3"),
        ("openai/gpt-oss-20b", "gpt-oss-20b"),
    ],
)
def test_the_model_of_a_copy(name, model):
    assert family(name) == model


def put(path, size):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\0" * size)


def test_three_caches(tmp_path):
    hub = tmp_path / "hf" / "hub"
    put(hub / "models--openai--gpt-oss-120b/snapshots/abc/model-00001-of-00002.safetensors", 3000)
    put(hub / "models--openai--gpt-oss-120b/snapshots/abc/model-00002-of-00002.safetensors", 3000)
    put(hub / "models--lmsys--EAGLE3-gpt-oss-120b-bf16/snapshots/abc/model.safetensors", 100)
    put(hub / "models--ggml-org--gpt-oss-120b-GGUF/snapshots/abc/gpt-oss-120b-mxfp4-00001-of-00002.gguf", 1000)
    put(hub / "models--ggml-org--gpt-oss-120b-GGUF/snapshots/abc/gpt-oss-120b-mxfp4-00002-of-00002.gguf", 1500)
    put(tmp_path / "llama" / "gpt-oss-20b-Q8_0.gguf", 700)
    put(tmp_path / "llama" / "mmproj-gpt-oss-20b.gguf", 50)
    digest = "a" * 64
    put(tmp_path / "ollama" / "blobs" / f"sha256-{digest}", 900)
    manifest = tmp_path / "ollama" / "manifests" / "registry.ollama.ai" / "library" / "gpt-oss" / "120b"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(f'{{"layers": [{{"digest": "sha256:{digest}"}}]}}')
    found = copies({
        "HF_HOME": str(tmp_path / "hf"), "LLAMA_CACHE": str(tmp_path / "llama"), "HOME": str(tmp_path),
        "OLLAMA_MODELS": str(tmp_path / "ollama"),
    })  # fmt: skip
    assert {copy.name: copy.num_bytes for copy in found} == {
        "openai/gpt-oss-120b": 6000, "lmsys/EAGLE3-gpt-oss-120b-bf16": 100, "gpt-oss-120b-mxfp4.gguf": 2500,
        "gpt-oss-20b-Q8_0.gguf": 700, "gpt-oss:120b": 900,
    }  # fmt: skip
    ((name, group),) = several(found).items()
    assert name == "gpt-oss-120b" and sum(copy.num_bytes for copy in group) == 9400


def test_no_caches(tmp_path):
    assert copies({"HOME": str(tmp_path)}) == ()

"""Names of engines, and of the roles that a model may have in a deployment."""

from __future__ import annotations

from typing import Literal

__all__ = ["OWNERS", "EngineName", "Role"]

EngineName = Literal["eyas", "sglang", "tensorrt-llm", "vllm", "llama.cpp", "ollama"]
Role = Literal["text", "vision", "embeddings"]  # chat; chat that also sees pictures; vectors of texts
# `owned_by` of the entries in /v1/models, in lower case.
OWNERS: dict[str, EngineName] = {
    "eyas": "eyas",
    "vllm": "vllm",
    "sglang": "sglang",
    "tensorrt_llm": "tensorrt-llm",
    "llamacpp": "llama.cpp",
    "library": "ollama",
}

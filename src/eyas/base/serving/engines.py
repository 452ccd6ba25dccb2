"""Names of engines, and of the roles that a model may have in a deployment."""

from __future__ import annotations

from typing import Literal

__all__ = ["EngineName", "Role"]

EngineName = Literal["eyas", "sglang", "tensorrt-llm", "vllm", "llama.cpp", "ollama"]
Role = Literal["text", "vision", "embeddings"]  # chat; chat that also sees pictures; vectors of texts

"""eyas: gpt-oss made fast with EAGLE-3 speculative decoding. Everything is imported lazily."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eyas.base.types import SamplingParams
    from eyas.client.client import AsyncClient
    from eyas.llm import LLM

__all__ = ["LLM", "AsyncClient", "SamplingParams", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from eyas.llm import LLM

        return LLM
    if name == "AsyncClient":
        from eyas.client.client import AsyncClient

        return AsyncClient
    if name == "SamplingParams":
        from eyas.base.types import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'eyas' has no attribute '{name}'")

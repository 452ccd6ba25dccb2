"""The adapter of each engine: the one way to ask a server, or an answer of it, for what came of its drafts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from eyas.base.serving.engines import EngineName
from eyas.client.endpoint.acceptance import eyas, llama_cpp, ollama, sglang, tensorrt_llm, vllm
from eyas.client.endpoint.acceptance.counts import Counts, Reading

__all__ = ["ADAPTERS", "Adapter", "connect", "read"]

TIMEOUT_S = 5.0


def _nothing(events: Sequence[bytes]) -> Counts | None:
    return None


@dataclass(frozen=True, slots=True)
class Adapter:
    """Reads what one engine tells of its drafts.

    `read` asks the server, which counts requests when they are over. `of_answer` reads the events of a stream from its
    finish reason on, or a whole answer as the only one, as bytes of JSON: None if they say nothing. A request needs
    `fields` for that.
    """

    read: Callable[[httpx.Client], Reading]
    of_answer: Callable[[Sequence[bytes]], Counts | None] = _nothing
    fields: Mapping[str, Any] = field(default_factory=dict)


ADAPTERS: dict[EngineName, Adapter] = {
    "eyas": Adapter(eyas.read, eyas.of_answer),
    "vllm": Adapter(vllm.read, vllm.of_answer),
    "sglang": Adapter(sglang.read, sglang.of_answer, sglang.FIELDS),
    "llama.cpp": Adapter(llama_cpp.read, llama_cpp.of_answer),
    "tensorrt-llm": Adapter(tensorrt_llm.read),  # of an answer: TensorRT-LLM#19311, not merged
    "ollama": Adapter(ollama.read),
}


def connect(base_url: str, key: str | None = None) -> httpx.Client:
    """Return a client of a server, whose address may end in `/v1`. It uses no proxy."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    base = base_url.rstrip("/").removesuffix("/v1")
    return httpx.Client(base_url=base, headers=headers, timeout=TIMEOUT_S, trust_env=False)


def read(engine: EngineName | None, client: httpx.Client) -> Reading:
    """Read what a server has counted so far. Raises nothing: what it does not tell has its reason in the reading."""
    if engine is None:
        return Reading(source="", not_offered="the engine is unknown")
    return ADAPTERS[engine].read(client)

"""The acceptance length of every engine from its own endpoint: committed tokens per pass of the target, bonus included.

Engines count differently; here each is brought to that one definition. What an engine does not report is None, never a
guess. Read in the sources of SGLang 0.5.6 to 0.5.23, vLLM 0.14 to 0.33, TensorRT-LLM 1.3 and llama.cpp 0.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import httpx
import msgspec
from msgspec import Struct

from eyas.base.serving.engines import EngineName

__all__ = ["COUNTERS", "SGLANG_GAUGE", "Acceptance", "acceptance_length", "samples_of", "sums_of"]

TIMEOUT_S = 5.0
COUNTERS: dict[str, tuple[str, str, str]] = {
    # rounds, accepted, drafted; ours has vLLM's names and counts rounds without drafts, too, which vLLM does not
    "vllm": (
        "vllm:spec_decode_num_drafts_total",
        "vllm:spec_decode_num_accepted_tokens_total",
        "vllm:spec_decode_num_draft_tokens_total",
    ),
    # generated, accepted, drafted
    "llama.cpp": (
        "llamacpp:tokens_predicted_total",
        "llamacpp:spec_decode_num_accepted_tokens_total",
        "llamacpp:spec_decode_num_draft_tokens_total",
    ),
}
COUNTERS["eyas"] = COUNTERS["vllm"]
SGLANG_GAUGE = "sglang:spec_accept_length"
T = TypeVar("T")


class Acceptance(Struct, frozen=True, kw_only=True):
    """Acceptance length `length` in tokens per target pass, bonus included, over `rounds` passes if those are reported.

    `is_recent`: over the last moments, not since the engine started.
    """

    length: float
    source: str
    rounds: float | None = None
    is_recent: bool = False


# What is read of engines' JSON, under their own names.


class _State(Struct):
    avg_spec_accept_length: float | None = None


class _ServerInfo(Struct):
    internal_states: list[_State] = []


class _Speculation(Struct):
    numRequestsWithDraftTokens: int = 0
    numAcceptedTokens: int = 0


class _Iteration(Struct):
    specDecodingStats: _Speculation | None = None


def acceptance_length(engine: EngineName, server: str | httpx.Client) -> Acceptance | None:
    """Return it since the engine started, or the nearest reported. None: no speculation, no traffic, or not reachable.

    `server` is its base URL, without `/v1`, or a client for it. Reading TensorRT-LLM's `/metrics` empties it: no other
    reader gets the same figures.
    """
    with _client(server) as client:
        match engine:
            case "sglang":
                return _sglang(client)
            case "tensorrt-llm":
                return _tensorrt_llm(client)
            case _:
                return _since_start(engine, client)


@contextmanager
def _client(server: str | httpx.Client) -> Iterator[httpx.Client]:
    """Yield `server` itself where it is a client; one that is made here is closed, too."""
    if isinstance(server, httpx.Client):
        yield server
        return
    with httpx.Client(base_url=server, timeout=TIMEOUT_S, trust_env=False) as client:
        yield client


def _since_start(engine: EngineName, client: httpx.Client) -> Acceptance | None:
    """Compute it from the counters of an engine that has them."""
    names = COUNTERS.get(engine)
    found = None if names is None else _sums(client, "/metrics", names)
    if found is None:
        return None
    first, accepted, drafted = found
    # llama.cpp counts tokens: every pass adds one of the target's own
    tokens, rounds = (first, first - accepted) if engine == "llama.cpp" else (first + accepted, first)
    if rounds <= 0 or drafted <= 0:
        return None
    return Acceptance(length=tokens / rounds, source="/metrics", rounds=rounds)


def _sglang(client: httpx.Client) -> Acceptance | None:
    """The mean since the start that its scheduler keeps; else the gauge of the last forty steps."""
    for path in ("/server_info", "/get_server_info"):
        info = _json(client, path, _ServerInfo)
        lengths = [state.avg_spec_accept_length for state in info.internal_states] if info else []
        known = [length for length in lengths if length]
        if known:
            return Acceptance(length=sum(known) / len(known), source=path)
    return _gauge(client, "/metrics", SGLANG_GAUGE)


def _tensorrt_llm(client: httpx.Client) -> Acceptance | None:
    """Compute it over the iterations not read yet; else the gauge of the last one (`return_perf_metrics: true`)."""
    iterations = _json(client, "/metrics", list[_Iteration]) or []
    speculation = [item.specDecodingStats for item in iterations if item.specDecodingStats is not None]
    rounds = sum(item.numRequestsWithDraftTokens for item in speculation)
    accepted = sum(item.numAcceptedTokens for item in speculation)
    if rounds > 0:
        return Acceptance(length=1 + accepted / rounds, source="/metrics", rounds=rounds, is_recent=True)
    return _gauge(client, "/prometheus/metrics", "trtllm_spec_decode_acceptance_length")


def _gauge(client: httpx.Client, path: str, name: str) -> Acceptance | None:
    """The mean of a gauge over its labels; a rank that has not speculated shows 0."""
    values = [value for found, value in _text(client, path) if found == name and value > 0]
    return Acceptance(length=sum(values) / len(values), source=path, is_recent=True) if values else None


def _json(client: httpx.Client, path: str, kind: type[T]) -> T | None:
    try:
        response = client.get(path)
        return msgspec.json.decode(response.content, type=kind) if response.status_code == 200 else None
    except (httpx.HTTPError, msgspec.MsgspecError):
        return None


def _sums(client: httpx.Client, path: str, names: tuple[str, ...]) -> tuple[float, ...] | None:
    """Each counter summed over its labels (ranks, models); None where one of them is missing."""
    found = sums_of(_text(client, path))
    return tuple(found[name] for name in names) if found.keys() >= set(names) else None


def _text(client: httpx.Client, path: str) -> Iterable[tuple[str, float]]:
    """Yield (name, value) of every sample of a Prometheus text."""
    try:
        response = client.get(path)
        return samples_of(response.text) if response.status_code == 200 else []
    except (httpx.HTTPError, ValueError):
        return []


def samples_of(text: str) -> list[tuple[str, float]]:
    """Return (name, value) of every sample of a Prometheus text. Raises ValueError for what is none."""
    from prometheus_client.parser import text_string_to_metric_families

    families = text_string_to_metric_families(text)
    return [(sample.name, float(sample.value)) for family in families for sample in family.samples]


def sums_of(samples: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the samples by name, each summed over its labels (ranks, models)."""
    found: dict[str, float] = {}
    for name, value in samples:
        found[name] = found.get(name, 0.0) + value
    return found

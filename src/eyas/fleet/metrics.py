"""The acceptance length of every engine from its own endpoint: committed tokens per pass of the target, bonus included.

Engines count differently; here each is brought to that one definition. What an engine does not tell is None, never a
guess. Read in the sources of SGLang 0.5.6 to 0.5.23, vLLM 0.14 to 0.33, TensorRT-LLM 1.3 and llama.cpp 0.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx
import msgspec
from msgspec import Struct

from eyas.recipes.records import EngineName

__all__ = ["Acceptance", "Counters", "acceptance_length", "acceptance_of_response", "between", "counters"]

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
    # generated, rounds; of requests that are over
    "sglang": (
        "sglang:generation_tokens_total",
        "sglang:spec_verify_calls_total",
        "sglang:spec_verify_calls_total",
    ),
}
COUNTERS["eyas"] = COUNTERS["vllm"]
T = TypeVar("T")


class Acceptance(Struct, frozen=True, kw_only=True):
    """`length` is tokens per target pass, bonus included; `rounds` of how many passes, where the engine tells.

    `is_recent`: of the last moments or since the last look, not since the engine started.
    """

    length: float
    source: str
    rounds: float | None = None
    is_recent: bool = False


class Counters(Struct, frozen=True, kw_only=True):
    """Tokens committed, target passes of single sequences and tokens drafted, all since the engine started."""

    tokens: float
    rounds: float
    drafted: float
    source: str


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


class _Mean(Struct):
    mean_acceptance_length: float | None = None


class _Metrics(Struct):
    speculative_decoding: _Mean | None = None


class _Timings(Struct):
    predicted_n: int = 0
    draft_n: int = 0
    draft_n_accepted: int = 0


class _Choice(Struct):
    avg_decoded_tokens_per_iter: float | None = None


class _Answer(Struct):
    metrics: _Metrics | None = None
    timings: _Timings | None = None
    choices: list[_Choice] = []


def acceptance_length(engine: EngineName, server: str | httpx.Client) -> Acceptance | None:
    """Since the engine started, or the best that it tells. None: no speculation, no traffic yet, or not reachable.

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
                return _since_start(_counters(engine, client))


def counters(engine: EngineName, server: str | httpx.Client) -> Counters | None:
    """What the engine counts, for `between`. None where it counts nothing of the kind (TensorRT-LLM, Ollama)."""
    with _client(server) as client:
        return _counters(engine, client)


def between(before: Counters, after: Counters) -> Acceptance | None:
    """Of the rounds between two readings; an engine that was restarted in between counts from zero. None: no rounds."""
    is_restarted = after.rounds < before.rounds or after.tokens < before.tokens
    tokens = after.tokens - (0 if is_restarted else before.tokens)
    rounds = after.rounds - (0 if is_restarted else before.rounds)
    if rounds <= 0:
        return None
    return Acceptance(length=tokens / rounds, source=after.source, rounds=rounds, is_recent=True)


def acceptance_of_response(engine: EngineName, body: Mapping[str, Any]) -> Acceptance | None:
    """Of one answer, from the JSON of a chat completion (of a stream: its last event). None where it tells nothing."""
    answer = msgspec.convert(body, _Answer)
    per_request = answer.metrics.speculative_decoding if answer.metrics else None
    if per_request and per_request.mean_acceptance_length is not None:  # vLLM, if asked to; ours
        return Acceptance(length=per_request.mean_acceptance_length, source="metrics.speculative_decoding")
    timings = answer.timings
    if engine == "llama.cpp" and timings and timings.draft_n:
        rounds = timings.predicted_n - timings.draft_n_accepted  # every pass adds one token of the target's own
        length = timings.predicted_n / rounds if rounds > 0 else None
        return None if length is None else Acceptance(length=length, source="timings", rounds=rounds)
    lengths = [choice.avg_decoded_tokens_per_iter for choice in answer.choices]
    known = [length for length in lengths if length is not None]
    if engine == "tensorrt-llm" and known:
        return Acceptance(length=sum(known) / len(known), source="avg_decoded_tokens_per_iter")
    return None


@contextmanager
def _client(server: str | httpx.Client) -> Iterator[httpx.Client]:
    """`server` itself where it is a client; one that is made here is closed, too."""
    if isinstance(server, httpx.Client):
        yield server
        return
    with httpx.Client(base_url=server, timeout=TIMEOUT_S, trust_env=False) as client:
        yield client


def _counters(engine: EngineName, client: httpx.Client) -> Counters | None:
    names = COUNTERS.get(engine)
    found = None if names is None else _sums(client, "/metrics", names)
    if found is None:
        return None
    first, second, third = found
    match engine:
        case "llama.cpp":  # every pass adds one token of the target's own
            return Counters(tokens=first, rounds=first - second, drafted=third, source="/metrics")
        case "sglang":
            return Counters(tokens=first, rounds=second, drafted=third, source="/metrics")
        case _:
            return Counters(tokens=first + second, rounds=first, drafted=third, source="/metrics")


def _since_start(found: Counters | None) -> Acceptance | None:
    if found is None or found.rounds <= 0 or found.drafted <= 0:
        return None
    return Acceptance(length=found.tokens / found.rounds, source=found.source, rounds=found.rounds)


def _sglang(client: httpx.Client) -> Acceptance | None:
    """The mean since the start that its scheduler keeps; else the gauge of the last forty steps."""
    for path in ("/server_info", "/get_server_info"):
        info = _json(client, path, _ServerInfo)
        lengths = [state.avg_spec_accept_length for state in info.internal_states] if info else []
        known = [length for length in lengths if length]
        if known:
            return Acceptance(length=sum(known) / len(known), source=path)
    return _gauge(client, "/metrics", "sglang:spec_accept_length")


def _tensorrt_llm(client: httpx.Client) -> Acceptance | None:
    """Over the iterations that nobody has read yet; else the gauge of the last one (`return_perf_metrics: true`)."""
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
    found: dict[str, float] = {}
    for name, value in _text(client, path):
        found[name] = found.get(name, 0.0) + value
    return tuple(found[name] for name in names) if found.keys() >= set(names) else None


def _text(client: httpx.Client, path: str) -> Iterable[tuple[str, float]]:
    """(name, value) of every sample of a Prometheus text; nothing where there is none."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        response = client.get(path)
        if response.status_code != 200:
            return []
        families = text_string_to_metric_families(response.text)
        return [(sample.name, float(sample.value)) for family in families for sample in family.samples]
    except (httpx.HTTPError, ValueError):
        return []

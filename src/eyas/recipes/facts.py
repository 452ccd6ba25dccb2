"""What a plan is, said as facts that known issues and tuning rules are asked about; and the predicates that ask.

A predicate is a mapping from YAML. All of its keys must hold. Text keys take one value or a list of alternatives and
`*` as a wildcard; numbers take comparisons such as ">1" or ">=2,<=8"; `version` takes ranges such as ">=0.5.6,<0.5.10".
"""

from __future__ import annotations

from msgspec import Struct

__all__ = ["Facts", "When"]

Texts = str | tuple[str, ...]


class Facts(Struct, frozen=True, kw_only=True):
    """One engine of one plan as it would be started. `features` are tags that emitters and the planner set:

    what is asked for ("tools", "guided-decoding", "claude-code", ...), what the command holds ("flag:--max-model-len",
    "env:VLLM_ATTENTION_BACKEND", "moe:triton_kernel", "attention:fa3", "kv:fp8", "prefix-caching", "mmap", "tree",
    "cuda-graphs", "vocab-files", ...) and what the box is like ("offline", "page-cache-full").
    """

    engine: str
    version: str
    model: str
    hardware: str
    compute_capability: str
    unified: bool = False
    bandwidth: float = 0.0  # bytes per second
    memory_bytes: int = 0  # of one GPU
    nodes: int = 1
    tensor_parallel: int = 1
    method: str = "none"  # none, eagle3, draft-model
    head: str = ""
    draft_tokens: int = 0
    context: int = 0
    concurrency: int = 1
    purpose: str = "chat"
    driver: str = ""
    features: frozenset[str] = frozenset()


class When(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A predicate over Facts; see the module. An absent key asks nothing."""

    engine: Texts | None = None
    version: str | None = None
    model: Texts | None = None
    hardware: Texts | None = None
    compute_capability: Texts | None = None
    unified: bool | None = None
    bandwidth: str | None = None  # GB/s
    memory: str | None = None  # GB
    nodes: str | None = None
    tensor_parallel: str | None = None
    method: Texts | None = None
    head: Texts | None = None
    draft_tokens: str | None = None
    context: str | None = None
    concurrency: str | None = None
    purpose: Texts | None = None
    driver: str | None = None
    all: tuple[str, ...] = ()  # features that must be there, `*` allowed
    none: tuple[str, ...] = ()  # features that must not be there

"""Estimates the memory of one GPU under a plan: what each owner needs, what the engine takes at start, what fits.

`memory_map` answers what is needed and whether it fits, `fitting` how long a context or how many requests would fit,
`default_fraction` the setting for engines that take a share of the GPU. Estimates, but for weights and KV cache. A cap
(`Choice.memory_cap`) is for all that the engine takes: its pool, what lies outside of it, and on unified memory what
its processes take besides.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor

from msgspec import Struct
from msgspec.structs import replace

from eyas.recipes.estimate.kv import host_cache_bytes, kv_layout, round_rows, step_tokens
from eyas.recipes.estimate.weights import checkpoint_bytes, draft_bytes, expert_padding
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.plan import Box, Choice, MemoryMap, MemoryRow
from eyas.recipes.records import CPU, Head, Model
from eyas.recipes.versions import satisfies

__all__ = ["POOLED", "Fits", "default_fraction", "engine_fraction", "fitting", "memory_map"]

MIB, GIB = 1 << 20, 1 << 30
ACTIVATION_BYTES = 80  # per hidden unit and prompt token of a step: residuals, Q/K/V, four experts, fp32 temporaries
GRAPH_BYTES, GRAPH_ROW_BYTES = GIB // 2, 2 * MIB  # SGLang's own estimate is 2 MiB per captured row
RUNTIME_BYTES = 3 * GIB // 4  # CUDA context, libraries, workspaces
# On a CPU that is all of its processes but weights and caches. With the demo model eyas took 358 MiB (PSS)
# and llama-server 0.5.0 64 MiB, 2026-11-25.
CPU_RUNTIME_BYTES, SMALL_CPU_RUNTIME_BYTES = 384 * MIB, 128 * MIB
PICTURE_BYTES = GIB  # while a large picture is encoded; a guess
COMMUNICATION_BYTES = GIB  # NCCL and all-reduce buffers, where there are several GPUs
# Processes outside of the GPU's allocations: Python with torch two to four times, or one of C++. Not measured.
HOST_BYTES = {"sglang": 3 * GIB, "vllm": 3 * GIB, "tensorrt-llm": 3 * GIB, "eyas": 2 * GIB}
SMALL_HOST_BYTES = GIB // 2
POOLED = ("sglang", "vllm", "tensorrt-llm")  # they take a share at start, and requests wait for room in it
EYAS_KV_SHARE = 0.9  # eyas.engine.startup.build: of what is free after the weights
MOST_REQUESTS = 4096


class Fits(Struct, frozen=True, kw_only=True):
    """The longest context at the choice's concurrency, and the most requests at its context; 0 where nothing fits."""

    max_context: int
    max_concurrency: int


class _Needs(Struct, frozen=True, kw_only=True):
    """Bytes of one GPU, by owner and in sums."""

    rows: tuple[MemoryRow, ...]
    static: float  # weights, padding, head
    work: float  # activations, graphs, runtime, llama.cpp's prompt cache
    kv: float


def memory_map(
    choice: Choice, box: Box, model: Model, head: Head | None, *, weight_bytes: int | None = None
) -> MemoryMap:
    """Map the memory of one GPU. `weight_bytes` is the checkpoint's own total where it was read.

    Needed is what full contexts of all requests take; engines that take a share at start do so whether needed or not.
    """
    needs = _needs(choice, box, model, head, weight_bytes)
    layout = kv_layout(choice, box, model, head)
    capacity, reserved = _limits(choice, box, needs)
    room = capacity - needs.static - needs.work
    return MemoryMap(
        rows=needs.rows,
        capacity=int(capacity),
        reserved=int(reserved),
        kv_bytes_per_token=layout.per_token,
        max_tokens=layout.max_tokens(room, choice.concurrency),
        host=_host(choice, box),
        cap=choice.memory_cap,
    )


def fitting(choice: Choice, box: Box, model: Model, head: Head | None, *, weight_bytes: int | None = None) -> Fits:
    """Return the context (up to the model's own) and the concurrency that would fit, the other left as it is."""

    def fits(changed: Choice) -> bool:
        return memory_map(changed, box, model, head, weight_bytes=weight_bytes).fits

    return Fits(
        max_context=_most(lambda context: fits(replace(choice, context=context)), model.native_context),
        max_concurrency=_most(lambda concurrency: fits(replace(choice, concurrency=concurrency)), MOST_REQUESTS),
    )


def default_fraction(
    choice: Choice, box: Box, model: Model, head: Head | None, *, weight_bytes: int | None = None
) -> float | None:
    """Return the engine's memory fraction to pass; None for engines that take what they need.

    It is a usual value (recipes of the engines and playbooks), more where this plan needs more and the GPU has it.
    SGLang's is weights and KV cache over all memory, vLLM's everything over all memory, TensorRT-LLM's the KV cache
    over what is free after the weights. Under a cap it is never more than keeps all that is taken below that.
    """
    usable, unified = box.hardware.usable_bytes, box.hardware.unified
    free = usable - box.hardware.os_reserve_bytes
    limit = _limit(choice, box)
    needs = _needs(choice, box, model, head, weight_bytes)
    if choice.engine == "sglang":
        usual, needed = (0.80 if unified else 0.85), (needs.static + needs.kv) / usable
        most = (limit - needs.work) / usable
    elif choice.engine == "vllm":
        usual, needed = (0.80 if unified else 0.90), (needs.static + needs.kv + needs.work) / usable
        most = min(limit / usable, 0.83 if unified else 0.95)  # vLLM refuses a share that is not free at start
    elif choice.engine == "tensorrt-llm":
        usual, needed, most = (0.90 if unified or box.num_gpus == 1 else 0.80), 0.0, 0.95
        if free > needs.static + needs.work:
            left = free - needs.static - needs.work
            needed, most = needs.kv / left, min(most, (limit - needs.static - needs.work) / left)
    else:
        return None
    steps = 100 if choice.memory_cap is None else 1000  # 0.01 of a Spark is 1.2 GiB
    least, most = min(ceil(needed * steps) / steps, 1.0), max(floor(most * steps) / steps, 1 / steps)
    return min(max(usual, least), most)


def engine_fraction(choice: Choice, box: Box) -> float:
    """Return the choice's memory fraction, or what the engine takes by itself if none is passed."""
    if choice.memory_fraction is not None:
        return choice.memory_fraction
    if choice.engine == "sglang":
        usable = box.hardware.usable_bytes
        return round((usable - _sglang_reserve(choice, box)) / usable, 3)
    if choice.engine == "vllm":
        return 0.9 if satisfies(choice.version, "<0.16") else 0.92
    return 0.9


def _needs(choice: Choice, box: Box, model: Model, head: Head | None, weight_bytes: int | None) -> _Needs:
    layout = kv_layout(choice, box, model, head)
    tokens = choice.concurrency * choice.context
    weights = checkpoint_bytes(choice, model, weight_bytes)
    padding = expert_padding(choice, box, model)
    projector = model.projector_bytes.get(choice.engine, 0) if choice.role == "vision" else 0
    of_head = draft_bytes(choice, head)
    kv, head_kv = layout.target_bytes(tokens, choice.concurrency), layout.head_bytes(tokens)
    activations, runtime = _activations(choice, box, model), _runtime(choice, box)
    host_cache = host_cache_bytes(choice, box, model, layout)
    shared = f"1/{choice.tensor_parallel} of it" if choice.tensor_parallel > 1 else ""
    is_cuda = box.hardware.is_cuda
    rows = (
        MemoryRow(owner="weights", num_bytes=ceil(weights), note=shared),
        MemoryRow(owner="vision encoder", num_bytes=projector),
        MemoryRow(owner="expert padding", num_bytes=ceil(padding), note="to the tiles of the kernels"),
        MemoryRow(owner="draft head", num_bytes=ceil(of_head), note=head.name if head else ""),
        MemoryRow(owner="KV cache", num_bytes=ceil(kv), note=_kv_note(choice, model)),
        MemoryRow(owner="KV cache of the head", num_bytes=ceil(head_kv)),
        MemoryRow(owner="prompt cache", num_bytes=ceil(host_cache), note="and checkpoints, at most"),
        MemoryRow(owner=f"activations{' and CUDA graphs' * is_cuda}", num_bytes=ceil(activations), note="estimate"),
        MemoryRow(owner=f"{'CUDA and ' * is_cuda}libraries", num_bytes=runtime, note="estimate"),
    )
    return _Needs(
        rows=tuple(row for row in rows if row.num_bytes),
        static=weights + projector + padding + of_head,
        work=activations + runtime + host_cache,
        kv=kv + head_kv,
    )


def _limits(choice: Choice, box: Box, needs: _Needs) -> tuple[float, float]:
    """Return (what the engine may use, what it takes at start) of one GPU; it cannot take more than there is."""
    usable = box.hardware.usable_bytes
    free = float(usable - box.hardware.os_reserve_bytes)
    limit = _limit(choice, box)
    if choice.engine == "sglang":
        taken = engine_fraction(choice, box) * usable + needs.work
        return min(taken, limit), min(taken, usable)
    if choice.engine == "vllm":
        taken = engine_fraction(choice, box) * usable
        return min(taken, limit), taken
    if choice.engine == "tensorrt-llm":
        left = max(free - needs.static - needs.work, 0.0)
        taken = needs.static + needs.work + engine_fraction(choice, box) * left
        return min(taken, limit), min(taken, usable)
    needed = sum(row.num_bytes for row in needs.rows)
    if choice.engine == "eyas":
        pool = EYAS_KV_SHARE * max(free - needs.static, 0.0)
        capacity = min(needs.static + needs.work + pool, limit)
        return capacity, min(needed, capacity)
    return limit, min(needed, usable)


def _limit(choice: Choice, box: Box) -> float:
    """Return what the engine may take of one GPU: what the system leaves, and what the cap leaves to it."""
    free = float(box.hardware.usable_bytes - box.hardware.os_reserve_bytes)
    return free if choice.memory_cap is None else max(min(free, choice.memory_cap - _host(choice, box)), 0.0)


def _host(choice: Choice, box: Box) -> int:
    return HOST_BYTES.get(choice.engine, SMALL_HOST_BYTES) if box.hardware.unified and not _is_cpu(box) else 0


def _activations(choice: Choice, box: Box, model: Model) -> float:
    chunk = _chunk_tokens(choice, box)
    rows = round_rows(choice, box)
    is_llama = knowledge().engines[choice.engine].runtime == "llama.cpp"
    if choice.role == "embeddings":
        return choice.context * model.hidden_size * ACTIVATION_BYTES  # a text is one step, without logits
    pictures = PICTURE_BYTES if choice.role == "vision" else 0
    logit_rows = max(rows, chunk) if is_llama else rows  # it keeps those of a chunk
    logits = logit_rows * model.vocab_size * 4 * (1 if logit_rows > rows else 2)  # fp32, and a copy to sample from
    graphs = 0 if is_llama or _is_cpu(box) else GRAPH_BYTES + GRAPH_ROW_BYTES * choice.concurrency
    return chunk * model.hidden_size * ACTIVATION_BYTES + logits / choice.tensor_parallel + graphs + pictures


def _is_cpu(box: Box) -> bool:
    return box.hardware.compute_capability == CPU


def _runtime(choice: Choice, box: Box) -> int:
    if _is_cpu(box):
        return CPU_RUNTIME_BYTES if choice.engine == "eyas" else SMALL_CPU_RUNTIME_BYTES
    return RUNTIME_BYTES + (COMMUNICATION_BYTES if choice.tensor_parallel > 1 else 0)


def _chunk_tokens(choice: Choice, box: Box) -> int:
    """Return the prompt tokens of one step."""
    if choice.engine == "sglang":
        return _sglang_sizes(box.hardware.usable_bytes, choice.tensor_parallel)[0]
    return step_tokens(choice, 512)


def _sglang_sizes(usable: int, tensor_parallel: int) -> tuple[int, int]:
    """Return SGLang's defaults by the size of the GPU: (prompt tokens of a step, rows of the largest graph)."""
    many = tensor_parallel >= 4
    if usable < 20 * GIB:
        return 2048, 8
    if usable < 35 * GIB:
        return 4096, 160 if many else 48
    if usable < 60 * GIB:
        return 4096, 160 if many else 32
    if usable < 160 * GIB:
        return 8192, 512 if many else 256
    return 16384, 512


def _sglang_reserve(choice: Choice, box: Box) -> float:
    """Return the bytes that SGLang reserves beyond weights and KV cache where no fraction is set (its server_args)."""
    usable = box.hardware.usable_bytes
    chunk, graph_rows = _sglang_sizes(usable, choice.tensor_parallel)
    reserve = 512 + 1.5 * chunk + choice.tensor_parallel / 8 * 1024
    reserve += 2 * (graph_rows if satisfies(choice.version, "<0.5.23") else min(graph_rows, choice.concurrency))
    if usable > 60 * GIB:
        reserve = max(reserve, 10 * 1024)
    if choice.method == "draft-model" and satisfies(choice.version, "<0.5.23"):
        reserve += 6 * 1024
    elif choice.method == "eagle3" and satisfies(choice.version, "<0.5.23"):
        reserve += (2 if satisfies(choice.version, "<0.5.10") else 4) * 1024
    return reserve * MIB


def _kv_note(choice: Choice, model: Model) -> str:
    requests = f"{choice.concurrency} x {choice.context} tokens"
    kept = ""
    if model.num_sliding_layers and choice.engine == "sglang":
        kept = ", all layers in full" if satisfies(choice.version, "<0.5.10") else ", windowed layers 0.8 of it"
    elif model.num_sliding_layers:
        kept = f", windows of {model.window}"
    return requests + (", fp8" if choice.kv_dtype == "fp8" else "") + kept


def _most(fits: Callable[[int], bool], limit: int) -> int:
    """Return the largest number up to `limit` that fits, given that smaller ones fit too; 0 if 1 does not."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low

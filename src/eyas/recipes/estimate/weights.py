"""Weights of one GPU: the checkpoint's share, the padding by kernels, and the draft head.

Alignments of MXFP4 expert weights as read in the engines' sources: SGLang 0.5.6, 0.5.10 and 0.5.23, vLLM 0.14.1 and
0.33.0, TensorRT-LLM's fused MoE. 2880 becomes 2944 or 3072; a slice of 360 (eight GPUs) may become 512.
"""

from __future__ import annotations

from eyas.recipes.plan import Box, Choice
from eyas.recipes.records import Head, Model
from eyas.recipes.versions import satisfies

__all__ = [
    "Q8_SHARE",
    "checkpoint_bytes",
    "dense_share",
    "draft_bytes",
    "draft_share",
    "expert_padding",
    "expert_share",
]

Q8_SHARE = 8.5 / 16  # GGUF files keep what is bf16 elsewhere in Q8_0: 34 bytes for 32 weights
MXFP4_BYTES = 17 / 32  # of a weight with its share of the scale


def checkpoint_bytes(choice: Choice, model: Model, weight_bytes: int | None) -> float:
    """One GPU's share of the checkpoint: `weight_bytes` where its own index said so, else what is known of it."""
    total = weight_bytes or model.repo_bytes.get(choice.engine, model.total_bytes)
    return total / choice.tensor_parallel


def expert_padding(choice: Choice, box: Box, model: Model) -> float:
    """Return what rounding the experts' matrices up to the kernel's tiles adds on one GPU."""
    if model.weight_format != "mxfp4" or not model.num_experts:
        return 0.0
    hidden, inner = model.hidden_size, _expert_width(model)
    slices = max(choice.tensor_parallel // choice.expert_parallel, 1)
    by_hidden, by_inner = _alignment(choice, box)
    width = inner / slices
    factor = _rounded(hidden, by_hidden) / hidden * _rounded(width, by_inner) / width
    experts = model.num_experts * model.num_expert_layers * model.expert_bytes
    return experts / choice.tensor_parallel * (factor - 1)


def draft_bytes(choice: Choice, head: Head | None) -> float:
    """One GPU's share of the head. SGLang and TensorRT-LLM slice it as the target; vLLM may keep it whole on each."""
    if head is None:
        return 0.0
    return head.total_bytes * draft_share(choice, head) / (1 if choice.engine == "vllm" else choice.tensor_parallel)


def expert_share(choice: Choice, model: Model) -> float:
    """Experts as the engine keeps them against the checkpoint's: its own files shrink all but MXFP4."""
    if model.weight_format == "mxfp4":
        return 1.0
    return model.repo_bytes.get(choice.engine, model.total_bytes) / model.total_bytes


def dense_share(choice: Choice, model: Model) -> float:
    """Dense weights as the engine keeps them against the checkpoint's."""
    if choice.engine in model.files:
        return min(model.repo_bytes[choice.engine] / (model.dense_bytes + model.head_bytes), 1.0)
    return Q8_SHARE if choice.engine == "llama.cpp" else expert_share(choice, model)


def draft_share(choice: Choice, head: Head) -> float:
    """The head as the engine keeps it against its record; records of heads for llama.cpp alone are of their GGUF."""
    return Q8_SHARE if choice.engine == "llama.cpp" and set(head.engines) != {"llama.cpp"} else 1.0


def _expert_width(model: Model) -> int:
    """Intermediate size of an expert: 3 matrices in MXFP4, and bf16 biases of 2 x width and hidden outputs."""
    return round((model.expert_bytes - 2 * model.hidden_size) / (3 * model.hidden_size * MXFP4_BYTES + 4))


def _alignment(choice: Choice, box: Box) -> tuple[int, int]:
    """Multiples that (hidden size, intermediate size of a slice) are rounded up to."""
    major = box.hardware.compute_capability.partition(".")[0]
    if choice.engine == "sglang":
        if satisfies(choice.version, "<0.5.11"):
            return (256, 256) if major == "10" else (1, 64)
        return (128, 128) if major in ("10", "12") else (1, 64)
    if choice.engine == "vllm":
        if major == "9":
            return (1, 64)
        return (256, 256 if major == "10" and satisfies(choice.version, "<0.15") else 128)
    if choice.engine == "tensorrt-llm":
        return (512, 128) if major == "10" else (128, 128)
    return (1, 1)


def _rounded(size: float, multiple: int) -> int:
    return -int(-size // multiple) * multiple

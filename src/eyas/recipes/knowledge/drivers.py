"""Oldest NVIDIA driver that a GPU and an image need."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["least_driver"]

BY_GPU = {  # CUDA release notes: the first driver branch that knows a GPU
    "12.1": "580",
    "12.0": "570",
    "10.0": "570",
    "9.0": "525",
}
OLDEST = "525"
CUDA_13 = "580"
CUDA_13_IMAGES = ("cu13", "nvcr.io/nvidia/tensorrt-llm/release:1.3", "nvcr.io/nvidia/vllm:26", "sglang:spark")


def least_driver(compute_capability: str, title: str, images: Iterable[str] = ()) -> tuple[str, str]:
    """Return the branch of the oldest driver for the GPU `title` and for the images, and why it must be that one."""
    by_gpu = BY_GPU.get(compute_capability, OLDEST)
    wants_13 = any(mark in image for image in images for mark in CUDA_13_IMAGES)
    if wants_13 and int(by_gpu) < int(CUDA_13):
        return CUDA_13, "the image brings CUDA 13"
    return by_gpu, f"the GPU needs it ({title})"

"""Oldest NVIDIA driver that a GPU and an image need."""

from __future__ import annotations

from collections.abc import Iterable

from eyas.recipes.knowledge.images import brings_cuda_13

__all__ = ["least_driver"]

BY_GPU = {  # CUDA release notes: the first driver branch that knows a GPU
    "12.1": "580",
    "12.0": "570",
    "10.0": "570",
    "9.0": "525",
}
OLDEST = "525"
CUDA_13 = "580"


def least_driver(compute_capability: str, title: str, images: Iterable[str] = ()) -> tuple[str, str]:
    """Return the branch of the oldest driver for the GPU `title` and for the images, and why it must be that one.

    Raises UserError for an image whose name is none.
    """
    by_gpu = BY_GPU.get(compute_capability, OLDEST)
    if int(by_gpu) < int(CUDA_13) and any(map(brings_cuda_13, images)):
        return CUDA_13, "the image brings CUDA 13"
    return by_gpu, f"the GPU needs it ({title})"

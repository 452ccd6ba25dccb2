"""One thread for tensors: the test models are tiny, and spinning threads fight over few cores. GPU tests need a GPU."""

import os

import pytest
import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is imported


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores, for `-n auto`: many tests wait for servers and browsers."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))

"""Without a GPU, Triton kernels run in Triton's interpreter (`tests/conftest.py`)."""

import pytest
import torch

try:
    import triton
    from tests.kernels.support import interpreter  # noqa: F401, mends it
except ImportError:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def device() -> str:
    return "cpu" if triton.knobs.runtime.interpret else "cuda"


@pytest.fixture
def dtype() -> torch.dtype:
    """The interpreter multiplies no bf16."""
    return torch.float32 if triton.knobs.runtime.interpret else torch.bfloat16

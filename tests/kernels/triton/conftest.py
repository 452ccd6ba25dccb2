"""Without a GPU, Triton kernels run in Triton's interpreter (`tests/conftest.py`)."""

import pytest
import torch

try:
    import triton
    import triton.runtime.interpreter as interpreter
except ImportError:
    collect_ignore_glob = ["test_*.py"]
else:
    _patch_tensor = interpreter._patch_lang_tensor

    def _patch(tensor, scope):
        _patch_tensor(tensor, scope)
        # Triton 3.6 calls int() on arrays of one element, which numpy 2.4 refuses.
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = _patch
    _convert_float = interpreter._convert_float

    def _convert(data, source, target, rounding_mode):
        # Triton 3.6 cuts what becomes subnormal, which a GPU rounds, and reads the byte of NaN as 480.
        if (source, target) == (triton.language.float32, triton.language.float8e4nv):
            return torch.from_numpy(data.copy()).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        if (source, target) == (triton.language.float8e4nv, triton.language.float32):
            return torch.from_numpy(data.copy()).view(torch.float8_e4m3fn).float().numpy()
        return _convert_float(data, source, target, rounding_mode)

    interpreter._convert_float = _convert


@pytest.fixture
def device() -> str:
    return "cpu" if triton.knobs.runtime.interpret else "cuda"


@pytest.fixture
def dtype() -> torch.dtype:
    """The interpreter multiplies no bf16."""
    return torch.float32 if triton.knobs.runtime.interpret else torch.bfloat16

"""Mends what Triton 3.6's interpreter cannot do, so that kernels run without a GPU. Importing it does."""

import torch
import triton
import triton.runtime.interpreter as interpreter

_patch_tensor = interpreter._patch_lang_tensor


def _patch(tensor, scope):
    _patch_tensor(tensor, scope)
    # Triton 3.6 calls int() on arrays of one element, which numpy 2.4 refuses.
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())


_convert_float = interpreter._convert_float


def _convert(data, source, target, rounding_mode):
    # Triton 3.6 cuts what becomes subnormal, which a GPU rounds, and reads the byte of NaN as 480.
    if (source, target) == (triton.language.float32, triton.language.float8e4nv):
        return torch.from_numpy(data.copy()).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    if (source, target) == (triton.language.float8e4nv, triton.language.float32):
        return torch.from_numpy(data.copy()).view(torch.float8_e4m3fn).float().numpy()
    return _convert_float(data, source, target, rounding_mode)


interpreter._patch_lang_tensor = _patch
interpreter._convert_float = _convert

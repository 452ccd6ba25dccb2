"""Bytes of live tensor storages, counted at every operation."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts storages that operations make inside of it, until they are freed; `given` and their views do not count."""

    def __init__(self, *given):
        super().__init__()
        self.live = self.peak = 0
        self._known = {x.untyped_storage()._cdata for x in given}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf.untyped_storage())
        return out

    def _see(self, storage):
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._free, key, size)

    def _free(self, key, size):
        self._known.discard(key)
        self.live -= size

"""Pieces of blocks: whole, apart from each other, within the budget."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from eyas.train.states.host_memory import HostMemory


class Blocks(HostMemory):
    """Blocks as where a GPU computes, of ordinary memory: without a GPU none can be pinned."""

    def __init__(self, budget, **given):
        super().__init__(budget, pinned=True, **given)
        self.sizes = []

    def _new_block(self, size):
        self.sizes.append(size)
        return torch.full((size,), 255, dtype=torch.uint8)


@given(
    budget=st.integers(0, 9000),
    documents=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), max_size=30),
    in_blocks=st.booleans(),
)
def test_pieces_keep_their_values_within_the_budget(budget, documents, in_blocks):
    memory = Blocks(budget, block_bytes=1024) if in_blocks else HostMemory(budget, pinned=False)
    kept = []
    for number, (tokens, width) in enumerate(documents):
        given = [torch.full((tokens, width), number, dtype=torch.bfloat16), torch.arange(tokens) + number]
        copies = memory.copies(given)
        assert memory.used_bytes <= budget
        if copies is not None:
            kept.append((given, copies))
            assert all(x.data_ptr() != y.data_ptr() for x, y in zip(given, copies, strict=True))
    for given, copies in kept:
        assert all(torch.equal(x, y) and x.dtype == y.dtype for x, y in zip(given, copies, strict=True))
    if in_blocks:
        assert sum(memory.sizes) == memory.used_bytes
        assert all(size & (size - 1) == 0 for size in memory.sizes)  # what torch pins without rounding up


def test_blocks_end_in_smaller_powers_and_long_documents_are_not_kept():
    memory = Blocks(1024 + 300, block_bytes=1024)
    assert memory.copies([torch.zeros(1025, dtype=torch.uint8)]) is None and memory.used_bytes == 0
    assert memory.copies([torch.zeros(1000, dtype=torch.uint8)]) is not None
    assert memory.copies([torch.zeros(250, dtype=torch.uint8)]) is not None and memory.sizes == [1024, 256]
    assert memory.copies([torch.zeros(64, dtype=torch.uint8)]) is None

"""Which tokens the filters keep: the kernels' answer one by one, and bounds on the right one."""

import torch
import triton
import triton.language as tl
from tests.kernels.support.rows import DEVICE

from eyas.kernels.reference.rounds.sample import filter_scores
from eyas.kernels.triton.rounds.filters import BINS, SHARED, choose

_SHARED, _BINS = tl.constexpr(SHARED), tl.constexpr(BINS)


@triton.jit
def _choose(
    scores_ptr,
    perturbed_ptr,
    out_ptr,
    k_ptr,
    p_ptr,
    min_ptr,
    arrived_ptr,
    numbers_ptr,
    bests_ptr,
    counts_ptr,
    V,
    SIZE: tl.constexpr,
    CHUNKS: tl.constexpr,
    PADDED: tl.constexpr,
):
    row, chunk = tl.program_id(0) // CHUNKS, tl.program_id(0) % CHUNKS
    ids = chunk * SIZE + tl.arange(0, SIZE)
    scores = tl.load(scores_ptr + row * V + ids, mask=ids < V, other=float("-inf"))
    perturbed = tl.load(perturbed_ptr + row * V + ids, mask=ids < V, other=float("-inf"))
    top_k, top_p, min_p = tl.load(k_ptr), tl.load(p_ptr), tl.load(min_ptr)
    first = row * (2 * CHUNKS)
    token, _ = choose(
        scores,
        perturbed,
        ids,
        top_k,
        top_p,
        min_p,
        V,
        chunk,
        arrived_ptr + row,
        numbers_ptr + first * _SHARED,
        bests_ptr + first,
        counts_ptr + first * _BINS,
        CHUNKS,
        PADDED,
    )
    tl.store(out_ptr + row, token)


def chosen(scores, perturbed, top_k, top_p, min_p, *, size):
    """The token of each row [T] after filters that all rows share."""
    num_rows, vocab_size = scores.shape
    chunks = -(-vocab_size // size)
    out = torch.full((num_rows,), -1, dtype=torch.int32, device=DEVICE)
    numbers = torch.full((num_rows, 2, chunks, SHARED), float("nan"), device=DEVICE)
    settings_of_rows = (torch.tensor([value], device=DEVICE) for value in (top_k, top_p, min_p))
    arrived = torch.zeros(num_rows, dtype=torch.int32, device=DEVICE)
    bests = torch.zeros(num_rows, 2, chunks, dtype=torch.int64, device=DEVICE)
    counts = torch.full((num_rows, 2, chunks, BINS), -1, dtype=torch.int32, device=DEVICE)
    arguments = (scores, perturbed, out, *settings_of_rows, arrived, numbers, bests, counts, vocab_size)
    padded = triton.next_power_of_2(chunks)
    _choose[(num_rows * chunks,)](*arguments, SIZE=size, CHUNKS=chunks, PADDED=padded, enable_fp_fusion=False)
    return out.long()


def kept_one_by_one(scores, *filters):
    """A row for each token, which wins if it is kept."""
    size = len(scores)
    rows = scores.to(DEVICE).expand(size, -1).contiguous()
    favoured = rows.masked_fill(torch.eye(size, dtype=torch.bool, device=DEVICE), 1e6)
    return chosen(rows, favoured, *filters, size=32).cpu() == torch.arange(size)


def bounds(scores, top_k, top_p, min_p):
    """Tokens that are kept, and tokens that may be, in fp64, where rounding could put a token on either side."""
    for shift in (-1e-6, 1e-6):
        row_filters = (
            torch.tensor([value], dtype=torch.float64) for value in (top_p + shift, min_p * (1 - 10 * shift))
        )
        yield (filter_scores(scores.double().unsqueeze(0), torch.tensor([top_k]), *row_filters) > -torch.inf)[0]

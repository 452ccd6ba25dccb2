"""Paged attention of query rows that see one another and leave no keys: what a head of one pass drafts with.

No token that comes out depends on a draft, so these sums need not be the same in every company of rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eyas.kernels.reference.layers.attend import read_pages
from eyas.kernels.reference.layers.ops import LayerCache, Rows

__all__ = ["attend_block_ref"]


def attend_block_ref(
    q_SRQD: Tensor, k_SRGD: Tensor, v_SRGD: Tensor, rows: Rows, cache: LayerCache, *, is_causal: bool
) -> Tensor:
    """Return the attention of R rows for each of S sequences, [S, R, Q, D].

    A row sees the cached keys at positions before its sequence's first row, itself, and the live rows beside it, or
    with `is_causal` those before it alone.
    """
    num_pages = min(-(-rows.max_length // cache.page_size), rows.table_SP.shape[1])
    scales = (None, None) if cache.scales_PG2B is None else cache.scales_PG2B.unbind(2)
    cached_SNGD, values_SNGD = (
        read_pages(part, own, rows.table_SP[:, :num_pages]).transpose(1, 2)
        for part, own in zip((cache.k, cache.v), scales, strict=True)
    )
    first_S11 = rows.positions_SR[:, :1].clamp(min=0).unsqueeze(2)
    num_rows, num_cached, num_kv = q_SRQD.shape[1], cached_SNGD.shape[1], cached_SNGD.shape[2]
    is_before_SRN = (torch.arange(num_cached, device=q_SRQD.device) < first_S11).expand(-1, num_rows, -1)
    own_RR = torch.eye(num_rows, dtype=torch.bool, device=q_SRQD.device)
    beside_SRR = rows.live_SR.unsqueeze(1) | own_RR
    if is_causal:
        beside_SRR = beside_SRR & torch.ones_like(own_RR).tril()
    sees_SRN = torch.cat((is_before_SRN, beside_SRR), dim=2)
    keys, values = torch.cat((cached_SNGD, k_SRGD.float()), dim=1), torch.cat((values_SNGD, v_SRGD.float()), dim=1)
    queries = q_SRQD.float().unflatten(2, (num_kv, -1))
    scores = torch.einsum("srghd,sngd->srghn", queries, keys) * q_SRQD.shape[-1] ** -0.5
    scores = scores.masked_fill(~sees_SRN[:, :, None, None], float("-inf"))
    out = torch.einsum("srghn,sngd->srghd", scores.softmax(-1), values)
    return out.flatten(2, 3).to(q_SRQD.dtype)

"""Paged attention with sinks and an optional sliding window.

The reference walks keys in blocks of 128 positions that start at absolute multiples of 128 and adds the blocks in
order, so a row's sums depend on its own position alone: blocks that it does not see add exact zeros. The sink is
one more logit per head that takes part in the maximum and the denominator and has no value
(gpt_oss/torch/model.py `sdpa`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.kernels.layouts.fp8_cache import from_fp8

__all__ = ["KEY_BLOCK", "attend_ref", "read_pages"]

KEY_BLOCK = 128  # positions; page sizes must divide it


def read_pages(cache_PGBD: Tensor, scales_PGB: Tensor | None, table_SP: Tensor) -> Tensor:
    """Return keys or values fp32 [S, G, P * page size, D]; with scales the cache is in 8 bits."""
    entries_GSPBD = cache_PGBD.transpose(0, 1)[:, table_SP]
    if scales_PGB is None:
        pages = entries_GSPBD.float()
    else:
        pages = from_fp8(entries_GSPBD, scales_PGB.transpose(0, 1)[:, table_SP])
    return pages.flatten(2, 3).transpose(0, 1)


def _gather_blocks(
    cache_PGBD: Tensor, scales_PGB: Tensor | None, table_SP: Tensor, first_S: Tensor, num_blocks: int
) -> Tensor:
    """Gather fp32 [S, G, num_blocks, KEY_BLOCK, D] starting at block `first_S` of each sequence."""
    per_block = KEY_BLOCK // cache_PGBD.shape[2]
    offsets = torch.arange(num_blocks * per_block, device=table_SP.device)
    columns = (first_S.unsqueeze(1) * per_block + offsets).clamp_(max=table_SP.shape[1] - 1)
    pages = read_pages(cache_PGBD, scales_PGB, table_SP.gather(1, columns))
    return torch.unflatten(pages, 2, (num_blocks, KEY_BLOCK))


def _attend_tile(
    q_SRQD: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    scales_PG2B: Tensor | None,
    table_SP: Tensor,
    positions_SR: Tensor,
    sinks_Q: Tensor | None,
    window: int | None,
    first_key: int,
    num_blocks: int,
) -> Tensor:
    num_seqs, num_rows, num_heads, dim = q_SRQD.shape
    num_kv = k_cache.shape[1]
    first_S = positions_SR[:, 0] * 0
    if window is not None:
        first_S = (positions_SR[:, 0] - window + 1).clamp(min=0) // KEY_BLOCK
    k_scales, v_scales = (None, None) if scales_PG2B is None else scales_PG2B.unbind(2)
    keys = _gather_blocks(k_cache, k_scales, table_SP, first_S, num_blocks)
    values = _gather_blocks(v_cache, v_scales, table_SP, first_S, num_blocks)
    # [S, G, 1, R * group, D]: the query heads of one key/value head are adjacent.
    queries = q_SRQD.float().unflatten(2, (num_kv, -1)).permute(0, 2, 1, 3, 4).flatten(2, 3).unsqueeze(2)
    scores = torch.matmul(queries, keys.transpose(-1, -2)) * dim**-0.5

    key_pos = first_S.unsqueeze(1) * KEY_BLOCK + torch.arange(num_blocks * KEY_BLOCK, device=first_S.device)
    hidden = key_pos.unsqueeze(1) > positions_SR.unsqueeze(2)  # [S, R, keys]
    if first_key:
        hidden |= key_pos.unsqueeze(1) < positions_SR.unsqueeze(2).clamp(max=first_key)
    if window is not None:
        hidden |= key_pos.unsqueeze(1) <= positions_SR.unsqueeze(2) - window
    group = num_heads // num_kv
    hidden = hidden.unflatten(2, (num_blocks, KEY_BLOCK)).transpose(1, 2).repeat_interleave(group, dim=2)
    scores.masked_fill_(hidden.unsqueeze(1), float("-inf"))

    peak = scores.amax(dim=(2, 4))  # [S, G, R * group]
    if sinks_Q is not None:
        sinks = sinks_Q.float().view(1, num_kv, 1, group).expand(num_seqs, -1, num_rows, -1).flatten(2)
        peak = torch.maximum(peak, sinks)
    weights = torch.exp(scores - peak[:, :, None, :, None])
    sums, outs = weights.sum(-1), torch.matmul(weights, values)
    total, out = sums[:, :, 0], outs[:, :, 0]
    for block in range(1, num_blocks):
        total, out = total + sums[:, :, block], out + outs[:, :, block]
    if sinks_Q is not None:
        total = total + torch.exp(sinks - peak)
    out = out / total.unsqueeze(-1)
    return torch.unflatten(out, 2, (num_rows, group)).permute(0, 2, 1, 3, 4).flatten(2, 3).to(q_SRQD.dtype)


def attend_ref(
    q_SRQD: Tensor,
    *,
    k_cache_PGBD: Tensor,
    v_cache_PGBD: Tensor,
    table_SP: Tensor,
    positions_SR: Tensor,
    sinks_Q: Tensor | None,
    window: int | None,
    max_length: int,
    tile: int | None,
    first_key: int = 0,
    scales_PG2B: Tensor | None = None,
) -> Tensor:
    """Compute attention of R rows for each of S sequences, as [S, R, Q, D].

    Rows of a sequence stand at consecutive positions; a row sees keys at `position - window + 1 .. position`, all from
    0 without a window, but none below `first_key` (a row that stands there itself, surely dead, sees its own).
    Dead rows before position 0 see what a row at 0 does, so that they are finite. `max_length` is above every position
    and known to the host, so that nothing waits for the device. `tile` rows are multiplied at a time, None for all at
    once (not row-invariant).
    """
    positions_SR = positions_SR.clamp(min=0)
    num_rows = q_SRQD.shape[1]
    step = tile or num_rows
    padding = -num_rows % step
    if padding:
        q_SRQD = F.pad(q_SRQD, (0, 0, 0, 0, 0, padding))
        positions_SR = torch.cat((positions_SR, positions_SR[:, -1:].expand(-1, padding)), dim=1)
    parts = []
    for start in range(0, num_rows, step):
        rows = slice(start, start + step)
        rows_after = max(0, num_rows - start - step)
        num_blocks = -(-max(1, max_length - rows_after) // KEY_BLOCK)
        if window is not None:
            num_blocks = min(num_blocks, (window + step - 3) // KEY_BLOCK + 2)
        parts.append(
            _attend_tile(
                q_SRQD[:, rows],
                k_cache_PGBD,
                v_cache_PGBD,
                scales_PG2B,
                table_SP,
                positions_SR[:, rows],
                sinks_Q,
                window,
                first_key,
                num_blocks,
            )
        )
    return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))[:, :num_rows]

"""Run a target or a head over whole sequences outside the engine, for oracles."""

import torch

from eyas.kernels.reference.layers.roles import PROMPT_OPS
from eyas.model.batch import PageTables, RowBatch
from eyas.model.networks.gpt_oss import GptOss

PAGE_SIZE = 16


def row_batch(tokens_SR, *, start=0, ops=PROMPT_OPS):
    """Positions start .. start + R - 1 of S sequences whose pages lie one after the other, from page 1."""
    num_seqs, num_rows = tokens_SR.shape
    pages = -(-(start + num_rows) // PAGE_SIZE)
    table = 1 + torch.arange(num_seqs * pages).view(num_seqs, pages)
    positions = torch.arange(start, start + num_rows).expand(num_seqs, -1)
    return RowBatch(
        tokens_SR=tokens_SR,
        positions_SR=positions,
        live_SR=torch.ones_like(positions, dtype=torch.bool),
        tables=PageTables(table, table),
        max_length=start + num_rows,
        ops=ops,
    )


def logits_of(config, weights, tokens_SR):
    """fp32 [S, R, V] of whole sequences."""
    model = GptOss(config, weights, max_positions=tokens_SR.shape[1], expert_cache_bytes=1 << 30)
    batch = row_batch(tokens_SR)
    num_pages = batch.tables.full.numel() + 1
    output = model.forward(batch, model.new_cache(num_pages, num_pages, PAGE_SIZE))
    return model.logits(output.normed, batch.ops).unflatten(0, tokens_SR.shape)

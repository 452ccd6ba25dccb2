"""Targets of true shapes with weights that matter, and their rows through the kernels among poison.

Poison is NaN in the embedding of a token that only dead rows have, in pages that no table names, and in keys behind a
sequence's end; values there are as large as bf16 has them, for they are finite in every cache
(`kernels.reference.layers.rope_write`).
"""

from dataclasses import dataclass, replace
from math import floor, log2, sqrt

import torch
from torch import Tensor

from eyas.kernels.layouts.fp8_cache import BROKEN, LARGEST_SCALE
from eyas.kernels.reference.layers.ops import LayerCache, Ops
from eyas.model.batch import PageTables, RowBatch
from eyas.model.checkpoints.device_layout import pack_layer, pack_lm_head
from eyas.model.config import GptOssConfig
from eyas.model.mxfp4 import BLOCK, Mxfp4Tensor
from eyas.model.networks.gpt_oss import GptOss
from eyas.model.weights import LayerWeights, TargetWeights

PAGE_SIZE = 16
TILE = 64  # absolute grid of prompt rows
E2M1_RMS = sqrt(68.5 / 8)  # of the eight magnitudes, equally likely


class Draw:
    """Numbers that bf16 holds exactly. Gains are those of products with rows of unit variance."""

    def __init__(self, device, seed):
        self.device = torch.device(device)
        self.generator = torch.Generator(device).manual_seed(seed)

    def normal(self, *shape, std, mean=0.0):
        drawn = torch.empty(shape, dtype=torch.bfloat16, device=self.device)
        return drawn.normal_(mean, std, generator=self.generator)

    def vector(self, *shape, std, mean=0.0):
        return self.normal(*shape, std=std, mean=mean).float()

    def matrix(self, rows, columns, gain):
        return self.normal(rows, columns, std=gain / sqrt(columns))

    def experts(self, count, rows, columns, gain):
        """Codes as likely as each other under scales of two neighbouring powers of two."""
        exponent = log2(gain / sqrt(columns) / E2M1_RMS)
        upper = (4 ** (exponent - floor(exponent)) - 1) / 3
        shape = count, rows, columns // BLOCK
        kwargs = {"generator": self.generator, "device": self.device}
        blocks = torch.randint(256, (*shape, BLOCK // 2), dtype=torch.uint8, **kwargs)
        scales = (torch.rand(shape, **kwargs) < upper).to(torch.uint8) + (127 + floor(exponent))
        return Mxfp4Tensor(blocks, scales)


def draw_target(config: GptOssConfig, device, *, seed=0) -> TargetWeights:
    """Plain weights of a target whose every part counts: attention and experts each add about what is there."""
    draw, hidden, inner, count = Draw(device, seed), config.hidden_size, config.intermediate_size, config.num_experts
    queries = config.num_heads * config.head_dim
    qkv = queries + 2 * config.num_kv_heads * config.head_dim
    layers = [
        LayerWeights(
            input_norm_H=draw.vector(hidden, mean=1.0, std=0.1),
            qkv_NH=draw.matrix(qkv, hidden, 1.0),
            qkv_bias_N=draw.vector(qkv, std=0.1),
            sinks_Q=draw.vector(config.num_heads, std=1.0),
            o_HN=draw.matrix(hidden, queries, 1.5),
            o_bias_H=draw.vector(hidden, std=0.1),
            post_norm_H=draw.vector(hidden, mean=1.0, std=0.1),
            router_EH=draw.matrix(count, hidden, 2.0),
            router_bias_E=draw.vector(count, std=0.1),
            gate_up=draw.experts(count, 2 * inner, hidden, 1.5),
            gate_up_bias=draw.vector(count, 2 * inner, std=0.1),
            down=draw.experts(count, hidden, inner, 1.0),
            down_bias=draw.vector(count, hidden, std=0.1),
        )
        for _ in range(config.num_layers)
    ]
    embed = draw.normal(config.vocab_size, hidden, std=3.0)
    embed[poison_token(config)] = float("nan")
    return TargetWeights(
        embed_VH=embed,
        layers=tuple(layers),
        norm_H=draw.vector(hidden, mean=1.0, std=0.1),
        lm_head_VH=draw.matrix(config.vocab_size, hidden, 3.0),
    )


def poison_token(config):
    return config.vocab_size - 1


def packed(weights: TargetWeights) -> TargetWeights:
    return pack_lm_head(replace(weights, layers=tuple(map(pack_layer, weights.layers))))


@dataclass(frozen=True)
class Paged:
    """A target, and sequences of some length in pages of random order, a table of its own for each group."""

    target: GptOss
    tables: PageTables
    caches: list[LayerCache]

    def prompt(self, seq, tokens_N: Tensor, start, end, ops: Ops):
        """(output, its live rows) of positions `start` .. `end` - 1, filled up to whole tiles with poison."""
        low, high = start // TILE * TILE, -(-end // TILE) * TILE
        positions_SR = torch.arange(low, high, device=tokens_N.device).unsqueeze(0)
        live_SR = (positions_SR >= start) & (positions_SR < end)
        tokens_SR = torch.full_like(positions_SR, poison_token(self.target.config))
        tokens_SR[live_SR] = tokens_N[start:end]
        output = self.target.forward(self._batch(tokens_SR, positions_SR, live_SR, [seq], high, ops), self.caches)
        return output, slice(start - low, end - low)

    def _batch(self, tokens_SR, positions_SR, live_SR, seqs, max_length, ops):
        tables = PageTables(*(table[seqs] for table in self.tables))
        return RowBatch(
            tokens_SR=tokens_SR,
            positions_SR=positions_SR,
            live_SR=live_SR,
            tables=tables,
            max_length=max_length,
            ops=ops,
        )

    def rows(self, seqs, tokens_SR: Tensor, starts_S: Tensor, live_SR: Tensor, max_length, ops: Ops) -> RowBatch:
        """R rows from `starts_S` on for each of `seqs`, the dead ones poisoned."""
        positions_SR = starts_S.unsqueeze(1) + torch.arange(tokens_SR.shape[1], device=tokens_SR.device)
        tokens_SR = torch.where(live_SR, tokens_SR, poison_token(self.target.config))
        return self._batch(tokens_SR, positions_SR, live_SR, seqs, max_length, ops)


def paged(target: GptOss, lengths, *, seed=0, in_fp8=False) -> Paged:
    """Room for sequences of these lengths, nothing written yet."""
    tables, num_pages = shuffled_tables(lengths, target.device, seed=seed)
    caches = target.new_cache(num_pages, num_pages, PAGE_SIZE, in_fp8=in_fp8)
    for cache, sliding in zip(caches, target.config.layer_is_sliding, strict=True):
        poison(cache, tables[sliding], [0] * len(lengths))
    return Paged(target, tables, caches)


def shuffled_tables(lengths, device, *, seed=0) -> tuple[PageTables, int]:
    """Tables, and the pages there must be. Behind a sequence's pages its tables name page 0, as an engine's do."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-length // PAGE_SIZE) for length in lengths]
    num_pages, tables = sum(counts) + 8, []
    for _ in range(2):
        table = torch.zeros(len(lengths), max(counts) + 8, dtype=torch.int64)
        order = iter((torch.randperm(num_pages - 1, generator=generator) + 1).tolist())
        for row, count in zip(table, counts, strict=True):
            row[:count] = torch.tensor([next(order) for _ in range(count)])
        tables.append(table.to(device))
    return PageTables(*tables), num_pages


def poison(cache: LayerCache, table_SP: Tensor, lengths) -> None:
    """Everything but what sequences of these lengths have written."""
    written = torch.zeros(cache.k.shape[:3], dtype=torch.bool, device=cache.k.device)
    for row, length in zip(table_SP, lengths, strict=True):
        at = torch.arange(length, device=row.device)
        written[row[at // PAGE_SIZE], :, at % PAGE_SIZE] = True
    unnamed = torch.ones(len(cache.v), dtype=torch.bool, device=cache.v.device)
    unnamed[table_SP.flatten()] = False
    if cache.scales_PG2B is None:
        cache.k[~written] = float("nan")
        cache.v[~written] = torch.finfo(cache.v.dtype).max
        cache.v[unnamed] = float("nan")
    else:
        cache.k[~written], cache.v[~written], cache.v[unnamed] = 0x7F, 0x7E, 0x7F
        scales_PGB2 = cache.scales_PG2B.transpose(2, 3)
        scales_PGB2[~written] = torch.tensor([BROKEN, LARGEST_SCALE], dtype=torch.uint8, device=cache.v.device)

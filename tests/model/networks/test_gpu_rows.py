"""Bits of decode rows through whole networks of true shapes, as graphs: launches of any size against each row alone."""

from dataclasses import replace

import pytest
import torch
from tests.model.support.poisoned import PAGE_SIZE, draw_target, packed, poison, poison_token, shuffled_tables

from eyas.engine.drafters.base import Drafter, DrafterNeeds
from eyas.engine.startup.backend import KERNEL_CHUNK, kernel_backend
from eyas.kernels.layouts.fp8_cache import to_fp8_pair
from eyas.kernels.reference.layers.ops import LayerCache
from eyas.model.batch import PageTables, RowBatch
from eyas.model.making.presets import PRESETS, default_head
from eyas.model.making.random_weights import random_head
from eyas.model.networks.eagle3 import Eagle3Head
from eyas.model.networks.gpt_oss import GptOss

pytestmark = pytest.mark.gpu

# Sequences x rows of each: 1, 2, 3, 4, 5, 8, 16, 17, 31, 32, 64, 100, 128, 256, 512, 65, 514, 1,024 and 2,048 rows
LAUNCHES = (
    *((1, 1), (2, 1), (1, 3), (4, 1), (1, 5), (2, 4), (16, 1), (17, 1)),
    *((31, 1), (4, 8), (64, 1), (25, 4), (32, 4), (64, 4), (64, 8)),
    *((65, 1), (257, 2), (128, 8), (512, 4), (256, 8)),
)
NUM_SEQS, NUM_ROWS = 512, 8
LENGTHS = [1 + 5 * seq for seq in range(NUM_SEQS)]  # keys before the rows: 1 .. 2,556
MAX_LENGTH = max(LENGTHS) + NUM_ROWS


class TargetPass:
    """The target and its lm_head; what a row gives are its logits and taps."""

    in_fp8 = False

    def __init__(self, shape, device):
        self.target = replace(PRESETS[shape], num_layers=2, layer_is_sliding=(True, False))
        weights = packed(draw_target(self.target, device))
        self.model = GptOss(self.target, weights, max_positions=MAX_LENGTH, taps=(1, 2))
        self.tables, num_pages = shuffled_tables([length + NUM_ROWS for length in LENGTHS], device)
        self.caches = self.model.new_cache(num_pages, num_pages, PAGE_SIZE, in_fp8=self.in_fp8)
        self.groups = (self.tables.sliding, self.tables.full)
        self.extra = torch.zeros(NUM_SEQS, NUM_ROWS, 0, device=device)

    def __call__(self, batch, extra):
        output = self.model.forward(batch, self.caches)
        return self.model.logits(output.normed, batch.ops), output.taps_TC


class Fp8TargetPass(TargetPass):
    """The same with keys and values in 8 bits."""

    in_fp8 = True


class HeadPass:
    """A draft head and its lm_head on random taps; what a row gives are its logits and hidden states."""

    def __init__(self, shape, device):
        self.target, head = PRESETS[shape], default_head(PRESETS[shape])
        ends = packed(draw_target(replace(self.target, num_layers=0, layer_is_sliding=()), device))
        self.model = Eagle3Head(random_head(head, ends, device), max_positions=MAX_LENGTH)
        self.tables, num_pages = shuffled_tables([length + NUM_ROWS for length in LENGTHS], device)
        shape = (2, num_pages, head.num_kv_heads, PAGE_SIZE, head.head_dim)
        self.caches = [LayerCache(*torch.zeros(shape, dtype=self.model.dtype, device=device))]
        self.groups = (self.tables.full,)
        width = len(head.taps) * head.target_hidden_size
        self.extra = torch.randn(NUM_SEQS, NUM_ROWS, width, device=device).bfloat16()

    def __call__(self, batch, extra_TC):
        output = self.model.forward(batch, self.model.fuse(extra_TC, batch.ops), self.caches[0])
        return self.model.logits(output.normed, batch.ops), output.hidden_TH


class Launcher:
    def __init__(self, network, device):
        self.network, self.device = network, device
        config = network.target
        sizes = {"concurrency": 2048 // NUM_ROWS, "max_drafts": NUM_ROWS - 1, "chunk_tokens": KERNEL_CHUNK}
        backend = kernel_backend(config, Drafter, DrafterNeeds(), device, **sizes)
        self.ops, self.stages = backend.row_ops, backend.stages
        self.starts_S = torch.tensor(LENGTHS, device=device)
        self.tokens_SR = torch.randint(poison_token(config), (NUM_SEQS, NUM_ROWS), device=device)
        self.dead_token = poison_token(config)

    def run(self, seqs_S, first_row, live_SR):
        """Rows from `first_row` on: a graph once its shape was there before. Returns [T, ...] each."""
        rows = slice(first_row, first_row + live_SR.shape[1])

        def stage(tokens_SR, positions_SR, live_SR, seqs_S, extra_TC):
            batch = RowBatch(
                tokens_SR=tokens_SR,
                positions_SR=positions_SR,
                live_SR=live_SR,
                tables=PageTables(*(table[seqs_S] for table in self.network.tables)),
                max_length=MAX_LENGTH,
                ops=self.ops,
            )
            return self.network(batch, extra_TC)

        positions = torch.arange(rows.start, rows.stop, device=self.device)
        return self.stages.run(
            live_SR.shape,
            stage,
            torch.where(live_SR, self.tokens_SR[seqs_S, rows], self.dead_token),
            self.starts_S[seqs_S].unsqueeze(1) + positions,
            live_SR,
            seqs_S,
            self.network.extra[seqs_S, rows].flatten(0, 1),
        )


def bits(tensor):
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.itemsize])


def fill(cache):
    k, v = torch.randn((2, *cache.k.shape), device=cache.k.device)
    if cache.scales_PG2B is None:
        cache.k.copy_(k), cache.v.copy_(v)
    else:
        k, v, scales_PGB2 = to_fp8_pair(k, v)
        cache.k.copy_(k), cache.v.copy_(v), cache.scales_PG2B.copy_(scales_PGB2.transpose(2, 3))


def copy_of(caches):
    return [LayerCache(*(part.clone() for part in cache.tensors)) for cache in caches]


def slots_of(cache, part, pages, offsets):
    """The index of tokens in one of the cache's tensors."""
    between = (slice(None),) * (2 if part is cache.scales_PG2B else 1)  # heads, and keys and values of scales
    return pages, *between, offsets


def slots(table_SP, starts_S, seqs_S, num_rows):
    positions_SR = starts_S[seqs_S].unsqueeze(1) + torch.arange(num_rows, device=starts_S.device)
    return table_SP[seqs_S].gather(1, positions_SR // PAGE_SIZE), positions_SR % PAGE_SIZE


def each_alone(launcher):
    """Outputs [S, R, ...] of every row in a launch of its own, and the caches after all of them."""
    network, rows = launcher.network, []
    live_11 = torch.ones(1, 1, dtype=torch.bool, device=launcher.device)
    for seq in range(NUM_SEQS):
        seqs_S = torch.tensor([seq], device=launcher.device)
        for row in range(NUM_ROWS):
            rows.append([output.clone() for output in launcher.run(seqs_S, row, live_11)])
    outputs = [torch.cat(parts).unflatten(0, (NUM_SEQS, NUM_ROWS)) for parts in zip(*rows, strict=True)]
    assert all(output.isfinite().all() for output in outputs)
    return outputs, copy_of(network.caches)


def differing(launcher, launch, before, outputs, after):
    """What of a launch differs from the same rows alone: outputs of live rows, and any place of the caches."""
    (num_seqs, num_rows), network, device = launch, launcher.network, launcher.device
    seqs_S = (torch.arange(num_seqs, device=device) * 5 + 3 * num_rows) % NUM_SEQS
    live_SR = torch.ones(num_seqs, num_rows, dtype=torch.bool, device=device)
    if num_seqs * num_rows > 2:
        live_SR[num_seqs // 2, -1] = False
    expected = []
    for cache, right, old, table in zip(network.caches, after, before, network.groups, strict=True):
        at = tuple(index[live_SR] for index in slots(table, launcher.starts_S, seqs_S, num_rows))
        for mine, theirs, initial in zip(cache.tensors, right.tensors, old.tensors, strict=True):
            mine.copy_(initial)
            tokens, changed = slots_of(cache, mine, *at), initial.clone()
            changed[tokens] = theirs[tokens]
            expected.append((mine, changed))
    got = launcher.run(seqs_S, 0, live_SR)
    wrong = []
    for name, mine, right in zip(("logits", "states"), got, outputs, strict=True):
        same = (bits(mine.unflatten(0, live_SR.shape)) == bits(right[seqs_S, :num_rows])).all(-1)
        if not same[live_SR].all():
            wrong.append(f"{launch}: {name} of {int((~same[live_SR]).sum())} of {int(live_SR.sum())} rows")
    for index, (mine, right) in enumerate(expected):
        if not torch.equal(bits(mine[1:]), bits(right[1:])):  # dead rows write to page 0
            wrong.append(f"{launch}: cache tensor {index}")
    return wrong


@torch.inference_mode()
@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (TargetPass, "gpt-oss-120b"),
        (Fp8TargetPass, "gpt-oss-120b"),
        (TargetPass, "gpt-oss-20b"),
        (HeadPass, "gpt-oss-120b"),
    ],
)
def test_a_row_does_not_depend_on_its_launch(network, shape):
    """Logits, hidden states and the caches after it, at a launch's first use and as a graph, among dead rows."""
    device = torch.device("cuda")
    torch.manual_seed(0)
    launcher = Launcher(network(shape, device), device)
    for cache, table in zip(launcher.network.caches, launcher.network.groups, strict=True):
        fill(cache)
        poison(cache, table, LENGTHS)
    before = copy_of(launcher.network.caches)
    outputs, after = each_alone(launcher)
    runs = [launch for launch in LAUNCHES for _ in range(2)]
    wrong = [line for launch in runs for line in differing(launcher, launch, before, outputs, after)]
    print(f"\n{network.__name__} {shape}: {len(runs)} launches, {sum(s * r for s, r in runs)} rows, {len(wrong)} wrong")
    assert not wrong, wrong

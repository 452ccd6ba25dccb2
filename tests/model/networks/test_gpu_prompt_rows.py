"""Bits of prompt rows through whole networks: passes of any number of tiles, several sequences' among them, against
each tile alone."""

from dataclasses import replace

import pytest
import torch
from tests.model.support.poisoned import PAGE_SIZE, TILE, draw_target, packed, poison_token, shuffled_tables

from eyas.base.bundled import DEMO
from eyas.kernels.cuda.attention.flash import hopper_attention
from eyas.kernels.cuda.moe.experts import hopper_products
from eyas.kernels.reference.layers.ops import LayerCache
from eyas.kernels.triton.prompts.ops import PromptOps
from eyas.model.batch import PageTables, RowBatch
from eyas.model.checkpoints.loader import load_target
from eyas.model.making.presets import PRESETS, default_head
from eyas.model.making.random_weights import random_head
from eyas.model.networks.eagle3 import Eagle3Head
from eyas.model.networks.gpt_oss import GptOss

pytestmark = pytest.mark.gpu

NUM_TILES = 128  # 8,192 rows, each tile of a sequence of its own
PASSES = (2, 3, 4, 5, 8, 9, 16, 17, 31, 32, 33, 64, 128)  # tiles: all launches that a number of rows chooses
LONGEST = 40  # tiles


@pytest.fixture(params=["demo", "gpt-oss-120b", "gpt-oss-20b"])
def shapes(request):
    """The demo's sums of squares have 4 parts and its router 16 experts: other layouts than those of large models."""
    if request.param == "demo":
        return load_target(DEMO, device=torch.device("cpu"), dtype=torch.float32)[0]
    return PRESETS[request.param]


class TargetPrompt:
    def __init__(self, shapes, device):
        shapes = replace(shapes, num_layers=2, layer_is_sliding=(True, False))
        self.model = GptOss(
            shapes, packed(draw_target(shapes, device)), max_positions=(LONGEST + 1) * TILE, taps=(1, 2)
        )
        self.ops = PromptOps(hopper_products(shapes, device, NUM_TILES * TILE), hopper_attention(device))

    def new_caches(self, num_pages):
        return self.model.new_cache(num_pages, num_pages, PAGE_SIZE)

    def __call__(self, batch, caches, numbers):
        output = self.model.forward(batch, caches)
        last = output.normed.take(slice(-TILE, None))
        return output.normed.rows_TH, output.normed.square_sums_TP, output.taps_TC, self.model.logits(last, self.ops)


class HeadPrompt:
    """All of a head, on random taps; of prompts it reads, engines want the keys and values alone."""

    def __init__(self, shapes, device):
        head = default_head(shapes)
        ends = packed(draw_target(replace(shapes, num_layers=0, layer_is_sliding=()), device))
        self.model = Eagle3Head(random_head(head, ends, device), max_positions=(LONGEST + 1) * TILE)
        self.ops = PromptOps(None, hopper_attention(device))
        width = len(head.taps) * head.target_hidden_size
        self.taps = torch.randn(NUM_TILES, TILE, width, device=device).bfloat16()

    def new_caches(self, num_pages):
        head = self.model.config
        shape = 2, num_pages, head.num_kv_heads, PAGE_SIZE, head.head_dim
        return [LayerCache(*torch.zeros(shape, dtype=self.model.dtype, device=self.taps.device))]

    def __call__(self, batch, caches, numbers):
        hidden = self.model.fuse(self.taps[numbers].flatten(0, 1), self.ops)
        return tuple(self.model.forward(batch, hidden, caches[0]).normed)


class Prompts:
    """Tiles somewhere in sequences of which all before is there already."""

    def __init__(self, network, shapes, device):
        self.network, self.device = network, device
        generator = torch.Generator().manual_seed(0)
        self.first_tiles = torch.randint(1, LONGEST + 1, (NUM_TILES,), generator=generator).to(device)
        self.tokens_NR = torch.randint(poison_token(shapes), (NUM_TILES, TILE), device=device)
        lengths = [(first + 1) * TILE for first in self.first_tiles.tolist()]
        self.tables, num_pages = shuffled_tables(lengths, device)
        self.caches = network.new_caches(num_pages)
        for cache in self.caches:
            for part in cache.tensors:
                part.normal_()

    def run(self, numbers):
        positions_SR = self.first_tiles[numbers, None] * TILE + torch.arange(TILE, device=self.device)
        batch = RowBatch(
            tokens_SR=self.tokens_NR[numbers],
            positions_SR=positions_SR,
            live_SR=torch.ones_like(positions_SR, dtype=torch.bool),
            tables=PageTables(*(table[numbers] for table in self.tables)),
            max_length=(LONGEST + 1) * TILE,
            ops=self.network.ops,
        )
        return [part.clone() for part in self.network(batch, self.caches, numbers)]

    def written(self):
        return [part.clone() for cache in self.caches for part in cache.tensors]


def bits(tensor):
    return tensor.view({2: torch.int16, 4: torch.int32}[tensor.itemsize])


@torch.inference_mode()
@pytest.mark.parametrize("network", [TargetPrompt, HeadPrompt])
def test_a_row_does_not_depend_on_its_pass(network, shapes):
    device = torch.device("cuda")
    torch.manual_seed(0)
    prompts = Prompts(network(shapes, device), shapes, device)
    alone = [prompts.run(torch.tensor([number], device=device)) for number in range(NUM_TILES)]
    written, wrong = prompts.written(), []
    assert all(part.isfinite().all() for part in alone[0])
    for size in PASSES:
        numbers = (torch.arange(size, device=device) * 5 + size) % NUM_TILES
        for place, found in enumerate(prompts.run(numbers)):
            expected = torch.cat([alone[number][place] for number in numbers.tolist()])[-len(found) :]
            if not torch.equal(bits(found), bits(expected)):
                wrong.append((size, place, int((bits(found) != bits(expected)).any(1).sum())))
        if not all(torch.equal(bits(a), bits(b)) for a, b in zip(prompts.written(), written, strict=True)):
            wrong.append((size, "caches"))
    assert not wrong, wrong

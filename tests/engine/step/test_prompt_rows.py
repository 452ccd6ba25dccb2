"""The tiles of a prompt pass, against what their definition says of each position; and how many kernels they launch."""

import random
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from eyas.engine.round.state import DeviceState
from eyas.engine.step.prompt_rows import PromptRows, PromptTiles, tile_start
from eyas.engine.step.scheduler import Chunk
from eyas.kernels.reference.layers.roles import PROMPT_TILE

SLOTS, LENGTH, RING, WIDTH = 4, 512, 40, 3
VIEWS = {"alias", "detach", "expand", "select", "slice", "split", "transpose", "unbind", "unsqueeze", "view"}


class Launches(TorchDispatchMode):
    """Counts the operations that are kernels on a GPU."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func._schema.name.removeprefix("aten::") not in VIEWS
        return func(*args, **(kwargs or {}))


def make_state(page_size):
    state = DeviceState(
        num_slots=SLOTS,
        max_positions=LENGTH,
        page_size=page_size,
        vocab_size=100,
        tap_width=WIDTH,
        tap_ring=RING,
        tap_dtype=torch.float32,
        device=torch.device("cpu"),
    )
    num_pages = LENGTH // page_size
    state.tokens_SN.random_(100)
    state.tap_ring_SWC.normal_()
    for slot in range(SLOTS):
        state.tables.full[slot] = 1 + slot * num_pages + torch.randperm(num_pages)
    return state, torch.randn(1 + SLOTS * num_pages, WIDTH)


def random_chunks(rng):
    chunks = []
    for slot in rng.sample(range(SLOTS), rng.randint(0, SLOTS)):
        start = rng.choice((0, rng.randrange(300), 64 * rng.randrange(4)))
        end = rng.choice((start + 1, start + rng.randint(1, 180), -(-(start + 1) // 64) * 64))
        chunks.append(Chunk(SimpleNamespace(slot=slot), start, end))
    return chunks


def tiles_of(chunks, page_size, dead=2):
    rows = PromptRows(chunks)
    numbers = rows.numbers(rows.num_tiles + dead, SLOTS, ring=RING, page_size=page_size)
    return rows, PromptTiles.of(torch.tensor(numbers))


@pytest.mark.parametrize("page_size", [8, 16, 64, 128])
def test_every_row_and_what_is_kept_of_it(page_size):
    rng = random.Random(page_size)
    torch.manual_seed(page_size)
    for _ in range(30):
        chunks = random_chunks(rng)
        rows, tiles = tiles_of(chunks, page_size)
        (state, pages_PC), num_tiles = make_state(page_size), rows.num_tiles + 2
        batch = tiles.batch(state, None, LENGTH, None)
        taps_TC = torch.randn(num_tiles * PROMPT_TILE, WIDTH)
        paired_TC = tiles.paired(taps_TC, state.tap_ring_SWC)
        ring, pages = state.tap_ring_SWC.clone(), pages_PC.clone()
        tiles.keep_last(taps_TC, state.tap_ring_SWC)
        tiles.keep_of_pages(taps_TC, pages_PC, state.tables.full)

        live = set()
        for index, chunk in enumerate(chunks):
            slot = chunk.sequence.slot
            assert rows.row(index, tile_start(chunk)) % PROMPT_TILE == 0
            for position in range(chunk.start, chunk.end):
                row = rows.row(index, position)
                live.add(row)
                assert batch.positions_SR.flatten()[row] == position
                assert batch.tokens_SR.flatten()[row] == state.tokens_SN[slot, position]
                assert (batch.tables.full[row // PROMPT_TILE] == state.tables.full[slot]).all()
                before = ring[slot, position % RING] if position == chunk.start else taps_TC[row - 1]
                assert torch.equal(paired_TC[row], before)
                if (position + 1) % page_size == 0:
                    pages[state.tables.full[slot, position // page_size]] = taps_TC[row]
            ring[slot, chunk.end % RING] = taps_TC[row]
        assert set(batch.live_SR.flatten().nonzero()[:, 0].tolist()) == live
        assert torch.equal(state.tap_ring_SWC[:SLOTS], ring[:SLOTS])
        assert torch.equal(pages_PC[1:], pages[1:])


def test_a_pass_launches_few_kernels_beside_its_layers():
    """Each takes 2 us of a pass, whatever it does."""
    state, pages_PC = make_state(16)
    _, tiles = tiles_of([Chunk(SimpleNamespace(slot=1), 0, 100)], 16)
    taps_TC = torch.randn(4 * PROMPT_TILE, WIDTH)
    with Launches() as launches:
        tiles.batch(state, None, LENGTH, None)
        tiles.paired(taps_TC, state.tap_ring_SWC)
        tiles.keep_last(taps_TC, state.tap_ring_SWC)
        tiles.keep_of_pages(taps_TC, pages_PC, state.tables.full)
    assert launches.count <= 18

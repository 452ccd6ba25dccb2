"""Experts of prompt rows against plain products: small shapes in the emulator, the true ones on a Hopper GPU."""

import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.kernels.cuda.emulator import emulated
from tests.kernels.support.hazards import overwritten_operands
from tests.kernels.support.refills import unfinished_loads

from eyas.kernels.cuda import compiler
from eyas.kernels.cuda.moe import experts, moe
from eyas.kernels.layouts.device import Limits, device_limits
from eyas.kernels.layouts.mxfp4 import pack_experts
from eyas.kernels.reference.layers.moe import SWIGLU_ALPHA
from eyas.model.making.presets import PRESETS
from eyas.model.mxfp4 import Mxfp4Tensor, dequantize

LIMIT = 7.0


@pytest.fixture
def emulator(monkeypatch):
    for module in (experts, moe):
        monkeypatch.setattr(module, "load", emulated)
        monkeypatch.setattr(module, "device_limits", lambda device: Limits(3, 227 << 10))


def queues(ids_TK, num_experts):
    """Places in the queues of the experts, handed out in any order, and the lengths of the queues."""
    flat = ids_TK.flatten()
    order = torch.randperm(len(flat), device=flat.device)
    chosen = torch.nn.functional.one_hot(flat[order].long() + 1, num_experts + 1)[:, 1:]
    places = torch.empty_like(flat)
    places[order] = ((chosen.cumsum(0) - 1) * chosen).sum(1).int()
    return places.view_as(ids_TK), chosen.sum(0).int()


class Layer:
    """Experts of random weights, plain and packed."""

    def __init__(self, hidden, inner, num_experts, device="cpu"):
        self.hidden, self.inner, self.num_experts, self.device = hidden, inner, num_experts, device
        self.gate_up, self.gate_up_EIH = self._matrix(2 * inner, hidden)
        self.down, self.down_EHI = self._matrix(hidden, inner, high=130)
        self.gate_up_bias = torch.randn(num_experts, 2 * inner, device=device)
        self.down_bias = torch.randn(num_experts, hidden, device=device)

    def _matrix(self, num_rows, num_columns, high=123):
        shape = self.num_experts, num_rows, num_columns // 32
        blocks = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, device=self.device)
        scales = torch.randint(118, 122, shape, dtype=torch.uint8, device=self.device)
        scales[0, 0, 0] = high
        return pack_experts(blocks, scales), dequantize(Mxfp4Tensor(blocks, scales), torch.float32)

    def routed(self, num_rows, top_k=4, dead=(), favourite=0.0):
        """Random rows, ids, places, counts and scales; `favourite` of the rows choose expert 0 first."""
        x = torch.randn(num_rows, self.hidden, device=self.device).bfloat16()
        logits = torch.randn(num_rows, self.num_experts, device=self.device)
        logits[: int(favourite * num_rows), 0] = 9.0
        ids = logits.topk(top_k).indices.int()
        ids[list(dead)] = -1
        return x, ids, *queues(ids, self.num_experts), torch.rand(num_rows, device=self.device) + 0.5

    def run(self, x, ids, places, counts, scale, tile_rows):
        top_k = ids.shape[1]
        rows = experts.group(x, ids, places, counts, scale, tile_rows)
        act = experts.up(rows, self.gate_up, self.gate_up_bias, top_k=top_k, limit=LIMIT)
        return experts.down(act, self.down, self.down_bias, top_k=top_k)

    def run_few(self, x, ids, scale, workspace=None):
        """By the kernel of decode rows."""
        workspace = workspace or moe.Workspace(len(x), ids.shape[1], 0, self.inner, self.device)
        matrices = self.gate_up, self.gate_up_bias, self.down, self.down_bias
        return moe.outputs(x, ids, scale, *matrices, workspace, limit=LIMIT)

    def reference(self, x, ids, scale):
        """Outputs by pair in fp32, from activations rounded to bf16."""
        out = torch.full((ids.numel(), self.hidden), torch.nan, device=self.device)
        for pair, expert in enumerate(ids.flatten().tolist()):
            if expert >= 0:
                row = pair // ids.shape[1]
                both = x[row].float() @ self.gate_up_EIH[expert].T * scale[row] + self.gate_up_bias[expert]
                gate, up = both[::2].clamp(max=LIMIT), both[1::2].clamp(-LIMIT, LIMIT)
                act = (gate * torch.sigmoid(SWIGLU_ALPHA * gate) * (up + 1)).bfloat16().float()
                out[pair] = act @ self.down_EHI[expert].T + self.down_bias[expert]
        return out


def check(layer, num_rows, tile_rows, **options):
    routed = layer.routed(num_rows, **options)
    found, wanted = layer.run(*routed, tile_rows).float(), layer.reference(routed[0], routed[1], routed[4])
    live = (routed[1] >= 0).flatten()
    error = (found[live] - wanted[live]).norm() / wanted[live].norm()
    assert error < 5e-3, float(error)


@pytest.mark.parametrize(
    ("shape", "num_rows", "tile_rows", "options"),
    [
        ((64, 32, 4), 5, 16, {"top_k": 2, "dead": (1,)}),
        # three stages of columns; 192 and 448 features: 12 and 28 tiles, some warps idle
        pytest.param((448, 96, 3), 9, 16, {"top_k": 2}, marks=pytest.mark.slow),
        # steps of many rows
        pytest.param((448, 96, 2), 70, 64, {"top_k": 1, "favourite": 0.8}, marks=pytest.mark.slow),
        # tiles of 112, 96, 112 and 80 rows, and of 128, 96, 112 and 64
        pytest.param((64, 64, 4), 189, 128, {"top_k": 2, "favourite": 0.3}, marks=pytest.mark.slow),
        pytest.param((64, 64, 4), 189, 128, {"top_k": 2, "favourite": 0.4}, marks=pytest.mark.slow),
        pytest.param((64, 32, 8), 70, 32, {"favourite": 0.7, "dead": (0, 69)}, marks=pytest.mark.slow),
    ],
)
def test_emulated(emulator, shape, num_rows, tile_rows, options):
    torch.manual_seed(num_rows)
    check(Layer(*shape), num_rows, tile_rows, **options)


@pytest.mark.slow
def test_emulated_tiles_of_an_expert_are_equal(emulator):
    """Whole groups of 8 rows, which exchange their pieces; the last tile has what is left."""
    lengths = [0, 1, 32, 33, 47, 64, 65, 128]
    ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).int()[torch.randperm(sum(lengths))]
    places, counts = queues(ids[:, None], len(lengths))
    found = experts.group(torch.zeros(len(ids), 64).bfloat16(), ids[:, None], places, counts, torch.ones(len(ids)), 32)
    tiles = found.tiles[: found.num_tiles].tolist()
    sizes = [[end - first for expert, first, end, _ in tiles if expert == e] for e in range(len(lengths))]
    assert sizes == [[], [1], [32], [24, 9], [24, 23], [32, 32], [24, 24, 17], [32] * 4]
    assert [first for _, first, *_ in tiles] == [0] + [end for *_, end, _ in tiles[:-1]]


def company(layer, num_rows, sizes):
    """The first rows alone, and with others behind them in tiles of other sizes: the same bits."""
    x, ids, *_, scale = layer.routed(num_rows)
    outs = []
    for rows, tile_rows in sizes:
        some = ids[:rows].contiguous()
        outs.append(layer.run(x[:rows].contiguous(), some, *queues(some, layer.num_experts), scale[:rows], tile_rows))
    least = min(map(len, outs))
    assert all(torch.equal(out[:least], outs[0][:least]) for out in outs)


@pytest.mark.slow
def test_emulated_rows_do_not_depend_on_company(emulator):
    torch.manual_seed(0)
    company(Layer(64, 64, 4), 60, [(3, 16), (20, 32), (60, 64)])


def few_are_the_same(layer, num_rows, tile_rows, workspace=None, **options):
    x, ids, places, counts, scale = layer.routed(num_rows, **options)
    whole, few = layer.run(x, ids, places, counts, scale, tile_rows), layer.run_few(x, ids, scale, workspace)
    live = (ids >= 0).flatten()
    assert torch.equal(few[live], whole[live])


@pytest.mark.parametrize(
    ("shape", "num_rows", "tile_rows", "options"),
    [
        ((1984, 64, 2), 5, 16, {"dead": (1,)}),
        ((1984, 64, 2), 70, 128, {"favourite": 0.9, "dead": (0, 69)}),  # groups of more than 8 rows; many of a product
        ((64, 1952, 2), 7, 16, {}),  # more slices of down; a last step of 32 columns
        ((1984, 224, 2), 20, 32, {}),
    ],
    ids=str,
)
@pytest.mark.slow
def test_emulated_few_rows_have_the_bits_of_many(emulator, shape, num_rows, tile_rows, options):
    torch.manual_seed(num_rows)
    layer = Layer(*shape)
    assert moe.slice_columns(max(shape)) == 64 * experts.STAGE_STEPS
    few_are_the_same(layer, num_rows, tile_rows, top_k=2, **options)


@pytest.mark.slow
def test_emulated_launches_take_turns(emulator):
    """Of different sizes, an odd number of pairs among them, and with rows that are dead, on one workspace."""
    torch.manual_seed(0)
    layer = Layer(64, 32, 4)  # one slice, by either kernel
    workspace = moe.Workspace(24, 3, 0, 32, "cpu")
    for num_rows, dead in [(5, ()), (1, ()), (1, (0,)), (3, (0, 1, 2)), (23, (4,)), (5, ()), (2, (0, 1)), (24, ())]:
        few_are_the_same(layer, num_rows, 32, workspace, top_k=3, dead=dead)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_emulated_in_another_order_of_threads(monkeypatch, emulator, seed):
    """With few places in the rings, which are refilled at once."""
    monkeypatch.setattr(experts, "load", partial(emulated, seed=seed))
    monkeypatch.setattr(experts, "MAX_STAGES", 2)
    torch.manual_seed(seed)
    check(Layer(448, 64, 4), 11, 16, top_k=2)
    check(Layer(448, 96, 2), 70, 64, top_k=1, favourite=0.8)


def test_too_many_tiles_are_refused():
    ids = torch.zeros(9000, 4, dtype=torch.int32)
    with pytest.raises(ValueError, match="36000 pairs in tiles of 16 rows: more than 512 tiles"):
        experts.group(
            torch.zeros(9000, 64).bfloat16(), ids, ids, torch.zeros(8, dtype=torch.int32), torch.ones(9000), 16
        )


@pytest.mark.slow
@pytest.mark.parametrize(("tile_rows", "is_up"), [(16, 1), (32, 0), (64, 1), (128, 0), (128, 1)])
def test_machine_code(tmp_path, tile_rows, is_up):
    """A few spills; no instruction waits for the one before, no operand or shared memory is overwritten too early."""
    pytest.importorskip("cuda.core", reason="no cuda-core: CUDA kernels cannot be compiled")
    triton = pytest.importorskip("triton", reason="it brings nvdisasm")
    stages, _ = experts._shared_memory(tile_rows, 227 << 10)
    constants = experts._constants(2880, 2880 * (1 + is_up), 4, 128, tile_rows, stages) | {"UP": is_up}
    built = compiler.build("moe/experts", constants, "sm_90")
    # With 128 rows a few words once an item, outside of the loop over slices.
    assert all(usage.spill_bytes <= (200 if tile_rows == 128 else 0) for usage in built.usage.values())
    (tmp_path / "cubin").write_bytes(built.cubin)
    nvdisasm = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    sass = subprocess.run([nvdisasm, "-c", tmp_path / "cubin"], capture_output=True, text=True, check=True).stdout
    # For each N three steps of four products, and a wait before registers are filled again and one at the end of a
    # slice, three where a step's registers are the next one's. Where ptxas finds too few registers it waits behind each
    # product.
    sizes = tile_rows // 16
    few = min(sizes, 4)
    assert (sass.count("HGMMA"), sass.count("WARPGROUP.DEPBAR")) == (12 * sizes, 2 * few + 3 * (sizes - few))
    assert not overwritten_operands(sass) and not unfinished_loads(sass, ("UBLKCP", "SYNCS.ARRIVE"))


def test_who_has_these_products():
    shapes = PRESETS["gpt-oss-120b"]
    assert experts.hopper_products(shapes, torch.device("cpu"), 8192) is None


@pytest.fixture
def hopper(monkeypatch):
    monkeypatch.setattr(experts, "device_limits", lambda device: Limits(132, 227 << 10, has_wgmma=True))


@pytest.mark.parametrize(("name", "few_rows"), [("gpt-oss-120b", 256), ("gpt-oss-20b", 256), ("tiny", None)])
def test_models_have_them(hopper, name, few_rows):
    """Those whose slices agree have the kernel of decode rows for few rows."""
    workspace = experts.hopper_products(PRESETS[name], torch.device("meta"), 8192).workspace
    assert (workspace and workspace.max_rows) == few_rows


@pytest.mark.parametrize(
    "sizes",
    [{"hidden_size": 2848}, {"intermediate_size": 2888}, {"num_experts": 256}, {"experts_per_token": 8}],
    ids=str,
)
def test_other_shapes_do_not(hopper, sizes):
    assert experts.hopper_products(replace(PRESETS["gpt-oss-120b"], **sizes), torch.device("meta"), 8192) is None


@pytest.fixture(scope="module")
def true_layer():
    if not device_limits(torch.device("cuda")).has_wgmma:
        pytest.skip("no Hopper GPU")
    torch.manual_seed(0)
    return Layer(2880, 2880, 32, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [1, 17, 128, 700, 2100])
def test_true_shapes(true_layer, num_rows):
    torch.manual_seed(num_rows)
    tile_rows = experts.tile_rows(4 * num_rows, true_layer.num_experts)
    check(true_layer, num_rows, tile_rows, dead=(0,) if num_rows > 1 else ())


@pytest.mark.gpu
def test_rows_do_not_depend_on_company(true_layer):
    torch.manual_seed(1)
    company(true_layer, 3000, [(5, 16), (64, 16), (64, 128), (500, 32), (500, 64), (3000, 128)])


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [1, 9, 64, 128, 200, 256, 700])
def test_few_rows_have_the_bits_of_many(true_layer, num_rows):
    torch.manual_seed(num_rows)
    for tile_rows in (16, 64, 128):
        few_are_the_same(true_layer, num_rows, tile_rows, dead=(0,) if num_rows > 1 else ())


@pytest.mark.gpu
def test_few_rows_in_graphs(true_layer):
    """Of different sizes in turn, on one workspace."""
    torch.manual_seed(3)
    workspace = moe.Workspace(128, 4, 0, true_layer.inner, "cuda")
    sizes, graphs = (1, 64, 128, 9), []
    for num_rows in sizes:
        x, ids, places, counts, scale = true_layer.routed(num_rows)
        whole = true_layer.run(x, ids, places, counts, scale, 16)
        true_layer.run_few(x, ids, scale, workspace)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            few = true_layer.run_few(x, ids, scale, workspace)
        graphs.append((graph, few, whole, (x, ids, scale)))
    for number in torch.randint(len(sizes), (200,)).tolist():
        graph, few, whole, _ = graphs[number]
        few.zero_()
        graph.replay()
        assert torch.equal(few, whole)


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [128, 1100])
def test_the_same_bits_every_time(true_layer, num_rows):
    """A copy that overtakes a read is rare: about one in 10^5 was seen in another kernel."""
    torch.manual_seed(2)
    routed = true_layer.routed(num_rows)
    tile_rows = experts.tile_rows(4 * num_rows, true_layer.num_experts)
    first = true_layer.run(*routed, tile_rows)
    different = torch.zeros((), dtype=torch.bool, device=first.device)
    for _ in range(1000):
        different |= (true_layer.run(*routed, tile_rows) != first).any()
    assert not different

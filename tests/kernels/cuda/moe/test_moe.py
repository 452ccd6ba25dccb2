"""moe_up and moe_down against their plain twins: in the emulator with one block, on a GPU at the true shapes."""

import pytest
import torch
from tests.kernels.cuda.emulator import emulated

from eyas.kernels.cuda.moe import moe
from eyas.kernels.layouts.device import Limits
from eyas.kernels.layouts.mxfp4 import pack_experts
from eyas.kernels.reference.layers.moe import moe_down_ref, moe_up_ref
from eyas.kernels.reference.layers.norm import Normed, inverse_rms
from eyas.kernels.reference.layers.router import route
from eyas.model.mxfp4 import Mxfp4Tensor, dequantize

LIMIT, EPS = 7.0, 1e-5


class _Dense:
    """Experts dequantised to fp32 when asked for."""

    def __init__(self, blocks, scales):
        self.packed = Mxfp4Tensor(blocks, scales)

    def __getitem__(self, expert: int) -> torch.Tensor:
        return dequantize(self.packed[expert], torch.float32)


class _Layer:
    def __init__(self, hidden: int, intermediate: int, num_experts: int, device: str, max_rows: int = 64):
        self.hidden, self.intermediate, self.num_experts, self.device = hidden, intermediate, num_experts, device
        self.gate_up, self.gate_up_dense = self._experts(2 * intermediate, hidden)
        self.down, self.down_dense = self._experts(hidden, intermediate, high=130)  # exponent 2
        self.gate_up_bias = torch.randn(num_experts, 2 * intermediate, device=device)
        self.down_bias = torch.randn(num_experts, hidden, device=device)
        self.norm = torch.rand(hidden, device=device) + 0.5
        self.workspaces = {top_k: moe.Workspace(max_rows, top_k, hidden, intermediate, device) for top_k in (2, 4)}

    def _experts(self, num_rows: int, num_columns: int, high: int = 123):
        shape = self.num_experts, num_rows, num_columns // 32
        blocks = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, device=self.device)
        scales = torch.randint(118, 124, shape, dtype=torch.uint8, device=self.device)
        scales[0, 0, 0] = high
        return pack_experts(blocks, scales), _Dense(blocks, scales)

    def rows(self, num_rows: int):
        """Random (normed, logits, residual)."""
        rows = torch.randn(num_rows, self.hidden, device=self.device).bfloat16()
        sums = torch.rand(num_rows, self.hidden // 16, device=self.device) * 32
        logits = torch.randn(num_rows, self.num_experts, device=self.device)
        return Normed(rows, sums), logits, torch.randn(num_rows, self.hidden, device=self.device)

    def run(self, normed, logits, residual, live, top_k: int = 4):
        """Activations, residual and norm."""
        workspace = self.workspaces[top_k]
        up = moe.moe_up(normed, self.gate_up, self.gate_up_bias, top_k=top_k, limit=LIMIT, eps=EPS)
        down = moe.moe_down(up, logits, live, self.down, self.down_bias, residual, self.norm, workspace)
        assert not workspace.routed
        mine, other = workspace.act_2TKI.flip(0) if workspace.state[1] == 0 else workspace.act_2TKI
        assert all(tensor.view(torch.int16).eq(-1).all() for tensor in (other, workspace.partials_TKH))
        return mine[: len(live)].clone(), *down

    def reference(self, normed, logits, residual, live, act, top_k: int = 4):
        """In fp32; `act` are the bf16 activations that moe_down is to start from."""
        ids, weights = route(logits, live, top_k)
        up = moe_up_ref(
            normed.rows_TH.float(), inverse_rms(normed, EPS), ids,
            gate_up=self.gate_up_dense, bias_EN=self.gate_up_bias, limit=LIMIT, tile=None,
        )  # fmt: skip
        down = moe_down_ref(
            torch.where(live[:, None, None], act.float(), 0.0), ids, weights, residual,
            down=self.down_dense, bias_EH=self.down_bias, tile=None,
        )  # fmt: skip
        return up, down


def _error(out: torch.Tensor, expected: torch.Tensor) -> float:
    return float((out.float() - expected).norm() / expected.norm())


def _check(layer: _Layer, num_rows: int, dead: tuple[int, ...] = (), top_k: int = 4, repeats: int = 1):
    normed, logits, residual = layer.rows(num_rows)
    live = torch.ones(num_rows, dtype=torch.bool, device=layer.device)
    live[list(dead)] = False
    for _ in range(repeats):
        act, out, after = layer.run(normed, logits, residual, live, top_k)
    up, down = layer.reference(normed, logits, residual, live, act, top_k)
    if live.any():
        assert _error(act[live], up[live]) < 3e-3
    assert _error(out, down) < 1e-5
    assert torch.equal(out[~live], residual[~live])
    torch.testing.assert_close(after.rows_TH, (out * layer.norm).bfloat16(), rtol=0, atol=0)
    sums = out.square().view(num_rows, -1, 16).sum(-1)
    torch.testing.assert_close(after.square_sums_TP, sums, rtol=1e-6, atol=0)


@pytest.mark.parametrize("shared_kib", [99, 227])
def test_the_largest_shapes_fit(shared_kib: int):
    limits = Limits(1, shared_kib << 10)
    column_tiles = moe._column_tiles(moe.FEW_ROWS * moe.MAX_TOP_K, moe.MAX_EXPERTS, limits)
    depth, ring = moe._ring(moe.MAX_COLUMNS, moe.MAX_COLUMNS, column_tiles, limits)
    tables = moe._table_bytes(moe.FEW_ROWS, moe.MAX_EXPERTS, moe.MAX_TOP_K, column_tiles)
    assert depth >= 1 and ring + tables <= limits.shared_bytes


@pytest.fixture(scope="module", autouse=True)
def poison():
    """Unwritten outputs are NaN."""
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def emulator(monkeypatch):
    monkeypatch.setattr(moe, "load", emulated)
    monkeypatch.setattr(moe, "device_limits", lambda device: Limits(3, 227 << 10))


@pytest.mark.parametrize(
    ("shape", "num_rows", "dead", "top_k"),
    [
        pytest.param((64, 32, 8), 1, (), 4, marks=pytest.mark.slow),
        pytest.param((64, 32, 8), 1, (0,), 4, marks=pytest.mark.slow),
        ((96, 160, 5), 3, (1,), 2),
        pytest.param((1056, 64, 4), 2, (), 4, marks=pytest.mark.slow),  # 17 units: slices of 2, the last of 1
        pytest.param((64, 64, 40), 13, (0, 12), 4, marks=pytest.mark.slow),
        ((64, 32, 4), 21, (), 4),  # 21 rows of every expert: two groups of two tiles
    ],
)
def test_emulated(emulator, shape, num_rows: int, dead, top_k: int):
    torch.manual_seed(num_rows)
    _check(_Layer(*shape, "cpu"), num_rows, dead, top_k, repeats=2)


@pytest.mark.slow
def test_emulated_in_three_groups_of_one_tile(emulator, monkeypatch):
    monkeypatch.setattr(moe, "ONE_TILE_PAIRS", 21)
    _check(_Layer(64, 32, 4, "cpu"), 21)


@pytest.mark.parametrize(
    ("shape", "num_rows", "dead", "top_k"),
    [((64, 32, 4), 21, (3,), 4), pytest.param((64, 32, 40), 9, (), 2, marks=pytest.mark.slow)],
)
def test_emulated_with_rows_routed_once(emulator, monkeypatch, shape, num_rows: int, dead, top_k: int):
    """The same bits as if every block found the routing of all rows, which is what it does for few."""
    torch.manual_seed(num_rows)
    layer = _Layer(*shape, "cpu")
    normed, logits, residual = layer.rows(num_rows)
    live = torch.ones(num_rows, dtype=torch.bool)
    live[list(dead)] = False
    by_all = layer.run(normed, logits, residual, live, top_k)
    monkeypatch.setattr(moe, "FEW_ROWS", 8)
    for _ in range(2):
        act, out, after = layer.run(normed, logits, residual, live, top_k)
        assert torch.equal(act[live], by_all[0][live]) and torch.equal(out, by_all[1])
        assert all(map(torch.equal, after, by_all[2]))


def test_pairs_are_sorted_by_expert(emulator):
    """What the launch before leaves, for as many rows as a round has, and an odd number of pairs."""
    torch.manual_seed(0)
    num_rows, num_experts, top_k = 717, 128, 3
    sums, logits = torch.rand(num_rows, 2), torch.randn(num_rows, num_experts)
    live = torch.rand(num_rows) < 0.9
    constants = {"UP_COLUMNS": 32, "COLUMN_TILES": 2, "NUM_EXPERTS": num_experts, "TOP_K": top_k}
    workspace = moe.Workspace(1, top_k, 32, 32, "cpu")
    packed = pack_experts(torch.zeros(1, 32, 1, 16, dtype=torch.uint8), torch.full((1, 32, 1), 120, dtype=torch.uint8))
    up = moe.moe_up(Normed(sums, sums), packed, sums, top_k=top_k, limit=LIMIT, eps=EPS)
    memory = moe.route(up, logits, live, constants, workspace)
    ids, weights = route(logits, live, top_k)
    words, most_groups = memory.view(torch.int32), num_experts + num_rows * top_k // 16
    num_groups, experts, first = torch.split(
        words[num_experts:], [1, most_groups, len(words) - num_experts - 1 - most_groups]
    )
    scales, weights_got, rest = torch.split(
        first[most_groups + 1 :], [num_rows, num_rows * top_k, len(first) - most_groups - 1 - num_rows * (1 + top_k)]
    )
    torch.testing.assert_close(scales.view(torch.float32), 2.0**packed.exponent * (sums.sum(1) / 32 + EPS).rsqrt())
    torch.testing.assert_close(weights_got.view(torch.float32).view(-1, top_k)[live], weights[live])
    pairs = rest.view(torch.int16)
    expected = torch.argsort(ids.flatten(), stable=True)[int((ids < 0).sum()) :]
    assert torch.equal(pairs[: len(expected)].long(), expected)
    at = 0
    for group in range(int(num_groups)):
        end = int(first[group + 1])
        assert first[group] == at and 0 < end - at <= 16
        assert (ids.flatten()[expected[at:end]] == experts[group]).all()
        at = end
    assert at == len(expected) and not workspace.routed


@pytest.mark.slow
def test_emulated_with_little_shared_memory(emulator, monkeypatch):
    monkeypatch.setattr(moe, "MAX_DEPTH", 2)
    _check(_Layer(64, 32, 8, "cpu"), 3)


def test_equal_logits_take_the_lower_id(emulator):
    torch.manual_seed(0)
    layer = _Layer(64, 32, 8, "cpu")
    normed, logits, residual = layer.rows(1)
    live = torch.ones(1, dtype=torch.bool)
    logits[:] = torch.tensor([1.0, 3.0, 2.0, 3.0, 2.0, 2.0, 0.0, 2.0])
    equal = layer.run(normed, logits, residual, live)
    logits[:] = torch.tensor([1.0, 3.0, 2.0, 3.0, 2.0, 1.0, 0.0, 1.0])
    assert all(map(torch.equal, equal[:2], layer.run(normed, logits, residual, live)[:2]))


@pytest.mark.parametrize("company", [2, 9])
def test_emulated_rows_do_not_depend_on_company(emulator, company: int):
    torch.manual_seed(3)
    layer = _Layer(64, 32, 4, "cpu")
    normed, logits, residual = layer.rows(company)
    live = torch.ones(company, dtype=torch.bool)
    act, out, after = layer.run(normed, logits, residual, live)
    for row in (0, company - 1):
        only = slice(row, row + 1)
        alone = layer.run(normed.take(only), logits[only], residual[only], live[only])
        assert torch.equal(alone[0][0], act[row])
        assert torch.equal(alone[1][0], out[row])
        assert torch.equal(alone[2].square_sums_TP[0], after.square_sums_TP[row])


def test_too_many_rows(emulator):
    layer = _Layer(64, 32, 4, "cpu")
    with pytest.raises(ValueError, match="at most 64"):
        layer.run(*layer.rows(65), torch.ones(65, dtype=torch.bool))


@pytest.fixture(scope="module")
def true_layer():
    torch.manual_seed(0)
    return _Layer(2880, 2880, 32, "cuda", moe.MAX_ROWS)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("num_rows", "dead"),
    [(1, ()), (2, (0,)), (5, ()), (8, ()), (33, (4, 32)), (128, ()), (512, (7,)), (513, ()), (2048, (9, 2047))],
)
def test_true_shapes(true_layer, num_rows: int, dead):
    torch.manual_seed(num_rows)
    _check(true_layer, num_rows, dead, repeats=3)


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [2, 3, 4, 5, 8, 9, 16, 33, 64, 128, 225, 512, 513, 1025, 2048])
def test_rows_do_not_depend_on_company(true_layer, num_rows: int):
    torch.manual_seed(num_rows)
    normed, logits, residual = true_layer.rows(num_rows)
    live = torch.rand(num_rows, device="cuda") < 0.9
    act, out, after = true_layer.run(normed, logits, residual, live)
    for row in range(0, num_rows, max(1, num_rows // 9)):
        only = slice(row, row + 1)
        alone = true_layer.run(normed.take(only), logits[only], residual[only], live[only])
        if live[row]:
            assert torch.equal(alone[0][0], act[row])
        assert torch.equal(alone[1][0], out[row])
        assert torch.equal(alone[2].rows_TH[0], after.rows_TH[row])
        assert torch.equal(alone[2].square_sums_TP[0], after.square_sums_TP[row])

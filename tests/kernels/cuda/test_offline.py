"""What decoding launches compiles for GPUs that are not here, stays in registers and fits into shared memory.

Each takes seconds to compile.
"""

from __future__ import annotations

import inspect
import itertools
import pickle
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from tests.kernels.support.built_once import built_once
from tests.kernels.support.hazards import overwritten_operands
from tests.kernels.support.refills import unfinished_loads

from eyas.engine.sampling.screened_logits import MAX_ROWS
from eyas.kernels.cuda import compiler, norm
from eyas.kernels.cuda.attention import attend, attend_plan, flash
from eyas.kernels.cuda.dense import linear
from eyas.kernels.cuda.moe import experts, moe
from eyas.kernels.cuda.ops import DecodeOps
from eyas.kernels.layouts.bits12 import TILE_BYTES
from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.kernels.layouts.int8 import rough_bytes
from eyas.kernels.layouts.mxfp4 import PackedExperts
from eyas.kernels.reference.layers.ops import LayerCache, RopeTable, Rows

pytestmark = pytest.mark.slow
pytest.importorskip("cuda.core", reason="no cuda-core: CUDA kernels cannot be compiled")
nvrtc = pytest.importorskip("cuda.bindings.nvrtc")


class Device(NamedTuple):
    multi_processor_count: int
    shared_memory_per_block_optin: int  # bytes
    major: int


# Multiprocessors of an H200, B200, RTX PRO 6000 and GB10; shared memory: table of compute capabilities in the CUDA C++
# programming guide.
DEVICES = {
    "sm_90": Device(132, 227 << 10, 9),
    "sm_100": Device(148, 227 << 10, 10),
    "sm_120": Device(188, 99 << 10, 12),
    "sm_121": Device(48, 99 << 10, 12),
}


class Model(NamedTuple):
    hidden: int
    heads: int
    kv_heads: int
    experts: int
    inner: int
    vocab: int
    head_inner: int  # of the draft head
    draft_vocab: int


GPT_OSS_120B = Model(2880, 64, 8, 128, 2880, 201088, 17280, 32000)
GPT_OSS_20B = GPT_OSS_120B._replace(experts=32)
DEMO = Model(256, 8, 2, 16, 128, 4096, 1024, 2048)
MODELS = {"120b": GPT_OSS_120B, "20b": GPT_OSS_20B, "demo": DEMO}


class Local(NamedTuple):
    """Bytes of local memory that a thread may use."""

    spills: int  # stores and loads
    stack: int


# No more than was measured; none where nothing stands. attend keeps the tree of what it merges in 4 KB. The others run
# out of registers by a few values: linear at K = 17280, linear_tiles at 128 rows, linear_wgmma at 256 with 32,000
# features.
KNOWN = {
    "attention/attend": Local(80, 4096),
    "dense/linear": Local(80, 40),
    "dense/linear_tiles": Local(416, 144),
    "dense/linear_wgmma": Local(272, 56),
}
BATCHES = [(1, 1), (1, 4), (4, 4), (8, 4), (16, 4), (32, 4), (256, 4)]  # sequences, rows of each

# Kernels have run on Hopper alone so far: for other GPUs a few cases are compiled.
ALL = [("sm_90", model, batch) for model in MODELS for batch in BATCHES]
ALL += [
    (arch, model, batch)
    for arch in DEVICES
    if arch != "sm_90"
    for model in ("120b", "demo")
    for batch in ((1, 4), (16, 4), (256, 4))
]


class Build(NamedTuple):
    source: str
    defines: tuple[tuple[str, int | str], ...]
    kernel: str
    shared_bytes: int


def _fake(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _matrix(
    num_features: int, width: int, *, gated: bool = False, fp8: bool = False, bits12: bool = False
) -> BlockedMatrix:
    tiles = num_features // 16, width // 32
    data = _fake(*tiles, 16, 32, dtype=torch.float8_e4m3fn if fp8 else torch.bfloat16)
    copy = _fake(*tiles, TILE_BYTES, dtype=torch.uint8) if bits12 else None
    return BlockedMatrix(data, gated, _fake(num_features) if fp8 else None, copy)


def _rough(num_features: int, width: int) -> BlockedMatrix:
    data = _fake(num_features // 16, width // 32, rough_bytes(16, 32), dtype=torch.int8)
    return BlockedMatrix(data, factors_N=_fake(num_features))


def _experts(model: Model, num_features: int, width: int) -> PackedExperts:
    shape = model.experts, num_features // 16, -(-width // 64)
    words, scales = (_fake(*shape, *rest, dtype=torch.int32) for rest in ((32, 4), (8,)))
    return PackedExperts(words, scales, num_features, width)


def _run(model: Model, num_seqs: int, num_rows: int) -> None:
    """A layer, the draft head and the logits, for rows that are not there."""
    ops = DecodeOps(
        torch.device("meta"),
        max_rows=num_seqs * num_rows,
        hidden_size=model.hidden,
        intermediate_size=model.inner,
        top_k=4,
    )
    total, hidden, width = num_seqs * num_rows, model.hidden, model.heads * 64
    num_features = width + 2 * model.kv_heads * 64
    live = _fake(num_seqs, num_rows, dtype=torch.bool)
    table = _fake(num_seqs, 100, dtype=torch.int64)
    rows = Rows(_fake(num_seqs, num_rows, dtype=torch.int64), live, table, 1600)
    shape = 100, model.kv_heads, 16, 64
    caches = [LayerCache.zeros(shape, torch.bfloat16, torch.device("meta"), in_fp8=fp8) for fp8 in (False, True)]
    rope = RopeTable(_fake(total, 32), _fake(total, 32))
    tokens, embed, weight = _fake(total, dtype=torch.int64), _fake(10, hidden, dtype=torch.bfloat16), _fake(hidden)
    planned = [
        ops.plan(rows, num_heads=model.heads, num_kv_heads=model.kv_heads, in_fp8=cache.in_fp8) for cache in caches
    ]
    residual, normed = ops.embed(tokens, embed, weight)
    for window, (rows, cache) in itertools.product((None, 128), zip(planned, caches, strict=True)):
        attn = ops.attend(
            ops.project(normed, _matrix(num_features, hidden)), rows, cache, rope,
            eps=1e-5, bias_N=_fake(num_features), sinks_Q=_fake(model.heads), window=window,
        )  # fmt: skip
    residual, normed = ops.add(attn, _matrix(hidden, width), weight, residual, weight)
    if total <= linear.FEW_ROWS:
        ops.project(normed, _matrix(num_features, hidden, bits12=True))
        ops.add(attn, _matrix(hidden, width, bits12=True), weight, residual, weight)
    choice = ops.router(normed, _matrix(model.experts, hidden), _fake(model.experts), 1e-5)
    gate_up, down = _experts(model, 2 * model.inner, hidden), _experts(model, hidden, model.inner)
    bias = _fake(model.experts, 2 * model.inner)
    act = ops.moe_up(normed, choice, live.flatten(), gate_up, bias, top_k=4, limit=7.0, eps=1e-5)
    up_bias, bias = bias, _fake(model.experts, hidden)
    residual, normed = ops.moe_down(act, choice, live.flatten(), down, bias, residual, weight)
    if model is GPT_OSS_120B and total <= experts.FEW_ROWS and linear.device_limits(live.device).has_wgmma:
        ids, workspace = _fake(total, 4, dtype=torch.int32), moe.Workspace(total, 4, 0, model.inner, "meta")
        moe.outputs(normed.rows_TH, ids, _fake(total), gate_up, up_bias, down, bias, workspace, limit=7.0)
    ops.logits(normed, _matrix(model.vocab, hidden), 1e-5)
    if total <= MAX_ROWS:
        wanted = _fake(2, dtype=torch.int32)
        for matrix in (_rough(model.vocab, hidden), _matrix(model.vocab, hidden)):
            linear.logits(normed, matrix, 1e-5, wanted=wanted)

    pairs, after = ops.pair(tokens, embed, weight, residual, weight, 1e-5)
    ops.project(pairs, _matrix(num_features, 2 * hidden))
    ops.linear(_fake(total, 3 * hidden, dtype=torch.bfloat16), _matrix(hidden, 3 * hidden))
    for fp8 in (False, True) if model is GPT_OSS_120B else (False,):
        _, normed = ops.add(attn, _matrix(hidden, width, fp8=fp8), None, after, weight)
        act = ops.gated(normed, _matrix(2 * model.head_inner, hidden, gated=True, fp8=fp8), 1e-5)
        ops.linear(act, _matrix(hidden, model.head_inner, fp8=fp8))
        ops.logits(normed, _matrix(model.draft_vocab, hidden, fp8=fp8), 1e-5)


def _builds(monkeypatch: pytest.MonkeyPatch, arch: str, model: str, batch: tuple[int, int]) -> list[Build]:
    """What is compiled and launched, with the most shared memory of any launch of it."""
    found: dict[tuple, int] = {}

    class Recorder:
        def __init__(self, source, defines=None, kernel="") -> None:
            self.key = source, tuple(sorted((defines or {}).items())), kernel

        def kernel(self, name):
            return Recorder(self.key[0], dict(self.key[1]), name)

        def launch(self, grid, block, *args, shared=0, pdl=True) -> None:
            found[self.key] = max(found.get(self.key, 0), shared)

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: DEVICES[arch])
    for module in (attend, attend_plan, linear, moe, norm):
        monkeypatch.setattr(module, "load", Recorder)
        for _, function in inspect.getmembers(module, lambda member: hasattr(member, "cache_clear")):
            function.cache_clear()
    _run(MODELS[model], *batch)
    return [Build(*key, shared) for key, shared in found.items()]


def _compiled(source: str, defines: tuple[tuple[str, int | str], ...], arch: str) -> compiler.Build:
    """Compile; what another test has compiled, in any process, is read from a file."""

    def build(path: Path) -> None:
        path.write_bytes(pickle.dumps(compiler.build(source, dict(defines), arch)))

    texts = [compiler.FOLDER / f"{source}.cu", *sorted(compiler.FOLDER.rglob("*.cuh"))]
    path = built_once(
        "nvrtc", f"{Path(source).name}-{arch}.pickle", texts, (defines, arch, nvrtc.nvrtcVersion()), build
    )
    found: compiler.Build = pickle.loads(path.read_bytes())
    return found


@pytest.fixture(params=ALL, ids=lambda case: f"{case[0]}-{case[1]}-{case[2][0]}x{case[2][1]}")
def launches(request):
    """GPU, model, batch."""
    return request.param


def test_compiles_without_a_gpu(monkeypatch, launches):
    arch, model, batch = launches
    builds = _builds(monkeypatch, arch, model, batch)
    assert {build.source for build in builds} >= {"attention/attend", "dense/linear", "moe/moe", "norm"}
    faults = []
    for build in builds:
        usage = _compiled(build.source, build.defines, arch).usage[build.kernel]
        shared = build.shared_bytes + usage.shared_bytes
        known = KNOWN.get(build.source, Local(0, 0))
        fits = shared <= DEVICES[arch].shared_memory_per_block_optin
        if usage.spill_bytes > known.spills or usage.stack_bytes > known.stack or not fits:
            faults.append((build, usage))
    assert not faults


def test_refills_stay_behind_what_they_overwrite(monkeypatch, tmp_path, launches):
    """Nothing but the order in which ptxas puts them keeps a bulk copy behind the loads of what it overwrites."""
    arch, model, batch = launches
    triton = pytest.importorskip("triton", reason="it brings nvdisasm")
    nvdisasm = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    if arch == "sm_121":
        pytest.skip("Triton's nvdisasm does not know it")
    # The rows of a block share a stage of linear_tiles, so each warp is done with it before the barrier.
    checked = {"dense/linear": ("UBLKCP",), "dense/linear_tiles": ("UBLKCP", "BAR.SYNC")}
    builds = [build for build in _builds(monkeypatch, arch, model, batch) if build.source in checked]
    cubin, faults = tmp_path / "cubin", []
    for build in builds:
        cubin.write_bytes(_compiled(build.source, build.defines, arch).cubin)
        sass = subprocess.run([nvdisasm, "-c", cubin], capture_output=True, text=True, check=True).stdout
        assert "HMMA" in sass and sass.count("UBLKCP") > 1 and "LDS" in sass
        found = unfinished_loads(sass, checked[build.source])
        faults += [(build, found)] if found else []
    assert builds and not faults


@pytest.mark.parametrize("batch", [(8, 4), (16, 4), (32, 4), (64, 4)], ids=str)
def test_products_of_warpgroups(monkeypatch, tmp_path, batch):
    """No product waits for the one before, no operand is overwritten and no copy overtakes a load."""
    triton = pytest.importorskip("triton", reason="it brings nvdisasm")
    nvdisasm = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    builds = [build for build in _builds(monkeypatch, "sm_90", "120b", batch) if build.source == "dense/linear_wgmma"]
    assert len(builds) > 6
    for build in builds:
        compiled, blocks = _compiled(build.source, build.defines, "sm_90"), dict(build.defines)["STAGE_BLOCKS"]
        usage = compiled.usage[build.kernel]
        assert usage.spill_bytes <= KNOWN[build.source].spills and usage.stack_bytes <= KNOWN[build.source].stack
        assert build.shared_bytes <= DEVICES["sm_90"].shared_memory_per_block_optin
        (tmp_path / "cubin").write_bytes(compiled.cubin)
        command = [nvdisasm, "-c", tmp_path / "cubin"]
        sass = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        # A whole stage, at once or block by block, and a block of others; each group of products has one wait.
        groups = blocks + 1 if dict(build.defines)["COLUMNS"] > 64 else 2
        assert sass.count("HGMMA") == 2 * blocks + 2 and sass.count("WARPGROUP.DEPBAR") == groups
        assert not overwritten_operands(sass) and not unfinished_loads(sass, ("UBLKCP", "SYNCS.ARRIVE")), build


@pytest.mark.parametrize(
    ("group", "num_kv", "has_sinks", "warpgroups", "in_fp8"),
    [
        (8, 8, True, 3, False), (8, 8, False, 3, False), (4, 2, True, 3, False), (8, 8, True, 2, False),
        (8, 8, True, 1, False), (8, 8, True, 3, True), (8, 8, True, 2, True), (8, 8, True, 1, True),
    ],
)  # fmt: skip
def test_attention_of_warpgroups(tmp_path, group, num_kv, has_sinks, warpgroups, in_fp8):
    """Products run beside the weighing: two waits a block of keys, the second behind its exponentials.

    Three warpgroups over 8 bits have 152 registers, with which each product waits for the one before; 160 are slower
    all the same (docs/log/kernels.md).
    """
    triton = pytest.importorskip("triton", reason="it brings nvdisasm")
    nvdisasm = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    defines = tuple(sorted(flash.defines(group, num_kv, warpgroups, has_sinks=has_sinks, in_fp8=in_fp8).items()))
    compiled = _compiled("attention/flash", defines, "sm_90")
    usage = compiled.usage["flash"]
    assert usage.spill_bytes == usage.stack_bytes == 0
    assert flash.shared_bytes(in_fp8=in_fp8) <= DEVICES["sm_90"].shared_memory_per_block_optin
    (tmp_path / "cubin").write_bytes(compiled.cubin)
    sass = subprocess.run(
        [nvdisasm, "-c", tmp_path / "cubin"], capture_output=True, text=True, check=True
    ).stdout  # fmt: skip
    # Blocks of the loop, one more, and the last one of either path; the scores of the first block.
    assert sass.count("HGMMA") == 4 * (2 * 2 + 2 + 2 + 1)
    assert not overwritten_operands(sass)
    waits_for_each = in_fp8 and warpgroups == 3
    assert sass.count("WARPGROUP.DEPBAR") == (sass.count("HGMMA") if waits_for_each else 2 * 5 + 2)
    if waits_for_each:
        return
    loop = sass[sass.index("WARPGROUP.DEPBAR.LE gsb0, 0x2") :]
    assert loop[: loop.index("WARPGROUP.DEPBAR.LE gsb0, 0x1")].count("MUFU.EX2") >= 32


LOOP = """
        /*0000*/                   UBLKCP.S.G [UR10], [UR8], UR6, desc[UR4] ;
.L_x_1:
        /*0010*/                   LDS.128 R8, [R2] ;
        /*0020*/                   LDS.64 R12, [R2+0x100] ;
        /*0030*/                   HMMA.16816.F32.BF16 R20, R8, R30, R20 ;
        /*0040*/              @P0 BRA `(.L_x_2) ;
{first}
.L_x_2:
        /*0060*/              @P1 UBLKCP.S.G [UR10], [UR8], UR6, desc[UR4] ;
{second}
        /*0080*/              @P2 BRA `(.L_x_1) ;
        /*0090*/                   EXIT ;
"""
USE = "        /*0050*/                   IADD3 R4, R13, 0x1, RZ ;"


def test_copies_in_front_of_a_use_are_found():
    (fault,) = unfinished_loads(LOOP.format(first="", second=USE))
    assert fault[0].startswith("LDS.64 R12") and fault[1].startswith("UBLKCP")
    assert unfinished_loads(LOOP.format(first=USE, second="")) == {fault}  # where P0 holds
    assert not unfinished_loads(LOOP.replace("@P0 BRA", "@P0 NOP").format(first=USE, second=""))

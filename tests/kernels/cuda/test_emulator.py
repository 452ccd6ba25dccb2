"""The emulator names what a kernel does wrong."""

import re
from pathlib import Path

import pytest
import torch
from tests.kernels.cuda.emulator import emulated

from eyas.kernels.cuda.compiler import FOLDER

HERE = Path(__file__).parent


def _launch(name: str, block: int, *args: object, shared: int = 0, seed: int = 0) -> None:
    emulated("faults", folder=HERE, seed=seed).kernel(name).launch(2, block, *args, shared=shared)


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("past_the_end", (torch.zeros(64), 64), "out of bounds"),
        ("past_shared", (), "out of bounds"),
        ("half_a_warp", (torch.zeros(64),), "deadlock, 16 threads wait for ever.*0: __shfl_xor_sync"),
        ("two_operations", (torch.zeros(64),), "meet in __shfl_xor_sync and in __ballot_sync"),
        ("no_wait", (torch.zeros(64),), "without pdl_wait"),
        ("early_read", (torch.zeros(64), torch.zeros(4)), "load_16_if before pdl_wait"),
        ("misaligned", (torch.zeros(64), torch.zeros(8)), "not aligned to 16"),
        ("misaligned_store", (torch.zeros(68),), "not aligned to its type"),
        ("no_wgmma_wait", (), "ended without wgmma_wait"),
    ],
)
def test_a_fault_is_named(name: str, args: tuple, message: str):
    with pytest.raises(RuntimeError, match=rf"{name}, block .*{message}"):
        _launch(name, 32, *args, shared=128)


@pytest.mark.parametrize(("header", "begins"), [("common.cuh", "#else"), ("wgmma.cuh", "#ifndef EYAS_EMULATE")])
def test_it_has_every_helper_of_the_device(header, begins):
    helper = re.compile(r"^DEVICE [\w ]+ (\w+)\(", re.MULTILINE)
    device = (FOLDER / header).read_text().split(begins)[1].split("#endif  // EYAS_EMULATE")[0]
    emulator = (HERE / "emulator" / "emulate.h").read_text()
    only_inside_others = {"shared_address"}
    assert set(helper.findall(device)) - only_inside_others <= set(helper.findall(emulator))


def test_shared_memory_starts_as_nan():
    out = torch.zeros(32)
    _launch("unwritten_shared", 32, out, shared=128)
    assert out.isnan().all()


@pytest.mark.parametrize("seed", [0, 1])
def test_a_missing_barrier_gives_wrong_results(seed: int):
    out = torch.zeros(64)
    _launch("missing_barrier", 64, out, shared=256, seed=seed)
    assert out.isnan().any()


def test_after_a_fault_the_next_launch_is_right():
    with pytest.raises(RuntimeError):
        _launch("half_a_warp", 32, torch.zeros(64))
    out = torch.zeros(32)
    emulated("faults", folder=HERE).kernel("no_wait").launch(1, 32, out, pdl=False)
    assert out.eq(1).all()

"""Prompt kernels compile for GPUs that are not here, use their matrix units, and fit into their shared memory."""

import os
import subprocess
import sys

import pytest
from tests.kernels.support.hazards import overwritten_operands
from tests.kernels.support.offline import SHARED_BYTES

UNIT = {90: "wgmma.mma", 100: "tcgen05.mma", 120: "mma.sync", 121: "mma.sync"}

# Rows of a prompt, which have tiles of their own. Kernels have run on Hopper alone so far: one size for other GPUs.
CASES = [pytest.param(90, (128, 512, 1024, 8192), marks=pytest.mark.slow)]
CASES += [pytest.param(arch, (8192,), marks=pytest.mark.slow) for arch in UNIT if arch != 90]
CASES += [pytest.param(arch, (128, 512), marks=pytest.mark.soak) for arch in UNIT if arch != 90]


@pytest.mark.parametrize(("arch", "sizes"), CASES, ids=str)
def test_compiles_without_a_gpu(arch, sizes, tmp_path):
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.kernels.support.offline", str(arch), *map(str, sizes)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    names = {name for name, *_ in lines}
    products = {"_linear_kernel", "_add_kernel", "_qkv_kernel", "_flash_kernel", "_route_kernel", "_experts_kernel"}
    if arch == 90:
        products |= {"_linear_streamed_kernel", "_add_streamed_kernel", "_qkv_streamed_kernel"}
    assert products < names
    for name, shared, *units in lines:
        assert int(shared.removeprefix("shared=")) <= SHARED_BYTES[arch], name
        assert units == ([UNIT[arch]] if name in products else []), name


LOOP = """
.L_x_1:
        /*0100*/                   HMUL2.BF16_V2 R{first}, R5, R4.reuse.H0_H0 ;
        /*0110*/                   HGMMA.64x128x16.F32.BF16 R24, R88, gdesc[UR8], R24, gsb0 ;
        /*0120*/                   WARPGROUP.DEPBAR.LE gsb0, {pending} ;
        /*0130*/                   HGMMA.64x128x16.F32.BF16 R24, R92, gdesc[UR8], R24, gsb0 ;
        /*0140*/              @!P1 BRA `(.L_x_1) ;
"""


@pytest.mark.parametrize(
    ("first", "pending", "num_races"),
    [
        (92, "0x0", 1),  # the second instruction is in flight when the next round begins
        (88, "0x0", 0),  # the first one was waited for
        (88, "0x1", 1),
        (96, "0x1", 0),
    ],
)
def test_races_are_found(first, pending, num_races):
    assert len(overwritten_operands(LOOP.format(first=first, pending=pending))) == num_races

"""Kernels of training compile for Hopper without one, use its matrix units, and spill no registers."""

import os
import subprocess
import sys

import pytest

PRODUCTS = {"_forward_kernel", "query_kernel", "key_kernel"}


@pytest.mark.slow
def test_compiles_without_a_gpu(tmp_path):
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.kernels.support.training_offline"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {name: words for name, *words in map(str.split, done.stdout.splitlines())}
    assert found.keys() >= PRODUCTS
    for name, words in found.items():
        assert words == (["wgmma.mma"] if name in PRODUCTS else []), name

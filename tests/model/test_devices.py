"""Free memory, and devices by name."""

import os
import subprocess
import sys

import pytest
import torch

from eyas.base.errors import UserError
from eyas.model.devices import ALLOCATOR_SETTINGS, available_bytes, grow_segments, pick_device

CPU = torch.device("cpu")


def test_available_bytes_is_less_than_the_machine_has():
    assert 1 << 20 < available_bytes(CPU) < 1 << 50


def test_a_cpu_computes_in_fp32():
    assert pick_device("cpu") == (CPU, torch.float32)


@pytest.mark.parametrize(
    ("name", "said"), [("tpu9", "is not a device"), ("meta", "not supported"), ("cuda:99", "there is no device")]
)
def test_devices_that_are_refused(name, said):
    with pytest.raises(UserError, match=said):
        pick_device(name)


@pytest.mark.parametrize("name", ALLOCATOR_SETTINGS)
def test_the_allocator_settings_of_the_user_stand(name):
    environ = {name: "max_split_size_mb:512"}
    grow_segments(environ)
    assert environ == {name: "max_split_size_mb:512"}


def printed_by(program):
    """What a Python program prints in a process without allocator settings."""
    environ = {name: value for name, value in os.environ.items() if name not in ALLOCATOR_SETTINGS}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_torch_reads_the_settings_that_are_made_after_it_was_imported():
    program = (
        "import torch; from eyas.model.devices import grow_segments; grow_segments();"
        "print(torch._C._accelerator_getAllocatorSettings())"
    )
    assert printed_by(program) == "expandable_segments:True"


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("prepared", "reserved"), [("", 2), ("from eyas.model.devices import grow_segments as grow; grow();", 1)]
)
def test_large_tensors_use_what_small_ones_released(prepared, reserved):
    """64 tensors of 32 MiB, and after them 32 of 64 MiB."""
    program = (
        f"import torch; {prepared} small = [torch.empty(2**25, dtype=torch.uint8, device='cuda') for _ in range(64)];"
        "del small; large = [torch.empty(2**26, dtype=torch.uint8, device='cuda') for _ in range(32)];"
        "print(round(torch.cuda.memory_reserved() / 2**31))"
    )
    assert int(printed_by(program)) == reserved

"""What `nvidia-smi` says, read: units left out, cells that a GPU does not fill, a last line that was cut off."""

import subprocess
import time

import pytest
import torch

from eyas.bench.gpu_meter import GpuMeter, read_meter
from eyas.model.hardware import hardware


def test_readings():
    readings = read_meter("1980, 3201, 512.31, 41\n1770, 3201, 686.46, 58\n19")
    assert {name: spread.values for name, spread in readings.items()} == {
        "sm_mhz": (1980, 1770), "memory_mhz": (3201, 3201), "watts": (512.31, 686.46), "celsius": (41, 58),
    }  # fmt: skip


def test_what_a_gpu_does_not_tell_is_left_out():
    assert set(read_meter("2418, [N/A], 11.5, 40\n")) == {"sm_mhz", "watts", "celsius"}


def test_without_a_gpu_there_is_nothing_to_read():
    with GpuMeter(None) as meter:
        pass
    assert meter.text() == "" and meter.json() == {} and read_meter("") == {}


@pytest.mark.gpu
def test_meter_reads_the_gpu_that_computes():
    """Also where `CUDA_VISIBLE_DEVICES` renumbers them."""
    gpu_id = hardware(torch.device("cuda")).gpu_id
    query = ("nvidia-smi", "--query-gpu=uuid,pci.bus_id", "--format=csv,noheader")
    bus_ids = dict(line.split(", ") for line in subprocess.check_output(query, text=True).splitlines())
    assert int(bus_ids[gpu_id].split(":")[1], 16) == torch.cuda.get_device_properties(0).pci_bus_id
    with GpuMeter(gpu_id) as meter:
        time.sleep(1.5)
    assert meter.readings["watts"].median > 0

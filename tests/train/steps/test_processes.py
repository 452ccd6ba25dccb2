"""Processes of a run: alone each answer is its own, and each has a device of its own."""

import pytest
import torch

from eyas.train.steps.processes import Processes, local_device


def test_one_process_is_its_own_sum():
    processes, tensor = Processes(), torch.tensor([1.5])
    processes.add([tensor])
    processes.wait()
    assert tensor.item() == 1.5 and processes.is_first
    assert processes.any(True) and not processes.any(False) and processes.of_first(0.1) == 0.1


@pytest.mark.parametrize(
    ("name", "has_gpu", "rank", "device"),
    [
        ("auto", True, "1", "cuda:1"),
        ("cuda", True, "0", "cuda:0"),
        ("cuda:3", True, "1", "cuda:3"),
        ("cpu", True, "1", "cpu"),
        ("auto", False, "1", "auto"),
        ("auto", True, None, "auto"),
    ],
)
def test_processes_of_one_machine_have_devices_of_their_own(monkeypatch, name, has_gpu, rank, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    assert local_device(name) == device

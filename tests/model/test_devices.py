"""Free memory, and devices by name."""

import pytest
import torch

from eyas.base.errors import UserError
from eyas.model.devices import available_bytes, pick_device

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

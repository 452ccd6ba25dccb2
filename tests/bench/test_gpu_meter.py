"""What `nvidia-smi` says, read: units left out, cells that a GPU does not fill, a last line that was cut off."""

from eyas.bench.gpu_meter import GpuMeter, read_meter


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

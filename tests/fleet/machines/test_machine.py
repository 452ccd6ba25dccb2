"""What the tools of a machine print, read strictly. The texts are captured or quoted; see `stand_ins.py`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fleet.support import stand_ins

from eyas.fleet.machines.machine import GPU_FIELDS, read_docker, read_gpus, read_interfaces, read_links, read_meminfo

GIB = 1 << 30
IP_JSON = """[{"ifname":"lo","addr_info":[{"family":"inet","local":"127.0.0.1","scope":"host"}]},
{"ifname":"enp1s0f1np1","addr_info":[{"family":"inet","local":"192.168.200.12","prefixlen":24,"scope":"global"},
{"family":"inet6","local":"fe80::4ebb:47ff:fe2c:1","prefixlen":64,"scope":"link"}]}]"""


def ended(*lines, code=0):
    return "\n".join([*lines, f"exit {code}"])


def test_a_machine_of_eight_gpus():
    gpus, problems = read_gpus(ended(*stand_ins.H200_ROWS))
    assert [gpu.index for gpu in gpus] == list(range(8))
    assert {gpu.name for gpu in gpus} == {"NVIDIA H200"}
    assert gpus[0].memory_bytes == 143771 << 20
    assert gpus[0].usable_bytes == (143771 - 614) << 20
    assert gpus[0].free_bytes == 143156 << 20
    assert (gpus[0].compute_capability, gpus[0].driver, problems) == ("9.0", "580.159.04", ())


def test_a_gpu_in_the_memory_of_the_machine():
    gpus, problems = read_gpus(ended(stand_ins.GB10_ROW))
    assert (gpus[0].memory_bytes, gpus[0].usable_bytes, gpus[0].free_bytes) == (None, None, None)
    assert problems == ()


def test_a_gpu_that_mig_has_split():
    gpus, _ = read_gpus(ended(stand_ins.H200_ROWS[0].replace("Disabled", "Enabled")))
    assert gpus[0].is_split


@pytest.mark.parametrize(
    ("lines", "code", "words"),
    [
        ((), 127, ""),
        ((stand_ins.DRIVER_FAILED,), 9, "exit code 9"),
        (("Failed to initialize NVML: Driver/library version mismatch",), 18, "reboot"),
        (("No devices were found",), 6, "finds no GPU"),
        (('Field "compute_cap" is not a valid field to query.',), 2, "too old"),
        ((), 124, "does not answer"),
    ],
)
def test_a_driver_that_fails_is_one_line_with_the_next_step(lines, code, words):
    gpus, problems = read_gpus(ended(*lines, code=code))
    assert gpus == ()
    assert (words in problems[0] and ";" in problems[0] and "\n" not in problems[0]) if words else problems == ()


def test_a_gpu_without_a_driver_is_seen_on_the_bus():
    assert "no driver" in read_gpus(ended(code=127), has_device=True)[1][0]


@pytest.mark.parametrize(
    "line",
    [
        "0, NVIDIA H200, 9.0, 143771",
        "GPU is lost",
        stand_ins.H200_ROWS[0].replace("143771", "[Unknown Error]"),
        stand_ins.H200_ROWS[0].replace("9.0", "[Insufficient Permissions]"),
        stand_ins.H200_ROWS[0].replace("GPU-", "??-"),
        stand_ins.H200_ROWS[0] + ", 1",
    ],
)
def test_an_odd_row_is_named_and_left_out(line):
    gpus, problems = read_gpus(ended(stand_ins.H200_ROWS[1], line))
    assert len(gpus) == 1
    assert len(problems) == 1


@given(st.lists(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=10), max_size=4))
def test_nothing_that_nvidia_smi_could_print_is_an_error(rows):
    lines = [" ".join(", ".join(fields).split()) for fields in rows]
    gpus, problems = read_gpus(ended(*lines))
    assert len(gpus) + len(problems) == len([line for line in lines if line])


def test_memory():
    text = "MemTotal:       127600748 kB\nMemFree:         1000 kB\nHugePages_Total:       0\nSwapFree:   11856636 kB\n"
    assert read_meminfo(text) == {"MemTotal": 127600748 << 10, "MemFree": 1000 << 10, "SwapFree": 11856636 << 10}


def test_links():
    assert read_links(stand_ins.TWO_H200_TOPOLOGY) == ("NV18",)
    three = "\tGPU0\tGPU1\tGPU2\tNIC0\nGPU0\t X \tPHB\tSYS\tPIX\nGPU1\tPHB\t X \tSYS\tPIX\nGPU2\tSYS\tSYS\t X\tPIX"
    assert read_links(three) == ("PHB", "SYS")
    assert read_links("\tGPU0\tCPU Affinity\nGPU0\t X \t0-19\n") == ()
    assert read_links("") == ()


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("28.2.2\n\nexit 0", "usable"),
        ("timeout: failed to run command 'docker': No such file or directory\n\nexit 127", "missing"),
        ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is it running?\n\nexit 1", "not running"),
        (
            "permission denied while trying to connect to the Docker daemon socket at unix:///var\n\nexit 1",
            "not permitted",
        ),
        ("something else\n\nexit 1", "broken"),
        ("\nexit 124", "broken"),
    ],
)
def test_docker(text, state):
    assert read_docker(text, "").state == state


def test_docker_knows_gpus_by_its_runtime_or_the_toolkit():
    assert read_docker("28.2.2\nexit 0", "io.containerd.runc.v2 nvidia runc ").has_gpus
    assert read_docker("28.2.2\nexit 0", "runc \n/usr/bin/nvidia-ctk").has_gpus
    assert not read_docker("28.2.2\nexit 0", "runc ").has_gpus


def test_interfaces_of_a_spark_with_one_cable():
    text = (
        "enP7s7 up 1000 -\nenp1s0f0np0 down - rocep1s0f0\nenp1s0f1np1 up 200000 rocep1s0f1\n"
        "enP2p1s0f0np0 down -1 roceP2p1s0f0\nenP2p1s0f1np1 up 200000 roceP2p1s0f1"
    )
    found = {interface.name: interface for interface in read_interfaces(text, IP_JSON)}
    assert found["enp1s0f1np1"].addresses == ("192.168.200.12", "fe80::4ebb:47ff:fe2c:1")
    assert (found["enp1s0f1np1"].speed, found["enp1s0f1np1"].rdma) == (200e9, "rocep1s0f1")
    assert (found["enp1s0f0np0"].is_up, found["enP2p1s0f0np0"].speed) == (False, None)


def test_the_fields_asked_for_are_as_many_as_a_row_has():
    assert len(stand_ins.GB10_ROW.split(", ")) == len(GPU_FIELDS)

"""The machine at hand as a box. GPUs are stand-ins (a program called nvidia-smi); all else is this very machine."""

import os
import platform
import shutil
from pathlib import Path

import pytest
from tests.fleet.support import stand_ins

from eyas.base.errors import UserError
from eyas.fleet.machines.machine import Docker, Interface, Machine, read_gpus
from eyas.fleet.machines.node import LocalNode, NodeError, Result
from eyas.fleet.machines.probe import box_of, look, probe
from eyas.recipes.knowledge.tables import knowledge

GIB = 1 << 30


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A folder whose programs are found first; without more, no GPU and no docker."""
    folder = tmp_path / "bin"
    for name in ("nvidia-smi", "docker"):
        stand_ins.put(folder, name, "exit 127")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def machine(*rows, architecture="x86_64", memory=64 * GIB, interfaces=()):
    gpus, problems = read_gpus("\n".join([*rows, "exit 0"]) if rows else "exit 127")
    return Machine(
        user="ann",
        architecture=architecture,
        gpus=gpus,
        memory_bytes=memory,
        available_bytes=memory,
        free_bytes=memory,
        swap_bytes=0,
        swap_free_bytes=0,
        disk_path="/",
        disk_free_bytes=1 << 40,
        docker=Docker(state="missing"),
        interfaces=interfaces,
        problems=problems,
    )


def test_what_this_machine_is(tools, tmp_path):
    found = look(LocalNode(), cache=f"{tmp_path}/it's $HOME/cache")
    assert found.architecture == platform.machine()
    assert found.memory_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < found.available_bytes <= found.memory_bytes
    assert found.disk_path == str(tmp_path)  # the cache itself is not there yet
    free = shutil.disk_usage(tmp_path).free
    assert abs(found.disk_free_bytes - free) < 1 << 30  # others write, too
    assert {"lo", *(item.name for item in found.interfaces)} == {path.name for path in Path("/sys/class/net").iterdir()}
    assert (found.gpus, found.docker.state) == ((), "missing")
    assert not (tmp_path / "it's $HOME").exists()


def test_gpus_links_and_docker_of_this_machine(tools):
    stand_ins.nvidia_smi(tools, *stand_ins.H200_ROWS[:2], topology=stand_ins.TWO_H200_TOPOLOGY)
    stand_ins.docker(tools)
    found = look(LocalNode())
    assert (len(found.gpus), found.problems) == (2, ())
    assert found.links == ("NV18",)
    assert found.docker == Docker(state="usable", version="28.2.2", has_gpus=True)
    box = probe()
    assert (box.name, box.hardware.name, box.gpus, box.nodes, box.is_probed) == ("here", "h200", 2, 1, True)
    assert (box.driver, box.hardware.memory_bytes) == ("580.159.04", 143771 << 20)


@pytest.mark.parametrize(
    ("rows", "name", "count"),
    [
        (stand_ins.H200_ROWS, "h200", 8),
        ((stand_ins.PRO_6000_ROW,), "rtx-pro-6000", 1),
        ((stand_ins.RTX_5090_ROW,), "rtx-5090", 1),
    ],
)
def test_a_known_gpu_is_that_of_the_table_with_the_sizes_of_the_machine(rows, name, count):
    box = box_of(machine(*rows))
    table = knowledge().hardware[name]
    assert (box.hardware.name, box.gpus) == (name, count)
    assert abs(box.hardware.usable_bytes - table.usable_bytes) < 0.01 * table.usable_bytes
    assert box.hardware.bandwidth == table.bandwidth
    assert not box.hardware.unified


def test_a_spark_has_the_memory_of_its_system():
    box = box_of(machine(stand_ins.GB10_ROW, architecture="aarch64", memory=127600748 << 10))
    assert (box.hardware.name, box.architecture, box.hardware.unified) == ("spark", "aarch64", True)
    assert box.hardware.usable_bytes == 127600748 << 10


def test_an_unknown_gpu_is_made_from_the_probe_and_said_to_be():
    row = stand_ins.H200_ROWS[0].replace("NVIDIA H200", "NVIDIA H300 PCIe").replace("143771", "99999")
    box = box_of(machine(row))
    assert (box.hardware.name, box.hardware.memory_bytes) == ("h300-pcie", 99999 << 20)
    nines = [item.bandwidth for item in knowledge().hardware.values() if item.compute_capability.startswith("9.")]
    assert box.hardware.bandwidth == min(nines)
    assert box.hardware.measured_bandwidth is None
    assert "not in the table" in box.hardware.advice[0]
    assert box_of(machine(row), bandwidth=3e12).hardware.measured_bandwidth == 3e12


def test_a_known_name_with_another_compute_capability_is_not_known():
    assert box_of(machine(stand_ins.H200_ROWS[0].replace("9.0", "9.9"))).hardware.name == "h200"  # its own record
    assert "not in the table" in box_of(machine(stand_ins.H200_ROWS[0].replace("9.0", "9.9"))).hardware.advice[0]


def test_of_mixed_gpus_those_with_most_memory_together():
    box = box_of(machine(stand_ins.RTX_5090_ROW, stand_ins.PRO_6000_ROW.replace("0,", "1,", 1)))
    assert (box.hardware.name, box.gpus) == ("rtx-pro-6000", 1)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (machine(), "--on spark"),
        (machine(stand_ins.H200_ROWS[0].replace("Disabled", "Enabled")), "nvidia-smi -mig 0"),
        (machine("what is this"), "oddly"),
        (machine(stand_ins.H200_ROWS[0], architecture="riscv64"), "riscv64"),
    ],
)
def test_no_gpu_that_can_be_used_is_one_line(found, words):
    with pytest.raises(UserError) as raised:
        box_of(found)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_broken_driver_of_this_machine_is_the_error(tools):
    stand_ins.nvidia_smi(tools, stand_ins.DRIVER_FAILED, code=9)
    with pytest.raises(UserError, match="reinstall the driver"):
        probe()


def test_the_port_whose_cable_is_in():
    names = ("enp1s0f0np0", "enP2p1s0f0np0", "enp1s0f1np1", "enP2p1s0f1np1")
    right = tuple(Interface(name=name, is_up=name.endswith("np1")) for name in names)
    half = tuple(Interface(name=name, is_up=name == "enp1s0f0np0") for name in names)
    assert machine(interfaces=right).port_pair == ("enp1s0f1np1", "enP2p1s0f1np1")
    assert machine(interfaces=half).port_pair == ()


def test_a_machine_that_is_no_linux_is_refused():
    class Other:
        name, is_local = "mac", True

        def run(self, script, *, timeout_s=30):
            return Result(0, "\n%%% user\nann\n\n%%% architecture\narm64\n", "")

        def transport(self, host, port):
            raise NotImplementedError

    with pytest.raises(NodeError, match="mac cannot be probed"):
        look(Other())


def test_the_script_leaves_nothing_behind(tools, tmp_path):
    before = sorted(Path(tmp_path).rglob("*"))
    look(LocalNode(), cache=str(tmp_path / "cache"))
    assert sorted(Path(tmp_path).rglob("*")) == before

"""Measurement files: whose they are, and that those of another machine or of other weights are not used."""

import os

import pytest
from msgspec.structs import replace

from eyas.base.errors import UserError
from eyas.fleet.machines import measurements
from eyas.fleet.machines.machine import Docker, Gpu, Machine
from eyas.fleet.machines.measurements import file_of, identity, measured_here, read, weights_of, write
from eyas.recipes.measured import Measurements
from eyas.recipes.plan import Measured, Range
from eyas.recipes.planning.ask import Ask

MACHINE = Machine(
    user="me",
    architecture="x86_64",
    gpus=(),
    memory_bytes=24 << 30,
    available_bytes=20 << 30,
    free_bytes=10 << 30,
    swap_bytes=0,
    swap_free_bytes=0,
    disk_path="/",
    disk_free_bytes=1 << 40,
    docker=Docker(state="missing"),
)
GPU = Gpu(
    index=0,
    name="NVIDIA H200",
    compute_capability="9.0",
    memory_bytes=143 << 30,
    usable_bytes=140 << 30,
    free_bytes=140 << 30,
    driver="570.1",
    uuid="GPU-1",
)
ROW = Measured(
    engine="eyas",
    version="0.1.0",
    context=128,
    concurrency=4,
    windows=1,
    tokens_per_second=100.0,
    interval=None,
    expected=Range(low=50.0, high=150.0),
    date="2026-11-26",
)
DEMO = Ask(model="demo")


def kept(home, ask, machine=MACHINE):
    found = Measurements(machine=identity(machine), model=ask.model, weights=weights_of(ask), rows=(ROW,))
    write(file_of(home, ask), found)
    return found


def test_machines_by_gpus_and_driver_or_by_processor(monkeypatch):
    two = replace(MACHINE, gpus=(GPU, replace(GPU, index=1)))
    assert identity(two) == "2 x NVIDIA H200, driver 570.1"
    monkeypatch.setattr(measurements, "_cpuinfo", lambda: ["processor : 0", "model name\t: AMD EPYC"])
    assert identity(MACHINE) == f"AMD EPYC, {len(os.sched_getaffinity(0))} cores, 24 GiB"


def test_what_is_kept_is_found_on_this_machine_alone(tmp_path):
    kept(tmp_path, DEMO)
    assert measured_here(tmp_path, DEMO, MACHINE) == (ROW,)
    assert measured_here(tmp_path, DEMO, replace(MACHINE, memory_bytes=48 << 30)) == ()
    assert measured_here(tmp_path, DEMO, replace(MACHINE, gpus=(GPU,))) == ()
    assert measured_here(tmp_path, Ask(model="gpt-oss-20b"), MACHINE) == ()
    assert measured_here(tmp_path / "none", DEMO, MACHINE) == ()


def test_a_model_has_one_file_under_all_of_its_names(tmp_path):
    kept(tmp_path, Ask(model="gpt-oss-120b"))
    assert measured_here(tmp_path, Ask(model="openai/gpt-oss-120b"), MACHINE) == (ROW,)


def test_other_weights_or_another_rate_are_not_the_same(tmp_path):
    random = Ask(model="random:gpt-oss-120b", simulate_acceptance="0.7")
    kept(tmp_path, random)
    assert measured_here(tmp_path, random, MACHINE) == (ROW,)
    assert measured_here(tmp_path, replace(random, simulate_acceptance="0.5"), MACHINE) == ()
    assert measured_here(tmp_path, Ask(model="gpt-oss-120b"), MACHINE) == ()
    model = tmp_path / "target"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"1")
    folder = Ask(model=str(model))
    kept(tmp_path, folder)
    assert measured_here(tmp_path, folder, MACHINE) == (ROW,)
    (model / "model.safetensors").write_bytes(b"23")
    assert measured_here(tmp_path, folder, MACHINE) == ()


@pytest.mark.parametrize("data", [b"", b"{}", b'{"machine": 1}', b"\xff"])
def test_a_file_that_is_none_says_so(tmp_path, data):
    path = file_of(tmp_path, DEMO)
    path.parent.mkdir()
    path.write_bytes(data)
    with pytest.raises(UserError, match=f"{path} holds no measurements .*--no-measurements"):
        measured_here(tmp_path, DEMO, MACHINE)


def test_another_format_and_a_disk_that_takes_nothing(tmp_path):
    found = kept(tmp_path, DEMO)
    assert read(file_of(tmp_path, DEMO)) == found
    write(file_of(tmp_path, DEMO), replace(found, format=2))
    with pytest.raises(UserError, match="has format 2, this eyas reads format 1"):
        read(file_of(tmp_path, DEMO))
    with pytest.raises(UserError, match="cannot be written"):
        write(tmp_path / "measurements" / "demo.json" / "x", found)

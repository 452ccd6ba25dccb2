"""`eyas doctor` on this machine, as it is and with stand-ins for the tools of others; and with real ssh nowhere."""

import json
import os

import pytest
from tests.fleet.support import stand_ins

from eyas.cli import main
from eyas.fleet.commands import checkup
from eyas.fleet.commands.checkup import examine
from eyas.fleet.machines.bandwidth import measure
from eyas.fleet.machines.machine import Docker, Machine, read_gpus
from eyas.fleet.machines.node import LocalNode

GIB = 1 << 30
WIDTH, HEIGHT = 130, 40  # of a screen


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Programs of other machines, found first; without more, no GPU and no docker."""
    folder = tmp_path / "bin"
    for name in ("nvidia-smi", "docker"):
        stand_ins.put(folder, name, "exit 127")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return folder


def machine(*rows, **fields):
    gpus, problems = read_gpus("\n".join([*rows, "exit 0"]))
    defaults = {
        "user": "ann",
        "architecture": "x86_64",
        "gpus": gpus,
        "problems": problems,
        "memory_bytes": 256 * GIB,
        "available_bytes": 250 * GIB,
        "free_bytes": 249 * GIB,
        "swap_bytes": 8 * GIB,
        "swap_free_bytes": 8 * GIB,
        "disk_path": "/",
        "disk_free_bytes": 2000 * GIB,
        "docker": Docker(state="usable", version="28.2.2", has_gpus=True),
    }
    return Machine(**(defaults | fields))


SPARK = {
    "architecture": "aarch64",
    "memory_bytes": 127600748 << 10,
    "available_bytes": 115 * GIB,
    "free_bytes": 112 * GIB,
}


@pytest.fixture
def examined(tools, monkeypatch):
    """What doctor finds where the machine is the given one."""

    def examine_as(*rows, **fields):
        monkeypatch.setattr(checkup, "look", lambda node: machine(*rows, **fields))
        return examine(LocalNode(), environ={"HF_TOKEN": "x"})

    return examine_as


def test_a_machine_without_a_gpu_can_try_and_plan(tools, capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "none that can be used" in out
    assert "eyas serve " in out
    assert "eyas plan gpt-oss-120b --on spark" in out
    assert "no NVIDIA GPU" in out
    assert "demo" in out


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (stand_ins.H200_ROWS, ("8 x NVIDIA H200", "linked by NV18", "gpt-oss-120b", "eyas up gpt-oss-120b")),
        ((stand_ins.PRO_6000_ROW,), ("RTX PRO 6000", "94.97 GiB", "1,792 GB/s by its datasheet", "gpt-oss-120b")),
        ((stand_ins.RTX_5090_ROW,), ("too large: gpt-oss-120b", "eyas up gpt-oss-20b")),
    ],
)
def test_machines_with_gpus_on_one_screen(tools, capsys, rows, words):
    stand_ins.nvidia_smi(tools, *rows, topology=stand_ins.TWO_H200_TOPOLOGY)
    stand_ins.docker(tools)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in words)
    assert "oddly" not in out
    lines = out.splitlines()
    assert len(lines) <= HEIGHT
    assert max(len(line) for line in lines if not line.startswith("  disk")) <= WIDTH  # a folder of any length


def test_a_spark_and_what_fits_there(examined):
    found = examined(stand_ins.GB10_ROW, **SPARK)
    assert found.box.hardware.name == "spark"
    assert {"gpt-oss-120b", "gpt-oss-20b"} <= {fit.model for fit in found.fits}
    assert "qwen3-235b-a22b-fp4" in found.too_large
    assert all(fit.max_context > 0 and fit.tokens_per_second.low > 0 for fit in found.fits)
    assert not any(item.is_needed for item in found.missing if "installed" not in item.message)


@pytest.mark.parametrize(
    ("rows", "fields", "message", "step"),
    [
        (
            (stand_ins.GB10_ROW,),
            {"docker": Docker(state="not permitted")},
            "ann may not use docker: most engines come as images",
            "usermod -aG docker ann",
        ),
        ((stand_ins.GB10_ROW,), {"docker": Docker(state="usable", version="28")}, "hand GPUs", "nvidia-ctk"),
        ((stand_ins.GB10_ROW,), {"swap_bytes": 0}, "no swap", "swap"),
        ((stand_ins.GB10_ROW,), {"free_bytes": 30 * GIB}, "page cache", "drop_caches"),
        ((stand_ins.GB10_ROW.replace("580.126.09", "570.10"),), {}, "driver 570.10 is older than 580", "580"),
        ((stand_ins.H200_ROWS[0].replace("Disabled", "Enabled"),), {}, "split by MIG", "-mig 0"),
        ((stand_ins.H200_ROWS[0],), {"disk_free_bytes": GIB}, "1.00 GiB free", "eyas models rm"),
        (("what is this",), {}, "oddly", "left out"),
    ],
)
def test_what_is_missing_is_one_line_with_the_next_step(examined, rows, fields, message, step):
    found = examined(*rows, **(SPARK | fields if "GB10" in rows[0] else fields))
    (item,) = [item for item in found.missing if message in item.message]
    assert step in item.next_step
    assert "\n" not in item.message + item.next_step


def test_ports_that_somebody_has(examined, monkeypatch):
    assert not any("in use" in item.message for item in examined(*stand_ins.H200_ROWS).missing)
    listening = "section listeners; echo 'LISTEN 0 5 127.0.0.1:30000 0.0.0.0:*'\n"
    monkeypatch.setattr(checkup, "LISTENERS", listening)
    found = examined(*stand_ins.H200_ROWS)
    assert "sglang" in {fit.engine for fit in found.fits}
    assert any("port 30000 is in use" in item.message for item in found.missing)


def test_engines_that_are_installed_are_found(tools, capsys):
    stand_ins.put(tools, "llama-server", "echo 'version: 10158 (a1b2c3d)' >&2")
    stand_ins.put(tools, "ollama", "echo 'ollama version is 0.33.0'")
    assert main(["doctor"]) == 0
    assert "llama.cpp b10158, ollama 0.33.0" in capsys.readouterr().out


def test_json_has_it_all(tools, capsys):
    stand_ins.nvidia_smi(tools, *stand_ins.H200_ROWS[:1])
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["box"]["hardware"]["name"] == "h200"
    assert found["machine"]["gpus"][0]["name"] == "NVIDIA H200"
    assert found["fits"][0]["model"] == "gpt-oss-120b"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("echo some warning; echo bytes per second 4.61e12", 4.61e12),
        ("echo 'No module named torch' >&2; exit 1", None),
        ("echo bytes per second 1.0; exit 1", None),
    ],
)
def test_bandwidth_is_what_a_python_of_its_own_says(tmp_path, monkeypatch, body, expected):
    """The interpreter is a stand-in: on a machine with a GPU its program measured 4.6 TB/s of an H200."""
    monkeypatch.setattr("sys.executable", str(stand_ins.put(tmp_path, "it's python", body)))
    assert measure(LocalNode()) == expected


def test_a_measured_bandwidth_is_shown_as_such(tools, capsys, monkeypatch):
    stand_ins.nvidia_smi(tools, *stand_ins.H200_ROWS[:1])
    monkeypatch.setattr(checkup, "measure", lambda node: 4.61e12)
    assert main(["doctor", "--measure"]) == 0
    assert "4,610 GB/s measured just now, 4,800 GB/s by its datasheet" in capsys.readouterr().out

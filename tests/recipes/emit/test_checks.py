"""What a start script finds wrong before anything is pulled, written or downloaded, and what it says to do."""

import pytest
from msgspec.structs import replace
from tests.recipes.support.plans import Machine, container, plan, put_python

from eyas.recipes.emit import sbatch
from eyas.recipes.emit.checks import check, in_job
from eyas.recipes.emit.shell import render
from eyas.recipes.emit.slurm_mpi import by_slurm
from eyas.recipes.engines.install import how_to_install
from eyas.recipes.knowledge.boxes import parse_box
from eyas.recipes.knowledge.drivers import least_driver
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.plan import Download, Launch, MemoryRow
from eyas.recipes.planning.planner import Ask, make_plan

SMI = """\
import os, sys
what = sys.argv[1].split("=")[1]
print(os.environ["DRIVER"]) if what == "driver_version" else print("81000\\n300")
"""


@pytest.fixture
def machine(tmp_path):
    made = Machine(tmp_path)
    put_python(made.tools / "nvidia-smi", SMI)
    return made


def made(machine, *, box="spark", repo_bytes=1, needed=0, image="registry.example/x:1"):
    """A plan in a container, with a folder that shows whether anything was written."""
    one = plan(
        [Launch(name="server", argv=("serve",), container=container(image=image))],
        downloads=(Download(repo="org/model", num_bytes=repo_bytes),),
        box=parse_box(box),
        directory=f"{machine.folder}/deployment",
        cache=f"{machine.folder}/cache/hub",
    )
    memory = replace(one.memory, rows=(MemoryRow(owner="weights", num_bytes=needed),))
    return replace(one, memory=memory)


def refused(machine, one, driver="580.95.05"):
    """What start.sh says; it must have left everything alone."""
    done = machine.run(render(one), "start.sh", DRIVER=driver)
    assert done.returncode == 1
    assert not (machine.folder / "deployment").exists()
    assert not machine.calls("hf") and not [argv for argv, _, _ in machine.calls("docker") if argv[0] == "pull"]
    return done.stderr


def test_all_is_well(machine):
    assert machine.run(render(made(machine)), "start.sh", DRIVER="580.95.05").returncode == 0


def test_a_driver_that_is_too_old(machine):
    assert "driver 570.124.06 is older than 580: the GPU needs it" in refused(machine, made(machine), "570.124.06")
    one = made(machine, box="h100", image="lmsysorg/sglang:v0.5.21-cu130")
    assert "older than 580: the image brings CUDA 13; install driver 580" in refused(machine, one, "570.124.06")
    assert "nvidia-smi shows no GPU: No devices were found" in refused(machine, one, "No devices were found")


def test_memory_that_is_taken(machine):
    says = refused(machine, made(machine, needed=1 << 50))
    assert "1048576.00 GiB of memory are needed" in says and "end what uses it" in says
    says = refused(machine, made(machine, box="2xh100", needed=60 << 30))
    assert "60.00 GiB must be free on 2 of the GPUs, and are on 1; end what uses them: nvidia-smi" in says


def test_memory_that_a_mac_does_not_have(machine):
    """By default its GPU has three quarters of it; what was set by hand goes before."""
    sysctl = machine.tools / "sysctl"
    sysctl.write_text("#!/bin/sh\ncase $2 in hw.memsize) echo 68719476736 ;; *) exit 1 ;; esac\n")
    sysctl.chmod(0o755)
    one = made(machine, box="mac", needed=50 << 30)
    says = refused(machine, one)
    assert "50.00 GiB are needed, macOS lets the GPU have 48 GiB; for more: sudo sysctl iogpu" in says
    sysctl.write_text("#!/bin/sh\ncase $2 in hw.memsize) echo 68719476736 ;; *) echo 56000 ;; esac\n")
    assert machine.run(render(one), "start.sh", DRIVER="").returncode == 0


def test_the_routers_port_and_program(machine):
    one = make_plan(Ask(model="gpt-oss-120b", on="2xspark", engine="sglang", purpose="claude-code"))
    assert (
        check(one, 0).count(
            "need eyas 'it is the router in front of the engine; install its wheel: pip install eyas-*.whl'"
        )
        == 1
    )
    assert not any("eyas" in line for line in check(one, 1) if line.startswith("need "))
    ports = [line for line in check(one, 0) if "is in use" in line]
    assert [port in line for port, line in zip(("30000", "8100"), ports, strict=True)] == [True, True]
    assert any("need eyas" in line for line in in_job(one, 0)) and not any("need eyas" in x for x in in_job(one, 1))


def test_an_image_of_all_nodes_wants_its_driver_on_all():
    """Slurm starts tasks on every node from one launch."""
    one = make_plan(Ask(model="gpt-oss-120b", on="8xgb200", engine="tensorrt-llm", nodes=("a=10.0.0.1", "b=10.0.0.2")))
    for node in (0, 1):
        assert "driver_from 580 'the image brings CUDA 13'" in in_job(by_slurm(one), node)


def test_a_disk_that_is_too_small(machine):
    says = refused(machine, made(machine, repo_bytes=1 << 60))
    assert "GiB are still to download" in says and f"{machine.folder} has" in says


def test_what_is_downloaded_already_counts(machine):
    """All but one KiB of 1 EiB is on a disk that has not that much free."""
    folder = machine.folder / "cache/hub/hub/models--org--model"
    folder.mkdir(parents=True)
    du = machine.tools / "du"
    du.write_text(f"#!/bin/sh\necho {1 << 50} x\n")
    du.chmod(0o755)
    assert machine.run(render(made(machine, repo_bytes=1 << 60)), "start.sh", DRIVER="580.95.05").returncode == 0


def test_a_program_that_is_missing_is_built_for_the_box(machine):
    for tool in ("llama-server", "sglang"):
        assert not (machine.tools / tool).exists()
    ask = Ask(model="gpt-oss-120b", on="spark", engine="llama.cpp")
    says = refused(machine, make_plan(ask))
    assert "llama-server is not installed here; build it: git clone https://github.com/ggml-org/llama.cpp" in says
    assert "-DGGML_CUDA=ON -DGGML_NATIVE=ON -DCMAKE_CUDA_ARCHITECTURES=121a-real" in says


@pytest.mark.parametrize(
    ("engine", "box", "words"),
    [
        ("llama.cpp", "rtx-5090", "-DCMAKE_CUDA_ARCHITECTURES=120a-real"),
        ("llama.cpp", "h100", "-DCMAKE_CUDA_ARCHITECTURES=90-real"),
        ("llama.cpp", "2xrtx-3090", "-DCMAKE_CUDA_ARCHITECTURES=86-real"),
        ("llama.cpp", "mac", "brew install llama.cpp"),
        ("ollama", "spark", "https://ollama.com/install.sh"),
        ("ollama", "mac", "brew install ollama"),
        ("eyas", "spark", "pip install eyas-*.whl"),
        ("vllm", "h100", "pip install vllm==0.33.0"),
    ],
)
def test_how_engines_are_installed(engine, box, words):
    choice = plan([], engine=engine).choice
    assert words in how_to_install(choice, knowledge().engines[engine], parse_box(box))


def test_drivers():
    assert least_driver("9.0", "H100")[0] == "525"
    assert least_driver("9.0", "H100", ["nvcr.io/nvidia/vllm:26.10-py3"]) == ("580", "the image brings CUDA 13")
    for newer in (
        "mirror.example:5000/nvidia/tensorrt-llm/release:1.3.0rc13",
        "lmsysorg/sglang:spark",
        "own/vllm:cu130",
    ):
        assert least_driver("9.0", "H100", ["vllm/vllm-openai:v0.33.0", newer])[0] == "580"
    for older in (
        "nvcr.io/nvidia/vllm:25.10-py3",
        "nvidia/tensorrt-llm/release:1.2.0rc6",
        "own/vllm:26.10",
        "own/vllm",
    ):
        assert least_driver("9.0", "H100", [older])[0] == "525"
    assert least_driver("12.1", "GB10", ["nvcr.io/nvidia/vllm:26.10-py3"])[1] == "the GPU needs it (GB10)"


def test_a_batch_job_checks_its_nodes_before_the_downloads(machine):
    ((_, script),) = sbatch.render(made(machine, needed=1 << 30)).items()
    order = [script.index(words) for words in ("need hf", "room_in /", "driver_from 580 'the", "hf download")]
    assert order == sorted(order)

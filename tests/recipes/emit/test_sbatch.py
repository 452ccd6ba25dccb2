"""The batch script: bash and shellcheck accept it, and what srun is called with is the plan's, word for word."""

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.recipes.support.plans import LINES, SECRET, Machine, container, hostile_plan, plan, put_python

from eyas.base.errors import UserError
from eyas.recipes.emit.sbatch import render
from eyas.recipes.emit.slurm_mpi import by_slurm
from eyas.recipes.knowledge.boxes import parse_box
from eyas.recipes.plan import EnvVar, File, Home, Launch, Mount, Node, Ref, Wait
from eyas.recipes.planning.planner import Ask, make_plan

# Records its call. A server says that it is up and serves until it was asked; all else is run.
SRUN = """\
import json, os, subprocess, sys, time
argv = sys.argv[1:]
env = {key: os.environ[key] for key in ("PLAIN", "TOKEN") if key in os.environ}
with open(os.path.join(os.environ["STAND_INS"], "srun"), "a") as calls:
    calls.write(json.dumps([argv, env]) + "\\n")
command = argv[next(n for n, word in enumerate(argv) if not word.startswith("--")) :]
if "serve" in command[:2]:
    print("engine is up", flush=True)
    while "QUICK" not in os.environ and not os.path.exists(os.path.join(os.environ["STAND_INS"], "asked")):
        time.sleep(0.05)
    sys.exit(0)
sys.exit(subprocess.run(command).returncode)
"""


def run(machine: Machine, made, **environment):
    put_python(machine.tools / "srun", SRUN)
    (machine.tools / "scontrol").write_text("#!/bin/sh\nprintf 'a\\nb\\n'\n")
    (machine.tools / "serve").write_text("#!/bin/sh\n")
    for tool in ("scontrol", "serve"):
        (machine.tools / tool).chmod(0o755)
    ((name, content),) = render(made).items()
    (machine.folder / name).write_text(content)
    env = {"PATH": f"{machine.tools}:{os.environ['PATH']}", "HOME": str(machine.home), "STAND_INS": str(machine.folder)}
    env |= {"SLURM_JOB_NODELIST": "x", "SLURM_JOB_ID": "7", "EYAS_TEST_TOKEN": SECRET, "LANG": "C.UTF-8"} | environment
    command = ["bash", machine.folder / name]
    return subprocess.run(command, env=env, cwd=machine.folder, capture_output=True, text=True, timeout=120)


def calls(machine: Machine):
    return [json.loads(line) for line in (machine.folder / "srun").read_text().splitlines()]


def server(**changes):
    box = container(
        options=("--gpus", "all", "--network=host"),
        mounts=(Mount(source=Home(".cache/a b"), target="/hub"), Mount(source="/x", target="/y", read_only=True)),
    )
    settings = {
        "name": "server",
        "argv": ("serve", LINES, "--key", Ref("EYAS_TEST_TOKEN")),
        "env": (EnvVar(name="PLAIN", value=LINES), EnvVar(name="TOKEN", value=Ref("EYAS_TEST_TOKEN"))),
        "container": box,
        "wait": Wait(log="is up$"),
    }
    return Launch(**(settings | changes))


def test_a_container_arrives_word_for_word(tmp_path):
    machine = Machine(tmp_path)
    made = plan([server()], files=(File(path="a.yaml", content="EOF\nSCRIPT\n"),), box=parse_box("8xb200"))
    done = run(machine, made)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    _, (argv, env) = calls(machine)
    assert argv == [
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        "--nodelist=a",
        "--no-container-mount-home",
        "--container-name=one-server",
        "--container-image=registry.example#x:1",
        f"--container-mounts={machine.home}/.cache/a b:/hub,/x:/y:ro",
        "--container-env=PLAIN,TOKEN",
        "serve",
        LINES,
        "--key",
        SECRET,
    ]
    assert env == {"PLAIN": LINES, "TOKEN": SECRET}
    assert (machine.home / "deployments/one/a.yaml").read_text() == "EOF\nSCRIPT\n"


def test_a_server_that_ends_fails_the_job(tmp_path):
    done = run(Machine(tmp_path), plan([server()]), NEVER="yes", QUICK="yes")
    assert done.returncode == 1
    assert "the server ended" in done.stderr


def test_each_node_gets_its_files_and_its_launches(tmp_path):
    machine = Machine(tmp_path)
    nodes = (Node(name="a"), Node(name="b", ssh="b"))
    launches = [server(name=f"s{rank}", node=rank, container=None, argv=("serve", str(rank))) for rank in (0, 1)]
    made = plan(launches, nodes=nodes, files=(File(path="f", content="x\n", nodes=(1,)),), box=parse_box("2xspark"))
    assert run(machine, made).returncode == 0
    places = [(argv[3], argv[4:]) for argv, _ in calls(machine) if "curl" not in argv]
    assert places == [
        ("--nodelist=a", ["bash"]),
        ("--nodelist=b", ["bash"]),
        ("--nodelist=a", ["serve", "0"]),
        ("--nodelist=b", ["serve", "1"]),
    ]


def test_machines_that_the_plan_names_are_asked_of_slurm_and_keep_their_ranks(tmp_path):
    """Slurm sorts them; the plan's addresses are those of its ranks. The server is asked where it runs."""
    machine = Machine(tmp_path)
    nodes = (Node(name="node-a", ssh="me@spark-7"), Node(name="node-b", ssh="spark-3"))
    launches = [server(name=f"s{rank}", node=rank, container=None, argv=("serve", str(rank))) for rank in (0, 1)]
    made = plan(launches, nodes=nodes, box=parse_box("2xspark"))
    ((_, text),) = render(made).items()
    assert "#SBATCH --nodelist=spark-7,spark-3\n" in text
    assert run(machine, made).returncode == 0
    found = calls(machine)
    assert [argv[3] for argv, _ in found if "serve" in argv] == ["--nodelist=spark-7", "--nodelist=spark-3"]
    asked = [argv[3] for argv, _ in found if "curl" in argv]
    assert len(asked) >= 2 and set(asked) == {"--nodelist=spark-7"}


def test_machines_that_are_not_named_are_slurms_choice():
    nodes = (Node(name="node-a"), Node(name="node-b", ssh="b"))
    ((_, text),) = render(plan([server(container=None)], nodes=nodes, box=parse_box("2xspark"))).items()
    assert "--nodelist=node" not in text and "#SBATCH --nodelist" not in text and "scontrol" in text


def test_the_entry_point_comes_before_the_arguments_and_exec_joins_the_container(tmp_path):
    machine = Machine(tmp_path)
    box = container(options=("--gpus", "all", "--entrypoint", "env"))
    check = Launch(name="check", argv=("true",), inside="server", is_once=True)
    assert run(machine, plan([server(container=box, argv=("serve", "x"), env=()), check])).returncode == 0
    _, (first, _), (second, _) = calls(machine)
    assert first[4:] == [
        *("--no-container-mount-home", "--container-name=one-server", "--container-image=registry.example#x:1"),
        *("env", "serve", "x"),
    ]
    assert second[4:] == ["--no-container-mount-home", "--container-name=one-server:exec", "true"]


def test_ranks_of_tensorrt_llm_are_tasks_of_slurm(tmp_path):
    """What the container mounts is there on both machines, and nothing of sshd."""
    machine = Machine(tmp_path)
    asked = Ask(model="gpt-oss-120b", on="8xgb200", engine="tensorrt-llm", nodes=("a=10.0.0.1", "b=10.0.0.2"))
    made = by_slurm(make_plan(asked))
    (server,) = [launch for launch in made.emission.launches if launch.container is not None]
    assert server.argv[:2] == ("trtllm-llmapi-launch", "trtllm-serve") and server.inside is None
    assert [file.path for file in made.emission.files] == ["trtllm.yaml"]
    assert all(file.nodes == (0, 1) for file in made.emission.files)
    assert not any("ssh" in str(mount) or "hostfile" in str(mount) for mount in server.container.mounts)
    plain = replace(server, argv=("serve", "x"), env=(), wait=Wait(log="is up$"))
    done = run(machine, replace(made, emission=replace(made.emission, launches=(plain,), downloads=())))
    assert done.returncode == 0, done.stderr
    (ranks,) = [argv for argv, _ in calls(machine) if "--mpi=pmix" in argv]
    assert ranks[:6] == [
        *("--overlap", "--mpi=pmix", "--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--nodelist=a,b"),
    ]
    assert by_slurm(make_plan(Ask(model="gpt-oss-120b", on="8xb200", engine="tensorrt-llm"))).emission.launches[
        -1
    ].argv[:2] == ("trtllm-llmapi-launch", "trtllm-serve")


def test_ranks_without_a_container():
    ((_, text),) = render(make_plan(Ask(model="gpt-oss-120b", on="8xb200", engine="tensorrt-llm", native=True))).items()
    (ranks,) = [line for line in text.splitlines() if "--mpi=pmix" in line]
    assert "--ntasks=8" in ranks and " trtllm-llmapi-launch trtllm-serve " in ranks and "--container" not in text


def test_a_launch_waits_until_the_one_before_it_listens(tmp_path):
    """Ollama pulls its model from its own server."""
    machine = Machine(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        first = server(container=None, argv=("serve", "x"), wait=Wait(port=port))
        then = Launch(name="pull", argv=("true",), is_once=True)
        assert run(machine, plan([first, then], image=None)).returncode == 0
    probe, after = [argv for argv, _ in calls(machine) if argv[-1] == "true" or "/dev/tcp/" in argv[-1]][-2:]
    assert probe[-3:-1] == ["bash", "-c"] and probe[-1].endswith(f"/{port}") and after[-1] == "true"
    (tmp_path / "late").mkdir()
    late = run(
        Machine(tmp_path / "late"),
        plan([server(container=None, argv=("serve", "x"), wait=Wait(port=1, timeout_s=1)), then]),
    )
    assert late.returncode == 1 and "server was not up within 1 s" in late.stderr


def test_the_directives():
    ((name, text),) = render(plan([server()], box=parse_box("8xb200"), name="a b")).items()
    assert name == "a-b.sbatch"
    directives = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]
    assert {"--job-name=a-b", "--nodes=1", "--gpus-per-node=8", "--exclusive"} <= set(directives)
    ((_, text),) = render(plan([server(container=None)], box=parse_box("cpu"))).items()
    assert "gpus-per-node" not in text


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (plan([server(), server(name="s", container=None, argv=("mpirun", "x"), inside="server")]), "MPI over ssh"),
        (plan([server(container=container(options=("--privileged",)))]), "--privileged"),
        (plan([server(container=container(mounts=(Mount(source="/a:b", target="/c"),)))]), "cannot mount"),
        (plan([server(container=container(mounts=(Mount(source=Home("a,b"), target="/c"),)))]), "cannot mount"),
        (plan([server()], box=parse_box("mac")), "Slurm runs on Linux"),
        (plan([server()], nodes=(Node(name="a", ssh="a b"), Node(name="b", ssh="b"))), "no node by the name of 'a b'"),
    ],
)
def test_what_slurm_cannot_do_is_refused(made, message):
    with pytest.raises(UserError, match=message):
        render(made)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_and_bash_have_nothing_to_say():
    hostile = hostile_plan(Path("/x"))
    process = plan([hostile.emission.launches[0], server(container=None)], files=hostile.emission.files)
    for made in (plan([server()]), process):
        (text,) = render(made).values()
        assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
        guesses = "--exclude=SC1078,SC1079"  # at quotes that span lines
        done = subprocess.run(["shellcheck", guesses, "-"], input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout

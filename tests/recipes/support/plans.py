"""Plans for the tests of the formats: one with hostile names everywhere, one on two machines, one of processes.

And recording stand-ins for `docker`, `curl`, `hf` and `ssh`: they write down what they were called with and answer as
the real ones would, no more.
"""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.recipes.support.estimate import SPEED

from eyas.recipes.knowledge.boxes import parse_box
from eyas.recipes.plan import (
    Box,
    Choice,
    Container,
    Download,
    Emission,
    EnvVar,
    File,
    Home,
    Launch,
    MemoryMap,
    Mount,
    Node,
    Plan,
    Readiness,
    Ref,
    Wait,
)

HOSTILE = "a 'q' \"d\" $HOME $(touch pwned) `touch pwned` \\n %h ; & * ~ é 名 #"
LINES = HOSTILE + "\nsecond line\tx"
SECRET = "s3cret $x 'q' \"d\" \\ %"
MEMORY = MemoryMap(rows=(), capacity=1, reserved=0, kv_bytes_per_token=1.0, max_tokens=1)


HERE = (Node(name="here"),)


def plan(launches, *, nodes=HERE, files=(), downloads=(), box: Box | None = None, **changes) -> Plan:
    settings = {
        "model": "gpt-oss-120b",
        "engine": "vllm",
        "version": "0.33.0",
        "image": "registry.example/x:1",
        "method": "none",
        "context": 4096,
        "concurrency": 1,
        "nodes": nodes,
        "port": 8000,
        "cache": Home(".cache/huggingface"),
        "directory": Home("deployments/one"),
        "name": "one",
    }
    ready = Readiness(path="/health", timeout_s=30.0, model="openai/gpt-oss-120b")
    return Plan(
        box=box or parse_box("spark"),
        choice=Choice(**(settings | changes)),
        emission=Emission(launches=tuple(launches), files=tuple(files), downloads=tuple(downloads), readiness=ready),
        memory=MEMORY,
        speed=SPEED,
    )


def container(name="one-server", **changes) -> Container:
    settings = {"name": name, "image": "registry.example/x:1", "options": ("--gpus", "all", "--network=host")}
    return Container(**(settings | changes))


def hostile_plan(folder: Path) -> Plan:
    """Quotes, spaces, `$`, backticks, line ends and letters beyond ASCII in every place that takes text."""
    directory = f"{folder}/{LINES}"
    server = Launch(
        name="server",
        argv=("serve", HOSTILE, LINES, "--key", Ref("EYAS_TEST_KEY"), Home(f"x/{HOSTILE}"), "", "A=b", "-n"),
        env=(
            EnvVar(name="PLAIN", value=LINES),
            EnvVar(name="EYAS_TEST_TOKEN", value=Ref("EYAS_TEST_TOKEN")),
            EnvVar(name="OTHER", value=Ref("EYAS_TEST_TOKEN")),
            EnvVar(name="FOLDER", value=Home(HOSTILE)),
        ),
        container=container(
            options=("--gpus", "all", "--ipc=host", "--shm-size", "32g", "--network", "host", "--ulimit", "memlock=-1"),
            mounts=(
                Mount(source=f"{directory}/settings.yaml", target="/etc/settings.yaml", read_only=True),
                Mount(source=Home(".cache/hub, two"), target="/root/.cache/hub"),
            ),
        ),
        wait=Wait(log="up [0-9]+ and running"),
    )
    fetch = Launch(
        name="prepare", argv=("sh", "-c", 'printf %s "$1" >"$2"', "x", LINES, Home("prepared")), is_once=True
    )
    return plan(
        [fetch, server],
        files=(
            File(path="settings.yaml", content=f"EOF\nEOF_\n{LINES}\n$HOME `id`\n", mode=0o640),
            File(path="no end.txt", content="no line end " + HOSTILE),
        ),
        downloads=(
            Download(repo="openai/gpt-oss-120b", num_bytes=1, exclude=("*/*",)),
            Download(repo="org/draft", num_bytes=1, revision="abc", gated=True),
        ),
        directory=directory,
        cache=f"{folder}/hub cache",
        api_key_env="EYAS_TEST_KEY",
    )


def two_node_plan() -> Plan:
    nodes = (
        Node(name="a", address="192.168.200.12"),
        Node(name="b", ssh="me@spark b", address="192.168.200.13", interfaces=("enp1s0f0np0", "enP2p1s0f0np0")),
    )
    boxes = [
        Launch(
            name=f"box-{rank}",
            node=rank,
            argv=("sleep", "inf"),
            env=(EnvVar(name="EYAS_TEST_TOKEN", value=Ref("EYAS_TEST_TOKEN")),),
            container=container(f"one-box-{rank}"),
            wait=Wait(log="up"),
        )
        for rank in range(2)
    ]
    check = Launch(name="check", argv=("hostname", HOSTILE), inside="box-0", is_once=True)
    server = Launch(name="server", argv=("serve", LINES), env=(EnvVar(name="A", value="b c"),), inside="box-0")
    return plan(
        [*boxes, check, server],
        nodes=nodes,
        files=(File(path="hosts", content="192.168.200.12\n", nodes=(0, 1)),),
        downloads=(Download(repo="openai/gpt-oss-120b", num_bytes=1),),
        box=parse_box("2xspark"),
    )


STAND_IN = """\
import json, os, subprocess, sys
name = os.path.basename(sys.argv[0])
argv, home = sys.argv[1:], os.environ["HOME"]
base = os.environ["STAND_INS"]
keep = ("EYAS_TEST_TOKEN", "OTHER", "HF_HOME")
with open(os.path.join(base, "calls"), "a") as calls:
    env = {key: os.environ[key] for key in keep if key in os.environ}
    calls.write(json.dumps([name, argv, env, os.path.basename(home)]) + "\\n")
there = os.path.join(base, "containers-" + os.path.basename(home))
def known():
    return open(there).read().split() if os.path.exists(there) else []
if name == "docker":
    if argv[:2] == ["container", "inspect"]:
        if argv[-1] not in known():
            sys.exit(1)
        print("true")
    elif argv[0] == "run" and "--detach" in argv:
        if os.environ.get("FAIL_RUN"):
            sys.exit(125)
        with open(there, "a") as file:
            file.write(argv[argv.index("--name") + 1] + "\\n")
    elif argv[0] == "rm":
        names = [one for one in known() if one != argv[-1]]
        open(there, "w").write("\\n".join(names))
    elif argv[0] == "logs":
        print("engine is up 12 and running")
    elif argv[0] == "exec" and "serve" in argv:
        import time
        time.sleep(600)
elif name == "curl":
    url = argv[-1]
    if url.endswith("/"):  # is the port free?
        sys.exit(0 if url.endswith(os.environ.get("PORT_TAKEN", "none") + "/") else 7)
    if "--header" in argv and "@-" in argv:
        with open(os.path.join(base, "headers"), "a") as file:
            file.write(sys.stdin.read())
    if url.endswith("/health"):
        count = os.path.join(base, "health")
        asked = os.path.exists(count)
        open(count, "w").close()
        if "NEVER" in os.environ or ("SLOW" in os.environ and not asked):
            sys.exit(22)
    elif url.endswith("/v1/chat/completions"):
        open(os.path.join(base, "asked"), "w").close()
    print('{"answer": "Paris"}')
elif name == "nvidia-smi":
    print({"driver_version": "580.95.05", "memory.free": "190000\\n" * 8}[argv[0].split("=")[1]])
elif name == "ssh":
    environment = {key: os.environ[key] for key in ("PATH", "STAND_INS")}
    environment["HOME"] = os.path.join(os.path.dirname(home), "far")
    sys.exit(subprocess.run(argv[argv.index("sh") :], env=environment).returncode)
"""


def put_python(path: Path, code: str) -> None:
    """An executable Python program. sh starts it, as what pip installs where the path of an interpreter has a space."""
    start = f"""#!/bin/sh\n'''exec' {shlex.quote(sys.executable)} -S "$0" "$@"\n' '''\n"""
    path.write_text(start + code)
    path.chmod(0o755)


class Machine:
    """A folder with homes, stand-ins on the path, and what they recorded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home, self.far = folder / "near", folder / "far"
        self.tools = folder / "tools"
        for path in (self.home, self.far, self.tools, folder / "scripts"):
            path.mkdir()
        for name in ("docker", "curl", "hf", "nvidia-smi", "ssh"):
            put_python(self.tools / name, STAND_IN)

    def run(self, files: dict[str, str], script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Write `files`, run one of them with sh."""
        for name, content in files.items():
            (self.folder / "scripts" / name).write_text(content, encoding="utf-8")
        env = {"PATH": f"{self.tools}:{os.environ['PATH']}", "HOME": str(self.home), "STAND_INS": str(self.folder)}
        env |= {"LANG": "C.UTF-8", "EYAS_TEST_TOKEN": SECRET, "EYAS_TEST_KEY": "key", "HF_TOKEN": "t"} | environment
        path = self.folder / "scripts" / script
        return subprocess.run(
            ["sh", path],
            env=env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )

    def calls(self, name: str) -> list[tuple[list[str], dict[str, str], str]]:
        """(arguments, some of the environment, which home) of each call of a stand-in, in order."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines]
        return [(argv, env, home) for called, argv, env, home in found if called == name]


def literal(word, home: str, environment: dict[str, str]) -> str:
    """What a word is when it arrives."""
    if isinstance(word, Home):
        return f"{home}/{word.path}"
    return environment[word.name] if isinstance(word, Ref) else word

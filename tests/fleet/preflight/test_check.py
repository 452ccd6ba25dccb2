"""Preflight: every rule against what a machine could be like, and the whole on this machine with stand-ins for tools.

Docker and nvidia-smi are stand-ins here; ssh, ports, memory and programs are real.
"""

import os
import socket

import pytest
from msgspec.structs import replace
from tests.fleet.support import stand_ins
from tests.fleet.support.box_plans import LAUNCH, small_plan

from eyas.base.errors import UserError
from eyas.fleet.machines.listeners import Listener
from eyas.fleet.machines.machine import Docker, Interface, Machine, read_gpus
from eyas.fleet.machines.node import LocalNode, runner
from eyas.fleet.models.download import Need
from eyas.fleet.preflight.check import check
from eyas.fleet.preflight.findings import Findings, ports_of, read_image, read_version
from eyas.fleet.preflight.rules import RULES, Site
from eyas.recipes.plan import EnvVar, Launch, Node, Ref, Wait

GIB = 1 << 30
SGLANG = "lmsysorg/sglang:latest-cu130"
SPARK = Machine(
    user="ann",
    architecture="aarch64",
    gpus=read_gpus(f"{stand_ins.GB10_ROW}\nexit 0")[0],
    memory_bytes=127600748 << 10,
    available_bytes=110 * GIB,
    free_bytes=108 * GIB,
    swap_bytes=16 * GIB,
    swap_free_bytes=16 * GIB,
    disk_path="/",
    disk_free_bytes=1000 * GIB,
    docker=Docker(state="usable", version="28.2.2", has_gpus=True),
)
PORTS = ("enp1s0f0np0", "enP2p1s0f0np0", "enp1s0f1np1", "enP2p1s0f1np1")
RIGHT, LEFT = PORTS[2:], PORTS[:2]


def findings(machine=SPARK, **fields):
    defaults = {"listeners": (), "images": {SGLANG: "here"}, "gpu_in_container": {SGLANG: ""}}
    return Findings(machine=machine, **(defaults | fields))


def checks(plan, found, rank=0):
    return [item for rule in RULES for item in rule(Site(plan, rank, found))]


def one(plan, found, name, rank=0):
    """The one check of that name that is not simply ok, and that it is a person's line."""
    (item,) = [item for item in checks(plan, found, rank) if item.name == name and (item.level != "ok")]
    assert item.message and item.next_step
    assert "\n" not in item.message + item.next_step
    return item


def without(**fields):
    return findings(replace(SPARK, **fields))


PLAN = small_plan(image=SGLANG, needed=70 * GIB, reserved=96 * GIB)


def test_a_machine_as_it_should_be_passes_all():
    found = checks(PLAN, findings())
    assert {item.level for item in found} == {"ok"}
    assert {"gpu", "driver", "memory", "docker", "image", "disk", "port"} <= {item.name for item in found}


@pytest.mark.parametrize(
    ("found", "name", "level", "words"),
    [
        (without(gpus=()), "gpu", "fail", "no NVIDIA GPU"),
        (without(gpus=(), problems=("the driver hangs",)), "gpu", "fail", "the driver hangs"),
        (without(gpus=read_gpus(f"{stand_ins.H200_ROWS[0]}\nexit 0")[0]), "gpu", "fail", "NVIDIA H200"),
        (without(gpus=(replace(SPARK.gpus[0], is_split=True),)), "gpu", "fail", "MIG"),
        (without(architecture="x86_64"), "architecture", "fail", "aarch64"),
        (without(gpus=(replace(SPARK.gpus[0], driver="570.10"),)), "driver", "fail", "580"),
        (without(available_bytes=60 * GIB, free_bytes=60 * GIB), "memory", "fail", "70.00 GiB are needed"),
        (without(available_bytes=90 * GIB, free_bytes=90 * GIB), "memory", "warn", "takes 96.00 GiB"),
        (without(free_bytes=40 * GIB), "memory", "warn", "70.00 GiB of page cache"),
        (without(swap_bytes=0, swap_free_bytes=0), "swap", "warn", "no swap"),
        (without(swap_free_bytes=8 * GIB), "swap", "warn", "swapped out"),
        (without(docker=Docker(state="missing")), "docker", "fail", "not installed"),
        (without(docker=Docker(state="not running")), "docker", "fail", "does not run"),
        (without(docker=Docker(state="not permitted")), "docker", "fail", "ann may not use docker"),
        (without(docker=Docker(state="broken", detail="odd")), "docker", "fail", "odd"),
        (without(docker=Docker(state="usable", version="28")), "docker", "fail", "hand GPUs"),
        (findings(gpu_in_container={SGLANG: "could not select device driver"}), "image", "fail", "no GPU is visible"),
        (findings(images={SGLANG: "unauthorized: authentication required"}), "image", "fail", "without a login"),
        (findings(images={SGLANG: "no such manifest: docker.io/x"}), "image", "fail", "there is no image"),
        (findings(images={SGLANG: "dial tcp: lookup registry: no such host"}), "image", "warn", "cannot be asked"),
        (findings(listeners=(Listener(None, 30000, "sglang (pid 7)"),)), "port", "fail", "in use by sglang (pid 7)"),
        (findings(hub_error="x asks for consent first; set HF_TOKEN"), "models", "fail", "asks for consent first"),
    ],
)  # fmt: skip
def test_each_thing_that_is_wrong_is_one_line_with_the_next_step(found, name, level, words):
    item = one(PLAN, found, name)
    assert item.level == level
    assert words in item.message
    assert item.ok == (level == "warn")


def test_the_steps_that_matter_most_name_the_command():
    assert "usermod -aG docker ann" in one(PLAN, without(docker=Docker(state="not permitted")), "docker").next_step
    assert "drop_caches" in one(PLAN, without(free_bytes=40 * GIB), "memory").next_step
    image = "nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc13"
    refused = findings(images={image: "unauthorized"}, gpu_in_container={})
    assert one(small_plan(image=image), refused, "image").next_step.startswith("docker login nvcr.io (user $oauthtoken")


def test_disk_room_counts_what_is_still_to_come():
    need = Need(repo="a/b", total_bytes=70 * GIB, missing_bytes=60 * GIB, free_bytes=50 * GIB, is_complete=False)
    item = one(PLAN, findings(replace(SPARK, disk_free_bytes=50 * GIB), needs=(need,)), "disk")
    assert "60.00 GiB are still to download" in item.message
    enough = findings(replace(SPARK, disk_free_bytes=70 * GIB), needs=(need,), images={SGLANG: "available"})
    assert one(PLAN, enough, "disk").level == "warn"  # the image comes on top


def test_eight_gpus_with_one_busy():
    rows = [*stand_ins.H200_ROWS[:7], stand_ins.H200_ROWS[7].replace("143156", "1000")]
    machine = replace(SPARK, architecture="x86_64", gpus=read_gpus("\n".join([*rows, "exit 0"]))[0])
    plan = small_plan(box="8xh200", image=SGLANG, needed=70 * GIB)
    assert "GPU 7 has" in one(plan, findings(machine), "memory").message
    assert "here are 7" in one(plan, findings(replace(machine, gpus=machine.gpus[:7])), "gpu").message
    split = replace(machine, gpus=(replace(machine.gpus[0], is_split=True), *machine.gpus[1:]))
    assert one(plan, findings(split), "gpu").level == "fail"
    alone = small_plan(box="h200", image=SGLANG, needed=70 * GIB)
    assert one(alone, findings(split), "gpu").level == "warn", "seven are whole"


def test_vllm_does_not_start_on_less_than_it_takes():
    plan = replace(PLAN, choice=replace(PLAN.choice, engine="vllm"))
    assert one(plan, without(available_bytes=90 * GIB, free_bytes=90 * GIB), "memory").level == "fail"


def test_engines_that_compute_on_the_cpu_need_no_gpu():
    """On the machine that the plan was made on; one for a named box is for a machine that is like it."""
    launch = Launch(name="server", argv=("llama-server",))
    named = small_plan(engine="llama.cpp", version="0.5.0", launches=(launch,))
    plan = replace(named, box=replace(named.box, is_probed=True))
    found = findings(replace(SPARK, gpus=()), images={}, program="/bin/llama-server", version="0.5.0")
    assert {item.name: item.level for item in checks(plan, found)}["gpu"] == "warn"
    assert all(item.ok for item in checks(plan, found))
    gpu = one(named, found, "gpu")
    assert gpu.level == "fail" and "--node USER@HOST" in gpu.next_step
    on_a_mac = one(small_plan(box="mac", engine="llama.cpp", version="0.5.0", launches=(launch,)), found, "gpu")
    assert on_a_mac.level == "fail" and "this machine is none" in on_a_mac.message


@pytest.mark.parametrize(
    ("program", "version", "level", "words"),
    [
        ("", "", "fail", "python3 is not installed"),
        ("/bin/python3", "", "fail", "has no SGLang"),
        ("/bin/python3", "0.1.2", "fail", "eyas knows"),
        ("/bin/python3", "0.5.22", "warn", "plan's flags are those of 0.5.23"),
    ],
)
def test_a_native_engine(program, version, level, words):
    item = one(small_plan(), findings(images={}, program=program, version=version), "program")
    assert (item.level, words in item.message) == (level, True)


def two_sparks(interfaces, address="192.168.200.12"):
    nodes = (Node(name="a", address=address, interfaces=RIGHT), Node(name="b", address="192.168.200.13"))
    machine = replace(SPARK, interfaces=interfaces)
    return small_plan(box="2xspark", image=SGLANG, nodes=nodes), findings(machine)


def up(*names, address="192.168.200.12"):
    return tuple(
        Interface(name=name, is_up=name in names, addresses=(address,) if name in names else ()) for name in PORTS
    )


def test_the_port_pair_of_two_sparks():
    assert not [item for item in checks(*two_sparks(up(*RIGHT))) if item.name == "interfaces" and not item.ok]
    item = one(*two_sparks(up(*LEFT)), "interfaces")
    assert "enp1s0f1np1 and enP2p1s0f1np1 are not Up, enp1s0f0np0 and enP2p1s0f0np0 are" in item.message
    assert "check the cable" in one(*two_sparks(up(address=""), address="10.0.0.1"), "interfaces").next_step
    item = one(*two_sparks(up(*RIGHT, address="10.0.0.9")), "interfaces")
    assert "no interface here has the address 192.168.200.12" in item.message
    plan, found = two_sparks(up(*RIGHT), address="spark-a")
    assert not [item for item in checks(plan, found) if item.name == "interfaces" and item.level != "ok"]


@pytest.mark.parametrize(
    ("engine", "first", "second"),
    [("tensorrt-llm", (30000, 2233), (2233,)), ("sglang", (30000, 20000), ()), ("vllm", (30000, 6379), ())],
)
def test_the_ports_of_several_machines(engine, first, second):
    plan = small_plan(box="2xspark", nodes=(Node(name="a"), Node(name="b")), engine=engine)
    assert (ports_of(plan, 0), ports_of(plan, 1)) == (first, second)


def test_ssh_between_the_machines():
    item = one(PLAN, findings(ssh_errors={"192.168.200.13": "Permission denied (publickey)."}), "ssh")
    assert "ssh-copy-id 192.168.200.13" in item.next_step


@pytest.mark.parametrize(("engine", "levels"), [("tensorrt-llm", ["fail"]), ("vllm", ["fail"]), ("sglang", [])])
def test_users_that_differ(monkeypatch, engine, levels):
    nodes = (Node(name="a"), Node(name="b"))
    plan = small_plan(box="2xspark", nodes=nodes, engine=engine)
    users = {"a": "ann", "b": "bob"}
    monkeypatch.setattr(
        "eyas.fleet.preflight.check.find", lambda plan, rank, node: findings(replace(SPARK, user=users[node.name]))
    )
    found = [item for item in check(plan, [LocalNode("a"), LocalNode("b")], {}) if item.name == "user"]
    assert [item.level for item in found] == levels
    assert all("ann and bob" in item.message for item in found)


# -- on this machine ---------------------------------------------------------------------------------------------------


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A Spark in name: nvidia-smi and docker are stand-ins, docker keeps what it was asked in `asked`."""
    folder = tmp_path / "bin"
    stand_ins.nvidia_smi(folder, stand_ins.GB10_ROW)
    docker(folder, manifest="exit 0")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def docker(folder, *, manifest, inspect="exit 1", run="echo 'GPU 0: NVIDIA GB10'"):
    stand_ins.put(
        folder,
        "docker",
        f"""echo "$*" >>{folder}/asked
case "$1 $2" in
"version --format") echo 28.2.2 ;;
"info --format") echo "nvidia runc" ;;
"image inspect") {inspect} ;;
"manifest inspect") {manifest} ;;
"run --rm") {run} ;;
esac""",
    )


def asked(folder):
    return (folder / "asked").read_text().splitlines()


def found_here(plan, environ=None):
    return {item.name: item for item in check(plan, [LocalNode()], environ or {})}


def test_an_image_that_is_to_come_is_asked_of_its_registry_and_not_pulled(tools):
    assert found_here(small_plan(image=SGLANG))["image"].message == f"{SGLANG} will be pulled"
    assert f"manifest inspect {SGLANG}" in asked(tools)
    assert not any(line.startswith(("pull", "run")) for line in asked(tools))


def test_an_image_that_is_here_must_see_the_gpu(tools):
    docker(tools, manifest="exit 1", inspect="exit 0")
    assert found_here(small_plan(image=SGLANG))["image"].message == f"{SGLANG} is here"
    assert f"run --rm --network none --gpus all --entrypoint nvidia-smi {SGLANG} -L" in asked(tools)
    docker(tools, manifest="exit 1", inspect="exit 0", run="echo 'could not select device driver' >&2; exit 125")
    assert "could not select device driver" in found_here(small_plan(image=SGLANG))["image"].message


def test_a_registry_that_wants_a_login(tools):
    docker(tools, manifest="echo 'unauthorized: <html> nvcr.io' >&2; exit 1")
    item = found_here(small_plan(image="nvcr.io/nvidia/vllm:26.05-py3"))["image"]
    assert not item.ok
    assert "docker login nvcr.io" in item.next_step


def test_a_port_that_this_very_process_has(tools):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        item = found_here(small_plan(port=port))["port"]
        assert not item.ok
        assert f"port {port} is in use" in item.message
    assert found_here(small_plan(port=port))["port"].ok
    with socket.create_server(("127.0.0.2", port)):
        assert found_here(small_plan(port=port))["port"].ok, "another address"
        assert not found_here(small_plan(port=port, listen="0.0.0.0"))["port"].ok


def test_ports_of_other_launches_count_too(tools):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        launch = Launch(name="sshd", argv=("sshd",), wait=Wait(port=port))
        found = [
            item for item in check(small_plan(launches=(launch, LAUNCH)), [LocalNode()], {}) if item.name == "port"
        ]
    assert [item.ok for item in found] == [True, False]


def test_references_must_be_set_where_eyas_runs(tools):
    launch = Launch(name="server", argv=("python3",), env=(EnvVar(name="A", value=Ref("OTHER")),))
    plan = small_plan(launches=(launch,), api_key_env="MY_KEY")
    found = [item for item in check(plan, [LocalNode()], {"OTHER": "secret value"}) if item.name == "environment"]
    assert [(item.level, item.message) for item in found] == [
        ("ok", "OTHER is set"),
        ("fail", "the plan refers to $MY_KEY, which is not set"),
    ]
    assert "eyas key" in found[1].next_step


def test_a_machine_that_refuses_ssh_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    node = Node(name="far", ssh="nobody@127.0.0.1")
    far = runner(node, {"EYAS_SSH_OPTIONS": f"-p {port} -F none"})
    (item,) = check(small_plan(nodes=(node,)), [far], {})
    assert (item.name, item.node, item.level) == ("reach", "far", "fail")
    assert "connection refused" in item.message
    assert "start its ssh server" in item.next_step


def test_all_checks_run_and_nothing_is_changed(tools, tmp_path):
    plan = small_plan(image=SGLANG, needed=1 << 60, cache=str(tmp_path / "cache"), directory=str(tmp_path / "dir"))
    before = sorted(path for path in tmp_path.rglob("*") if path.name != "asked")
    names = {item.name for item in check(plan, [LocalNode()], {}) if not item.ok}
    assert "memory" in names
    assert sorted(path for path in tmp_path.rglob("*") if path.name != "asked") == before


# -- readers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.5.23\n", "0.5.23"),
        ("eyas 0.1.0", "0.1.0"),
        ("version: 10158 (a1b2c3d)\nbuilt with cc (GCC) 13.3.0", "b10158"),
        ("version: 0.5.0-dev (build 1, commit 0c1e570)\nbuilt with GNU 12.2.0", "0.5.0-dev"),
        ("ollama version is 0.33.0", "0.33.0"),
        ("Warning: could not connect to a running Ollama instance\nWarning: client version is 0.12.6", "0.12.6"),
        ("no idea", ""),
    ],
)
def test_versions_as_programs_print_them(text, version):
    assert read_version(text) == version


def test_what_a_registry_says():
    assert read_image("here\n") == "here\n".strip()
    assert read_image("errors:\ndenied: requested access") == "errors: denied: requested access"


def test_user_errors_are_not_lost():
    with pytest.raises(UserError):
        runner(Node(name="x", ssh="-oProxyCommand=evil"))

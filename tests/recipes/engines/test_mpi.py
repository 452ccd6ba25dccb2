"""TensorRT-LLM over two machines: order, environment, the containers' sshd, and the check that MPI reaches both."""

import os
import shutil
import subprocess

import pytest
from tests.recipes.engines.test_tensorrt_llm import emission

from eyas.recipes.engines.mpi import CHECK, ENTRYPOINT
from eyas.recipes.plan import Home, Node

NODES = (
    Node(name="a", address="192.168.200.12", interfaces=("enp1s0f0np0", "enP2p1s0f0np0")),
    Node(name="b", ssh="me@b", address="192.168.200.13", interfaces=("enp1s0f1np1", "enP2p1s0f1np1")),
)
HEAD = "nvidia/Qwen3-235B-A22B-Eagle3"


@pytest.fixture(scope="module")
def made():
    return emission("qwen3-235b-a22b-fp4", "2xspark", HEAD, nodes=NODES, port=8355, context=4096)


def test_containers_come_first_then_the_check_then_the_server(made):
    assert [(one.name, one.node, one.is_once, one.inside) for one in made.launches] == [
        ("node-0", 0, False, None),
        ("node-1", 1, False, None),
        ("hosts", 0, True, "node-0"),
        ("server", 0, False, "node-0"),
    ]


def test_the_server_is_mpirun_of_the_playbooks_command(made):
    argv = made.launches[-1].argv
    launcher = argv.index("trtllm-llmapi-launch")
    assert argv[:3] == ("mpirun", "-np", "2")
    assert argv[launcher + 1 : launcher + 5] == ("trtllm-serve", "nvidia/Qwen3-235B-A22B-FP4", "--backend", "pytorch")
    assert argv[argv.index("--tp_size") + 1] == "2"
    assert argv[argv.index("--port") + 1] == "8355"
    exported = [argv[place + 1] for place, word in enumerate(argv[:launcher]) if word == "-x"]
    assert set(exported) == {variable.name for variable in made.launches[-1].env}
    assert {"CPATH", "TRITON_PTXAS_PATH", "HF_HUB_OFFLINE"} <= set(exported)


def test_the_head_is_downloaded_on_both_and_named_by_its_repository(made):
    assert [one.repo for one in made.downloads] == ["nvidia/Qwen3-235B-A22B-FP4", HEAD]
    assert f"speculative_model: {HEAD}" in made.files[0].content


def test_each_container_uses_the_ports_of_its_own_machine(made):
    environments = [{one.name: one.value for one in launch.env} for launch in made.launches[:2]]
    links = ["enp1s0f0np0,enP2p1s0f0np0", "enp1s0f1np1,enP2p1s0f1np1"]
    for environment, link in zip(environments, links, strict=True):
        for name in ("UCX_NET_DEVICES", "NCCL_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include"):
            assert environment[name] == link
        assert environment["OMPI_MCA_rmaps_ppr_n_pernode"] == "1"


def test_both_get_the_host_file_and_only_the_first_the_settings(made):
    files = {file.path: file for file in made.files}
    assert files["openmpi-hostfile"].content == "192.168.200.12 slots=1\n192.168.200.13 slots=1\n"
    assert files["openmpi-hostfile"].nodes == files["entrypoint.sh"].nodes == (0, 1)
    assert files["trtllm.yaml"].nodes == (0,)
    targets = [{mount.target: mount for mount in launch.container.mounts} for launch in made.launches[:2]]
    assert "/opt/eyas/trtllm.yaml" in targets[0]
    assert "/opt/eyas/trtllm.yaml" not in targets[1]
    for mounted in targets:
        assert mounted["/etc/openmpi-hostfile"].source == Home(".local/share/eyas/x/openmpi-hostfile")
        assert mounted["/tmp/.ssh"].read_only


def test_two_trays_of_four_gpus_have_eight_ranks():
    trays = tuple(Node(name=f"t{rank}", ssh=f"t{rank}", address=f"10.0.0.{rank}") for rank in range(2))
    made = emission(box="8xgb200", head="nvidia/gpt-oss-120b-Eagle3-v3", nodes=trays)
    containers, server = made.launches[2:4], made.launches[-1]
    assert server.argv[:3] == ("mpirun", "-np", "8") and server.argv[server.argv.index("--tp_size") + 1] == "8"
    hosts = next(file for file in made.files if file.path == "openmpi-hostfile")
    assert hosts.content == "10.0.0.0 slots=4\n10.0.0.1 slots=4\n"
    for container in containers:
        environment = {one.name: one.value for one in container.env}
        assert environment["OMPI_MCA_rmaps_ppr_n_pernode"] == "4"
        assert environment["NVIDIA_IMEX_CHANNELS"] == "0"
        assert not {"UCX_NET_DEVICES", "NCCL_SOCKET_IFNAME"} & set(environment), "a tray's ports are not a Spark's"
    assert made.launches[-2].argv[-2:] == ("8", "2")


def test_gpt_oss_over_two_sparks_also_brings_the_vocabulary_to_both():
    made = emission(box="2xspark", head="nvidia/gpt-oss-120b-Eagle3-long-context")
    names = [one.name for one in made.launches]
    assert names == ["vocabulary-0", "vocabulary-1", "node-0", "node-1", "hosts", "server"]
    argv = made.launches[-1].argv
    assert "TIKTOKEN_ENCODINGS_BASE" in argv[: argv.index("trtllm-llmapi-launch")]
    for container in made.launches[2:4]:
        assert "/opt/tiktoken" in [mount.target for mount in container.container.mounts]


@pytest.mark.parametrize(
    ("printed", "code"),
    [("spark-a\nspark-b", 0), ("spark-a\nspark-a", 1), ("spark-a", 1)],
)
def test_the_check_wants_two_different_machines(printed, code, tmp_path):
    (tmp_path / "mpirun").write_text(f"#!/bin/sh\nprintf '%s\\n' '{printed}'\n")
    (tmp_path / "mpirun").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", CHECK, "hosts", "2", "2"], env={"PATH": path}, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert done.stdout.startswith(printed)


def test_the_check_fails_where_mpirun_does(tmp_path):
    (tmp_path / "mpirun").write_text("#!/bin/sh\nexit 7\n")
    (tmp_path / "mpirun").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    assert subprocess.run(["bash", "-c", CHECK, "hosts", "2", "2"], env={"PATH": path}).returncode == 1


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("script", [ENTRYPOINT, "#!/bin/bash\n" + CHECK])
def test_shellcheck_has_nothing_to_say(script):
    done = subprocess.run(["shellcheck", "-"], input=script, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


# A machine of its own for one container: its own network, and a root's home, /tmp and /etc/ssh that vanish with it.
CONTAINER = """\
set -eu
ip link set lo up
cp -r /etc/ssh /dev/shm/ssh.$$
for folder in /root /tmp /etc/ssh; do mount -t tmpfs -o mode=755 tmpfs "$folder"; done
cp -r /dev/shm/ssh.$$/. /etc/ssh
rm -rf /dev/shm/ssh.$$ /etc/ssh/ssh_host_*
mkdir -m 700 /tmp/.ssh
ssh-keygen -q -t ed25519 -N '' -f /tmp/.ssh/id_ed25519
cp /tmp/.ssh/id_ed25519.pub /tmp/.ssh/authorized_keys
export NCCL_SOCKET_IFNAME=link0,link1 UCX_NET_DEVICES=link2
bash -c "$0" entrypoint 127.0.0.1 2>/tmp/log &
for attempt in $(seq 300); do
    ! grep -q 'Server listening on .* port 2233' /tmp/log || break
    kill -0 $! || { cat /tmp/log; exit 1; }
    sleep 0.1
done
export HOME=/root
ssh 127.0.0.1 'echo "$NCCL_SOCKET_IFNAME $UCX_NET_DEVICES $PATH"'
! ssh -o PubkeyAuthentication=no 127.0.0.1 true 2>/dev/null
kill $!
wait $! || :
"""


def can_unshare() -> bool:
    tools = all(shutil.which(tool) for tool in ("unshare", "ip", "sshd", "ssh"))
    return tools and subprocess.run(["unshare", "--mount", "--net", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not can_unshare(), reason="needs sshd, and root for a network and mounts of its own")
def test_the_containers_sshd_lets_in_by_key_and_passes_the_environment_on():
    path = os.environ["PATH"]
    done = subprocess.run(
        ["unshare", "--mount", "--net", "bash", "-c", CONTAINER, ENTRYPOINT],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip().splitlines()[-1] == f"link0,link1 link2 {path}"

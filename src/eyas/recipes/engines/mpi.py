"""TensorRT-LLM on several machines: a container each with its own sshd, a host file, and `mpirun` on the first.

After NVIDIA's DGX Spark playbook (2026-07), with three differences: the containers run a script of ours instead of one
piped from a moving branch, their sshd listens on the address of the link only, and host keys are remembered.
"""

from __future__ import annotations

from eyas.recipes.engines import common
from eyas.recipes.plan import Box, Choice, Container, EnvVar, File, Home, Launch, Mount, Wait, Word

__all__ = ["ENTRY", "HOSTS", "KEYS", "SSH_PORT", "launches"]

SSH_PORT = 2233
HOSTS = "openmpi-hostfile"
ENTRY = "entrypoint.sh"
KEYS = "/tmp/.ssh"  # the person's keys in a container
OPTIONS = (
    *("--gpus", "all", "--network", "host", "--ipc", "host"),
    *("--ulimit", "memlock=-1", "--ulimit", "stack=67108864"),
    *("--device", "/dev/infiniband:/dev/infiniband"),
)

# Keys are those of the person who starts the plan, as `ssh-copy-id` between the nodes left them. Sessions of sshd
# start with a clean environment, so what ranks must see of this container's goes through SetEnv.
ENTRYPOINT = f"""\
#!/bin/bash
# The main process of a node's container: sshd for mpirun. Arguments: the address to listen on.
set -euo pipefail
address=$1
if ! command -v sshd >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq openssh-server
fi
install -d -m 700 /root/.ssh
for file in /tmp/.ssh/id_* /tmp/.ssh/authorized_keys; do
    if [ -f "$file" ]; then
        install -m 600 "$file" /root/.ssh/
    fi
done
cat >/root/.ssh/config <<'CONFIG'
Host *
    Port {SSH_PORT}
    User root
    BatchMode yes
    StrictHostKeyChecking accept-new
CONFIG
for file in /root/.ssh/id_*; do
    case $file in
        *.pub | *'*') ;;
        *) echo "    IdentityFile $file" >>/root/.ssh/config ;;
    esac
done
ssh-keygen -A >/dev/null
mkdir -p /run/sshd
exec /usr/sbin/sshd -D -e -p {SSH_PORT} -o "ListenAddress=$address" \\
    -o PasswordAuthentication=no -o PermitRootLogin=prohibit-password -o AllowUsers=root \\
    -o "SetEnv=PATH=$PATH LD_LIBRARY_PATH=${{LD_LIBRARY_PATH:-}}\\
${{NCCL_SOCKET_IFNAME:+ NCCL_SOCKET_IFNAME=$NCCL_SOCKET_IFNAME}}\\
${{UCX_NET_DEVICES:+ UCX_NET_DEVICES=$UCX_NET_DEVICES}}"
"""

CHECK = """\
names=$(mpirun -np "$1" hostname) || exit 1
printf '%s\\n' "$names"
[ "$(printf '%s\\n' "$names" | sort -u | wc -l)" -eq "$2" ] || { echo "mpirun reached fewer than $2 machines"; exit 1; }
"""


def launches(
    choice: Choice,
    box: Box,
    command: tuple[Word, ...],
    env: tuple[EnvVar, ...],
    mounts: tuple[Mount, ...],
    config: Mount,
) -> tuple[tuple[Launch, ...], tuple[File, ...]]:
    """Emit the containers, a check that MPI reaches every machine, and the server; with the files that they need."""
    nodes = range(len(choice.nodes))
    hosts = "".join(f"{node.address} slots={box.gpus}\n" for node in choice.nodes)
    ranks = str(box.num_gpus)
    files = (
        File(path=HOSTS, content=hosts, nodes=tuple(nodes)),
        File(path=ENTRY, content=ENTRYPOINT, mode=0o755, nodes=tuple(nodes)),
    )
    containers = tuple(_container(choice, box, rank, mounts, config) for rank in nodes)
    first = containers[0].name
    check = Launch(
        name="hosts", argv=("bash", "-c", CHECK, "hosts", ranks, str(len(nodes))), inside=first, is_once=True
    )
    exported = [word for variable in env for word in ("-x", variable.name)]
    server = Launch(
        name="server",
        argv=("mpirun", "-np", ranks, *exported, "trtllm-llmapi-launch", *command),
        env=env,
        inside=first,
    )
    return (*containers, check, server), files


def _container(choice: Choice, box: Box, rank: int, mounts: tuple[Mount, ...], config: Mount) -> Launch:
    if choice.image is None:
        raise ValueError("TensorRT-LLM on several nodes runs in containers")
    node = choice.nodes[rank]
    name = f"node-{rank}"
    links = dict.fromkeys(
        ("UCX_NET_DEVICES", "NCCL_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include") if node.interfaces else (),
        ",".join(node.interfaces),
    )
    variables = links | {
        "OMPI_MCA_orte_default_hostfile": f"/etc/{HOSTS}",
        "OMPI_MCA_rmaps_ppr_n_pernode": str(box.gpus),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    more = (
        Mount(source=common.below(choice.directory, HOSTS), target=f"/etc/{HOSTS}", read_only=True),
        Mount(source=common.below(choice.directory, ENTRY), target=f"/opt/eyas/{ENTRY}", read_only=True),
        Mount(source=Home(path=".ssh"), target=KEYS, read_only=True),
    )
    return Launch(
        name=name,
        node=rank,
        argv=("bash", f"/opt/eyas/{ENTRY}", node.address),
        env=(*common.fabric_env(box), *(EnvVar(name=key, value=value) for key, value in variables.items())),
        container=Container(
            name=f"{choice.name}-{name}",
            image=choice.image,
            options=OPTIONS,
            mounts=(*mounts, *((config,) if rank == 0 else ()), *more),
        ),
        wait=Wait(log=f"Server listening on .* port {SSH_PORT}", timeout_s=600.0),  # it may have to install sshd
    )

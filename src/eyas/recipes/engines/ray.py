"""Ray over several machines for vLLM: a head, a worker on each further machine, then the server next to the head.

Follows vLLM's `run_cluster.sh` and its page on parallelism and scaling (main, 2026), and the DGX Spark playbook's
edition, without a shell script of theirs. NVIDIA's image lacks Ray, so it is installed where it is missing. As the
page advises, the server starts when Ray has found all GPUs: else vLLM waits for a placement that cannot come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from eyas.recipes.plan import Choice, Container, EnvVar, Launch, Node, Wait, Word

__all__ = ["launches"]

PORT = 6379
START = 'command -v ray >/dev/null || python3 -m pip install --quiet "ray[default]>=2.48"; exec ray start --block "$@"'
# Joining takes seconds; a worker that is not there by then is on another network.
JOINED = """\
for attempt in $(seq 60); do
    python3 -c 'import ray, sys
ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
found = int(ray.cluster_resources().get("GPU", 0))
print(found, "of", sys.argv[1], "GPUs have joined")
sys.exit(found < int(sys.argv[1]))' "$1" && exit 0
    sleep 2
done
echo "Ray did not find $1 GPUs; compare the addresses of ray start with those of the link between the machines"
exit 1
"""


def launches(
    choice: Choice,
    command: tuple[Word, ...],
    env: Sequence[EnvVar],
    key_env: Sequence[EnvVar],
    container: Callable[[str], Container | None],
) -> tuple[Launch, ...]:
    """Emit launches. `command`, `key_env`: the server's; `container` makes a launch's, or None: native processes."""
    head = choice.nodes[0].address
    servers = []
    for rank, node in enumerate(choice.nodes):
        name = "ray-head" if rank == 0 else f"ray-worker-{rank}"
        place = ["--head", f"--port={PORT}"] if rank == 0 else [f"--address={head}:{PORT}"]
        servers.append(
            Launch(
                name=name,
                node=rank,
                argv=("bash", "-c", START, "ray", *place, f"--node-ip-address={node.address}"),
                env=(*env, *_network(node, head)),
                container=container(name),
                wait=Wait(log="Ray runtime started", timeout_s=600.0),
            )
        )
    inside = "ray-head" if choice.image is not None else None
    network = _network(choice.nodes[0], head)
    check = Launch(
        name="ray-gpus",
        argv=("bash", "-c", JOINED, "ray-gpus", str(choice.tensor_parallel)),
        env=tuple(network),
        inside=inside,
        is_once=True,
        wait=Wait(timeout_s=300.0),
    )
    return (*servers, check, Launch(name="server", argv=command, env=(*env, *key_env, *network), inside=inside))


def _network(node: Node, head: str) -> list[EnvVar]:
    """Return variables that keep everything that opens sockets to the link between the machines."""
    env = {"VLLM_HOST_IP": node.address, "MASTER_ADDR": head, "RAY_memory_monitor_refresh_ms": "0"}
    env |= dict.fromkeys(("RAY_NODE_IP_ADDRESS", "RAY_OVERRIDE_NODE_IP_ADDRESS"), node.address)  # of several networks
    if node.interfaces:
        every = ",".join(node.interfaces)
        env |= dict.fromkeys(("UCX_NET_DEVICES", "NCCL_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include"), every)
        env |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), node.interfaces[0])
    return [EnvVar(name=name, value=value) for name, value in env.items()]

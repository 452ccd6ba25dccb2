"""Ray over several machines for vLLM: a head, a worker on each further machine, then the server next to the head.

Follows the DGX Spark playbook's `run_cluster.sh`, without its shell script; NVIDIA's image lacks Ray, so it is
installed where it is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from eyas.recipes.plan import Choice, Container, EnvVar, Launch, Node, Wait, Word

__all__ = ["launches"]

PORT = 6379
START = 'command -v ray >/dev/null || python3 -m pip install --quiet "ray[default]>=2.48"; exec ray start --block "$@"'


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
    server_env = (*env, *key_env, *_network(choice.nodes[0], head))
    return (*servers, Launch(name="server", argv=command, env=server_env, inside=inside))


def _network(node: Node, head: str) -> list[EnvVar]:
    """Return variables that keep everything that opens sockets to the link between the machines."""
    env = {"VLLM_HOST_IP": node.address, "MASTER_ADDR": head, "RAY_memory_monitor_refresh_ms": "0"}
    if node.interfaces:
        every = ",".join(node.interfaces)
        env |= dict.fromkeys(("UCX_NET_DEVICES", "NCCL_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include"), every)
        env |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), node.interfaces[0])
    return [EnvVar(name=name, value=value) for name, value in env.items()]

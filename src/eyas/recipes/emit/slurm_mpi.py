"""TensorRT-LLM's ranks as tasks of Slurm, one for each GPU, in place of sshd, a host file and `mpirun`.

After TensorRT-LLM's own example for Slurm (examples/llm-api/llm_mgmn_trtllm_serve.sh): `srun --mpi=pmix` starts as many
tasks as the model has ranks, and `trtllm-llmapi-launch` makes the first the server and the others its workers. On one
machine too: a task that starts ranks by itself needs process management that Slurm does not give it.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from eyas.recipes.engines import mpi
from eyas.recipes.plan import Container, EnvVar, Mount, Plan, Word

__all__ = ["SERVER", "by_slurm", "is_mpi"]

SERVER = "server"
LAUNCHER = "trtllm-llmapi-launch"


def is_mpi(plan: Plan) -> bool:
    """Whether the plan's server is several ranks that MPI joins."""
    return plan.choice.engine == "tensorrt-llm" and plan.choice.tensor_parallel > 1


def by_slurm(plan: Plan) -> Plan:
    """Return the plan with one launch for all ranks, in a container of its own on every machine.

    Files that the container mounts are written on every machine; what only sshd and `mpirun` need is left out.
    """
    launches = plan.emission.launches
    (server,) = [launch for launch in launches if launch.name == SERVER]
    around = next((launch for launch in launches if launch.name == server.inside), server)
    container = None if around.container is None else _without_ssh(around.container)
    task = replace(
        server,
        argv=_command(server.argv),
        env=tuple(_merged((*around.env, *server.env))),
        container=container,
        inside=None,
    )
    is_for_mpi = {f"/etc/{mpi.HOSTS}", f"/opt/eyas/{mpi.ENTRY}"}
    everywhere = tuple(range(len(plan.choice.nodes)))
    files = tuple(
        replace(file, nodes=everywhere)
        for file in plan.emission.files
        if not any(path.endswith(f"/{file.path}") for path in is_for_mpi)
    )
    others = [one for one in launches if one is not server and one.container is None and one.inside is None]
    return replace(plan, emission=replace(plan.emission, launches=(*others, task), files=files))


def _command(words: tuple[Word, ...]) -> tuple[Word, ...]:
    """Return the launcher and the server's command, without `mpirun` and its options."""
    if LAUNCHER in words:
        return words[words.index(LAUNCHER) :]
    return (LAUNCHER, *words)


def _without_ssh(container: Container) -> Container:
    targets = {f"/etc/{mpi.HOSTS}", f"/opt/eyas/{mpi.ENTRY}", mpi.KEYS}
    mounts: tuple[Mount, ...] = tuple(mount for mount in container.mounts if mount.target not in targets)
    return replace(container, mounts=mounts)


def _merged(variables: Iterable[EnvVar]) -> Iterable[EnvVar]:
    """Yield each variable once, without those of Open MPI's own launcher."""
    return {one.name: one for one in variables if not one.name.startswith("OMPI_")}.values()

"""Helpers that the emitters of several engines share: where the engine finds models, its container, downloads, tags.

A container sees the hub's cache at `CACHE` and local models below `/models`, a native process the node's own paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from eyas.recipes.engines import vocabulary
from eyas.recipes.plan import Box, Choice, Container, Download, EnvVar, Home, Launch, Mount, Ref, Word
from eyas.recipes.records import Head, Model

__all__ = [
    "CACHE",
    "Paths",
    "base_url",
    "below",
    "common_env",
    "container",
    "downloads",
    "fabric_env",
    "is_head_short",
    "own_host",
    "paths",
    "start_timeout_s",
    "tags",
]

CACHE = "/root/.cache/huggingface"


class Paths(NamedTuple):
    """Paths by which the engine's command names the model and the head, and what a container must mount for that."""

    model: Word
    head: Word | None
    mounts: tuple[Mount, ...]


def paths(choice: Choice, model: Model, head: Head | None, *, cache: str = CACHE) -> Paths:
    mounts = [Mount(source=choice.cache, target=cache)]

    def place(path: str | None, repo: str, target: str) -> str:
        if path is None:
            return repo
        if choice.image is None:
            return path
        mounts.append(Mount(source=path, target=target, read_only=True))
        return target

    target_path = place(choice.model_path, model.repos.get(choice.engine, model.repo), "/models/target")
    if head is None:
        return Paths(target_path, None, tuple(mounts))
    head_path = place(choice.head_path, head.repos.get(choice.engine, head.repo), "/models/draft")
    return Paths(target_path, head_path, tuple(mounts))


def own_host(choice: Choice) -> str:
    """Return the address at which what listens on the choice's answers on its own machine."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(choice.listen, choice.listen)


def base_url(choice: Choice, port: int | None = None) -> str:
    """Return the URL at which the server answers on its own machine; with `port` that of another one beside it."""
    host = own_host(choice)
    return f"http://{f'[{host}]' if ':' in host else host}:{choice.port if port is None else port}"


def below(folder: Word, name: str) -> Word:
    """`name` inside `folder`. Raises ValueError for an environment variable, to which nothing can be appended."""
    match folder:
        case Home(path):
            return Home(f"{path}/{name}")
        case Ref(variable):
            raise ValueError(f"a folder cannot be named by the environment variable {variable}")
        case _:
            return f"{folder}/{name}"


def common_env(choice: Choice, model: Model) -> tuple[EnvVar, ...]:
    """Return variables for the hub's cache and the Harmony vocabulary.

    Everything is downloaded before the start, so the hub stays unasked: some engines would otherwise fetch the
    `original/` twin of the weights too.
    """
    cache = choice.cache if choice.image is None else CACHE  # said: not every container runs as root
    hub = (EnvVar(name="HF_HUB_OFFLINE", value="1"), EnvVar(name="HF_HOME", value=cache))
    return (*hub, *vocabulary.env(choice, model))


def fabric_env(box: Box) -> tuple[EnvVar, ...]:
    """Return options that give a container the NVLink of other trays, NVIDIA's IMEX channel. Spark has none."""
    return (EnvVar(name="NVIDIA_IMEX_CHANNELS", value="0"),) if box.nodes > 1 and box.gpus > 1 else ()


def container(choice: Choice, box: Box, model: Model, launch: str, mounts: Sequence[Mount]) -> Container | None:
    """A container with all GPUs and the node's own network, where 127.0.0.1 is the node; None: a native process."""
    if choice.image is None:
        return None
    options = ["--gpus", "all", "--ipc", "host", "--shm-size", "32g", "--network", "host"]
    if box.nodes > 1:
        options += ["--ulimit", "memlock=-1", "--device", "/dev/infiniband:/dev/infiniband"]
    return Container(
        name=f"{choice.name}-{launch}",
        image=choice.image,
        options=tuple(options),
        mounts=(*mounts, *vocabulary.mounts(model)),
    )


def downloads(choice: Choice, model: Model, head: Head | None) -> tuple[Download, ...]:
    """Return the downloads, without the `original/` and `metal/` twins of the weights; local folders need none.

    A single pattern excludes both: of several, `hf` before 1.0 heeds only the last.
    """
    found = []
    if choice.model_path is None:
        repo = model.repos.get(choice.engine, model.repo)
        found.append(Download(repo=repo, num_bytes=model.total_bytes, exclude=("*/*",), gated=model.gated))
    if head is not None and choice.head_path is None:
        repo = head.repos.get(choice.engine, head.repo)
        found.append(Download(repo=repo, num_bytes=head.total_bytes, gated=head.gated))
    return tuple(found)


def is_head_short(choice: Choice, head: Head | None) -> bool:
    """Whether the head's rotary table ends before the context does."""
    return head is not None and head.max_positions is not None and head.max_positions < choice.context


def start_timeout_s(model: Model) -> float:
    """Return a time-out that suits a disk of 100 MB/s, plus ten minutes of compiling and capturing graphs."""
    return 600.0 + model.total_bytes / 100e6


def tags(choice: Choice, head: Head | None, launches: Iterable[Launch], more: Iterable[str] = ()) -> tuple[str, ...]:
    """The features of `Facts` that commands do not show: the vocabulary is present, the head short; and `more`."""
    names = {variable.name for launch in launches for variable in launch.env}
    found = {"vocab-files": vocabulary.VARIABLE in names, "short-head": is_head_short(choice, head)}
    return tuple(sorted({*more, *(tag for tag, is_so in found.items() if is_so)}))

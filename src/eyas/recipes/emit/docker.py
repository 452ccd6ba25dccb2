"""Writes a launch as a `docker` command: quoted words of sh.

Secret variables are passed by name, so that no list of processes shows them.
"""

from __future__ import annotations

from eyas.recipes.emit.words import assignments, is_name, shell
from eyas.recipes.plan import EnvVar, Home, Launch, Mount, Ref, Word

__all__ = ["env_words", "exec_words", "mount_parts", "run_words"]


def run_words(launch: Launch, *, detached: bool) -> list[str]:
    """Write `docker run` for a launch with a container; a detached one is kept after its end for its log."""
    container = launch.container
    assert container is not None
    words = [*_secrets(launch.env), "docker", "run", "--detach" if detached else "--rm"]
    words += ["--name", shell(container.name), *map(shell, container.options)]
    words += env_words(launch.env)
    for mount in container.mounts:
        words += ["--mount", shell(*mount_parts(mount))]
    return [*words, shell(container.image), *map(shell, launch.argv)]


def exec_words(launch: Launch, container: str) -> list[str]:
    """Write `docker exec` of a launch inside a running container."""
    words = [*_secrets(launch.env), "docker", "exec", *env_words(launch.env), shell(container)]
    return [*words, *map(shell, launch.argv)]


def mount_parts(mount: Mount) -> tuple[Word, ...]:
    """Return the value of `--mount`, which docker reads as a line of CSV."""
    source = (mount.source,) if isinstance(mount.source, Ref | Home) else (_doubled(mount.source),)
    if isinstance(mount.source, Home):
        source = (Home(path=_doubled(mount.source.path)),)
    parts: list[Word] = ["type=bind,"]
    for key, value in (("source", source), ("target", (_doubled(mount.target),))):
        text = "".join(part.path if isinstance(part, Home) else str(part) for part in value)
        quote = '"' if any(mark in text for mark in ',"\n\r') else ""
        parts += [f"{quote}{key}=", *value, f"{quote}{',' if key == 'source' else ''}"]
    return (*parts, ",readonly") if mount.read_only else tuple(parts)


def _doubled(text: str) -> str:
    return text.replace('"', '""')


def env_words(env: tuple[EnvVar, ...]) -> list[str]:
    """Write `--env` options. A secret goes by name: the docker client takes its value from its own environment."""
    words = []
    for variable in env:
        if not is_name(variable.name):
            raise ValueError(f"{variable.name!r} cannot name an environment variable")
        by_name = isinstance(variable.value, Ref)
        words += ["--env", variable.name if by_name else shell(f"{variable.name}=", variable.value)]
    return words


def _secrets(env: tuple[EnvVar, ...]) -> list[str]:
    """Write references as assignments before the command, so that `--env NAME` finds them."""
    return assignments([variable for variable in env if isinstance(variable.value, Ref)])

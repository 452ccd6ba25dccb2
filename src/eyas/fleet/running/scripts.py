"""Writes the sh scripts that start, watch, stop and read a launch. Pure; `node.py` runs them.

A process is known by its pid, its kernel start time and the boot it belongs to, so that a reused pid is never taken for
it; a container by its id. Everything that a launch ever forks carries a tag in its environment or is of its session,
and stopping ends all of it. Starting what already runs changes nothing. `library.sh` holds the functions.

Secrets stand in the scripts as `export` of the shell and reach a machine through a pipe: never a file, never an
argument. (Docker keeps the environment of a container in root-only state of its own until the container is removed.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources

from msgspec import Struct
from msgspec.structs import replace

from eyas.fleet.machines.listeners import kernel_addresses
from eyas.recipes.emit.docker import env_words, mount_parts
from eyas.recipes.emit.words import shell
from eyas.recipes.plan import Container, File, Launch, Mount, Ref, Word

__all__ = ["Mark", "Owner", "Secrets", "last_log", "log", "poll", "prepare", "pull", "start", "stop"]

Secrets = Mapping[str, str]  # values of the environment variables that a plan refers to
Mark = str  # what a start script printed: "process PID START BOOT" or "container ID"
LIBRARY = resources.files("eyas.fleet.running").joinpath("library.sh").read_text(encoding="ascii")


class Owner(Struct, frozen=True, kw_only=True):
    """Owner of launches: `token` is unique to one deployment of one user, `directory` is on each node."""

    token: str
    directory: Word

    def tag(self, launch: Launch) -> str:
        return f"{self.token}/{launch.name}"


def prepare(owner: Owner, files: Sequence[File], free_port: int | None, listen: str = "") -> str:
    """Make the deployment's folder and write its files, to the byte. Fails where `free_port` is not free for a server
    that listens at the address `listen`."""
    lines = []
    if free_port is not None:
        text = f"port {free_port} is in use; ss -ltnp shows by whom"
        lines.append(f"if listens {free_port} {shell(kernel_addresses(listen))}; then fail 4 {shell(text)}; fi")
    lines.append(_enter(owner))
    for file in files:
        lines.append(f"printf %s {shell(file.content)} | write {shell('./' + file.path)} {file.mode:o} || exit")
    return _script(lines)


def pull(image: str) -> str:
    """Pull a container image to the node; asks no registry where the image is there."""
    return f"docker image inspect {shell(image)} >/dev/null 2>&1 || docker pull -q {shell(image)}"


def start(owner: Owner, launch: Launch, containers: Mapping[str, Container], secrets: Secrets) -> str:
    """Start `launch` unless it runs; prints its mark. `containers` are those of the plan by the launch's name."""
    words = [_word(word, secrets) for word in launch.argv]
    exports = [f"export {variable.name}={_word(variable.value, secrets)}" for variable in launch.env]
    if launch.container is not None:
        exports = [line for line, variable in zip(exports, launch.env, strict=True) if isinstance(variable.value, Ref)]
        options = [shell(option) for option in launch.container.options]
        exports += [_present(mount, secrets) for mount in launch.container.mounts]
        mounts = [part for mount in launch.container.mounts for part in ("--mount", _mount(mount, secrets))]
        command = ["start_container", launch.name, owner.token, shell(launch.container.name)]
        command += [*options, *mounts, *env_words(launch.env), shell(launch.container.image), *words]
    elif launch.inside is not None:
        exports = [line for line, variable in zip(exports, launch.env, strict=True) if isinstance(variable.value, Ref)]
        tag = ["-e", shell(f"LAUNCHED_BY_EYAS={owner.tag(launch)}")]
        command = ["start_process", launch.name, shell(owner.tag(launch)), "docker", "exec", *tag]
        command += [*env_words(launch.env), shell(containers[launch.inside].name), *words]
    else:
        if any(variable.name == "HF_HOME" for variable in launch.env):
            exports.append("unset HF_HUB_CACHE")  # a person's own would be preferred to the plan's cache
        command = ["start_process", launch.name, shell(owner.tag(launch)), *words]
    return _script([_enter(owner), *exports, " ".join(command)])


def poll(owner: Owner, marks: Iterable[tuple[int, Launch, Mark]], log_bytes: int, port: int | None = None) -> str:
    """Print for each launch of one node "INDEX alive", "INDEX ended [CODE]" or "INDEX unknown WHY", and "port open".

    A log that is longer than `log_bytes` is rotated: the old one is kept next to it.
    """
    lines = [f"cd -- {shell(owner.directory)} 2>/dev/null || :"]
    for index, launch, mark in marks:
        kind, _, rest = mark.partition(" ")
        if kind == "container":
            lines.append(f"container_state {index} {shell(rest)}")
        else:
            lines.append(f"process_state {index} {launch.name} {log_bytes} {_split(rest)}")
    if port is not None:
        lines.append(f"if listens {port}; then echo 'port open'; fi")
    return _script(lines)


def stop(owner: Owner, launch: Launch, containers: Mapping[str, Container], mark: Mark | None, grace_s: float) -> str:
    """Stop all of `launch`, with SIGTERM and after `grace_s` seconds SIGKILL. Does nothing where nothing of it runs."""
    lines = [_enter(owner)]
    centiseconds = round(grace_s * 100)
    if launch.container is not None:
        name = shell(launch.container.name)
        return _script([*lines, f"end_container {launch.name} {owner.token} {name} {round(grace_s)}"])
    tag = shell(owner.tag(launch))
    if launch.inside is not None:  # a signal to `docker exec` does not reach what it runs
        script = shell(f"{LIBRARY}\nend {tag} 0 0 {centiseconds}")
        lines.append(f"docker exec {shell(containers[launch.inside].name)} sh -c {script} 2>/dev/null || :")
    known = _split(" ".join(mark.split()[1:3])) if mark is not None else ""
    lines.append(f"end_process {launch.name} {tag} {centiseconds} {known}")
    return _script(lines)


def log(owner: Owner, launch: Launch, since: str, max_bytes: int) -> str:
    """Print a cursor for the next call on the first line, then what `launch` wrote since the cursor `since` ("0")."""
    file = f"show_file logs/{launch.name}.log"
    lines = [_enter(owner)]
    if launch.container is None:
        lines.append(f"{file} {shell(since)} {max_bytes}")
    else:
        name = shell(launch.container.name)
        lines.append(
            f"if docker inspect {name} >/dev/null 2>&1; then show_container {name} {shell(since)} {max_bytes}; "
            f"else {file} {shell(since.partition('.')[0])} {max_bytes}; fi"
        )
    return _script(lines)


def last_log(owner: Owner, launch: Launch, max_bytes: int) -> str:
    """Print, as `log` does, what `log` leaves out: what `launch` wrote before its last restart or log rotation."""
    if launch.container is None:
        return _script([_enter(owner), f"show_file logs/{launch.name}.log.1 0 {max_bytes}"])
    name = shell(launch.container.name)
    show = f"show_file logs/{launch.name}.log 0 {max_bytes}"
    return _script([_enter(owner), f"if docker inspect {name} >/dev/null 2>&1; then {show}; else echo 0; fi"])


def _script(lines: Iterable[str]) -> str:
    return "\n".join((LIBRARY, *lines))


def _enter(owner: Owner) -> str:
    return f"enter {shell(owner.directory)}"


def _word(word: Word, secrets: Secrets) -> str:
    return shell(secrets[word.name] if isinstance(word, Ref) else word)


def _split(mark: str) -> str:
    return " ".join(shell(part) for part in mark.split())


def _present(mount: Mount, secrets: Secrets) -> str:
    source = _word(mount.source, secrets)
    return f"[ -e {source} ] || mkdir -p -- {source} || exit"


def _mount(mount: Mount, secrets: Secrets) -> str:
    source = secrets[mount.source.name] if isinstance(mount.source, Ref) else mount.source
    return shell(*mount_parts(replace(mount, source=source)))

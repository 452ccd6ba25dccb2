"""Pieces of sh that a plan is started and stopped with on one node: files, downloads, launches, readiness.

Each is a run of lines for a script that begins with `LIBRARY`. Nothing here knows where the script will run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from posixpath import dirname
from typing import Any

from eyas.recipes.emit import docker
from eyas.recipes.emit.words import assignments, heredoc, names_of, script_line, shell
from eyas.recipes.engines.common import base_url, below, own_host
from eyas.recipes.plan import Download, EnvVar, File, Launch, Plan, Ref, Word
from eyas.recipes.records import METAL

__all__ = [
    "BASICS",
    "CURL",
    "LIBRARY",
    "ask",
    "container_of",
    "down",
    "fetch",
    "files",
    "folders",
    "listens",
    "pid_file",
    "references",
    "required",
    "sample",
    "secrets",
    "up",
]

BASICS = """\
say() { printf '%s\\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }
need() { command -v "$1" >/dev/null 2>&1 || fail "$1 is not installed here; $2"; }
deadline_in() { deadline=$(($(date +%s) + $1)); }
in_time() { [ "$(date +%s)" -lt "$deadline" ]; }
"""

LIBRARY = (
    BASICS
    + """\
started_at() { # PID: nothing for one that has ended, reaped or not
    ps -o stat= -o lstart= -p "$1" 2>/dev/null | awk '$1 !~ /^Z/ { $1 = ""; gsub(/ +/, "_"); print }'
}

# A process is remembered by its number, its start and the boot, so that a reused number is not taken for it.
boot() { cat /proc/sys/kernel/random/boot_id 2>/dev/null || sysctl -n kern.bootsessionuuid; }
remember() { printf '%s %s %s\\n' "$2" "$(started_at "$2")" "$(boot)" >"$1"; }
recall() { [ -f "$1" ] && read -r pid since booted <"$1" && [ "$booted" = "$(boot)" ]; } # FILE
runs() { recall "$1" && [ "$(started_at "$pid")" = "$since" ]; } # FILE
ours() { # FILE: anything left of its group; its number stays taken as long as that is so
    recall "$1" && { [ -z "$(started_at "$pid")" ] || runs "$1"; } &&
        ps -e -o pgid= -o stat= | awk -v group="$pid" '$1 == group && $2 !~ /^Z/ { n++ } END { exit !n }'
}
end() { # FILE: the process and all of its group, first asked, after 30 s killed
    if ours "$1"; then
        kill -s TERM -- "-$pid" 2>/dev/null || :
        deadline_in 30
        while ours "$1" && in_time; do sleep 1; done
        if ours "$1"; then kill -s KILL -- "-$pid" 2>/dev/null || :; fi
    fi
    rm -f -- "$1"
}
is_there() { docker container inspect "$1" >/dev/null 2>&1; }
is_up() { [ "$(docker container inspect --format '{{.State.Running}}' "$1" 2>/dev/null)" = true ]; }
remove() { # CONTAINER
    if is_there "$1"; then
        docker stop --time 30 "$1" >/dev/null || :
        docker rm --force "$1" >/dev/null
    fi
}
"""
)

TOKEN = "HF_TOKEN"  # what `hf` reads
CURL = "--silent --noproxy '*'"  # of questions to this machine
SESSION = ("setsid",)  # starts a program in a session of its own, with all that it starts in one group
SESSION_ON_MAC = ("perl", "-MPOSIX=setsid", "-e", "'setsid; exec @ARGV or die $!'")  # macOS lacks setsid


def references(plan: Plan) -> tuple[str, ...]:
    """Return the environment variables that must be set to start the plan."""
    is_gated = any(download.gated for download in plan.emission.downloads)
    return tuple(dict.fromkeys([*secrets(plan), *([TOKEN] if is_gated else [])]))


def secrets(plan: Plan) -> tuple[str, ...]:
    """Return those of them that the launches themselves need, and clients."""
    words: list[Word] = [plan.choice.cache, plan.choice.directory]
    for launch in plan.emission.launches:
        words += [*launch.argv, *(variable.value for variable in launch.env)]
        if launch.container is not None:
            words += [mount.source for mount in launch.container.mounts]
    if plan.choice.api_key_env is not None:
        words.append(Ref(name=plan.choice.api_key_env))
    return names_of(words)


def required(names: Iterable[str]) -> list[str]:
    """Write lines that end the script at once, with the name, where one of the variables is not set."""
    return [f': "${{{name}:?is not set; export {name} first}}"' for name in names]


def folders(plan: Plan) -> list[str]:
    """Write lines that make the deployment's folder and the hub's cache."""
    choice = plan.choice
    paths: list[Word] = [choice.directory, below(choice.directory, "logs"), choice.cache]
    inner = dict.fromkeys(dirname(file.path) for file in plan.emission.files)
    paths += [below(choice.directory, path) for path in inner if path]
    return [script_line(["mkdir", "-p", *map(shell, paths)])]


def files(plan: Plan, node: int) -> list[str]:
    """Write lines that make the folders, and the files of the deployment."""
    lines = folders(plan)
    for file in plan.emission.files:
        if node in file.nodes:
            path = shell(below(plan.choice.directory, file.path))
            lines += [_written(file, path), f"chmod {file.mode:o} {path}"]
    return lines


def _written(file: File, path: str) -> str:
    if file.content.endswith("\n"):
        return heredoc(f"cat >{path}", file.content).removesuffix("\n")
    return f"printf %s {shell(file.content)} >{path}"


def fetch(plan: Plan) -> list[str]:
    """Write lines that download the hub's files that the plan wants; `hf` resumes where it was interrupted."""
    return [_download(download, plan.choice.cache) for download in plan.emission.downloads]


def _download(download: Download, cache: Word) -> str:
    """Write one download. ValueError for several patterns of a kind: `hf` before 1.0 wants one flag, later one each."""
    words = [*assignments([EnvVar(name="HF_HOME", value=cache)]), "hf", "download", shell(download.repo)]
    if download.revision is not None:
        words += ["--revision", shell(download.revision)]
    for flag, patterns in (("--include", download.include), ("--exclude", download.exclude)):
        if len(patterns) > 1:
            raise ValueError(f"{download.repo}: hf takes one pattern for {flag}")
        words += [word for pattern in patterns for word in (flag, shell(pattern))]
    return script_line(words)


def up(plan: Plan, launch: Launch) -> list[str]:
    """Write lines that start a launch and wait until it is up, or run it to its end."""
    name = launch.name
    command = _command(plan, launch)
    if launch.is_once:
        return [
            f"say {shell(f'{name} ...')}",
            f"{script_line(command)} ||",
            f"    fail {shell(f'{name} did not succeed')}",
        ]
    lines = [f"say {shell(f'starting {name}')}"]
    if launch.container is not None:
        lines.append(script_line([*command, ">/dev/null"]))
    else:
        lines.append(script_line([*command, f">{shell(_log_file(plan, launch))} 2>&1 </dev/null &"]))
        lines.append(f'remember {shell(pid_file(plan, launch))} "$!"')
    return lines + _waiting(plan, launch)


def _command(plan: Plan, launch: Launch) -> list[str]:
    if launch.container is not None:
        return docker.run_words(launch, detached=not launch.is_once)
    if launch.inside is not None:
        words = docker.exec_words(launch, container_of(plan, launch.inside))
        place = words.index("docker")
    else:
        words = [*assignments(launch.env), *map(shell, launch.argv)]
        place = len(words) - len(launch.argv)
    is_mac = plan.box.hardware.compute_capability == METAL
    wrapper = () if launch.is_once else SESSION_ON_MAC if is_mac else SESSION
    return [*words[:place], *wrapper, *words[place:]]


def _waiting(plan: Plan, launch: Launch) -> list[str]:
    wait = launch.wait
    if wait.log is not None:
        test = f"grep -Eq -e {shell(wait.log)}"
        if launch.container is not None:
            test = f"docker logs {shell(launch.container.name)} 2>&1 | {test}"
        else:
            test += f" {shell(_log_file(plan, launch))}"
    elif wait.port is not None:
        test = listens(plan, wait.port)
    else:
        return []
    return [
        f"deadline_in {wait.timeout_s:.0f}",
        f"until {test}; do",
        f"    {_alive(plan, launch)}",
        f"    in_time || fail {shell(f'{launch.name} was not up within {wait.timeout_s:.0f} s')}",
        "    sleep 1",
        "done",
    ]


def listens(plan: Plan, port: int) -> str:
    """Write a command that succeeds where something of the plan listens on `port` of the machine that runs it."""
    return f"bash -c {shell(f'exec 3<>/dev/tcp/{own_host(plan.choice)}/{port}')} 2>/dev/null"


def ask(plan: Plan) -> list[str]:
    """Write lines for the first node that wait until the server is ready, then ask it something."""
    ready = plan.emission.readiness
    url = base_url(plan.choice) + ready.path
    return [
        f"say {shell(f'waiting for {url}')}",
        f"deadline_in {ready.timeout_s:.0f}",
        f"until curl {CURL} --fail --output /dev/null --max-time 30 {shell(url)}; do",
        f"    {_alive(plan, plan.emission.server)}",
        f"    in_time || fail 'the server was not ready within {ready.timeout_s:.0f} s'",
        "    sleep 1",
        "done",
        *sample(plan),
    ]


def sample(plan: Plan, curl: Sequence[str] = ("curl",)) -> list[str]:
    """Write a short question, by the program whose words are `curl`."""
    path, body = "/v1/embeddings", dict[str, Any](model=plan.emission.readiness.model)
    if plan.choice.role == "embeddings":
        body |= {"input": "Paris is the capital of France."}
    else:
        path = "/v1/chat/completions"
        question = {"role": "user", "content": "Name the capital of France in one word."}
        body |= {"messages": [question], "max_tokens": 256}
    command = [*curl, CURL, "--fail", "--show-error"]
    key = plan.choice.api_key_env
    if key is not None:  # through a pipe: arguments are in the list of processes
        command = ["printf", "'Authorization: Bearer %s\\n'", shell(Ref(name=key)), "|", *command, "--header", "@-"]
    command += ["--max-time", "300", "--header", "'Content-Type: application/json'", "--data-binary"]
    return [
        script_line([*command, shell(json.dumps(body)), shell(f"{base_url(plan.choice)}{path}")]),
        "echo",
    ]


def down(plan: Plan, launch: Launch) -> list[str]:
    """Write lines that end a launch, if it is there."""
    if launch.is_once:
        return []
    if launch.container is not None:
        return [f"remove {shell(launch.container.name)}"]
    return [f"end {shell(pid_file(plan, launch))}"]


def container_of(plan: Plan, name: str) -> str:
    """Return the container in which launch `name` is the main process."""
    for launch in plan.emission.launches:
        if launch.name == name and launch.container is not None:
            return launch.container.name
    raise ValueError(f"no launch {name!r} with a container")


def _alive(plan: Plan, launch: Launch) -> str:
    if launch.container is not None:
        name = launch.container.name
        return f"is_up {shell(name)} || fail {shell(f'{launch.name} ended; see: docker logs {name}')}"
    path = _log_file(plan, launch)
    return f"runs {shell(pid_file(plan, launch))} || fail {shell(f'{launch.name} ended; see ')}{shell(path)}"


def _log_file(plan: Plan, launch: Launch) -> Word:
    return below(plan.choice.directory, f"logs/{launch.name}.log")


def pid_file(plan: Plan, launch: Launch) -> Word:
    """Return the file that remembers the process of a launch without a container."""
    return below(plan.choice.directory, f"{launch.name}.pid")

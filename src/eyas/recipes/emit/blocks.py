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
from eyas.recipes.engines.common import below
from eyas.recipes.plan import Choice, Container, Download, EnvVar, File, Launch, Plan, Ref, Word

__all__ = [
    "LIBRARY",
    "ask",
    "base_url",
    "check",
    "container_of",
    "down",
    "fetch",
    "files",
    "folders",
    "references",
    "required",
    "sample",
    "secrets",
    "up",
]

LIBRARY = """\
say() { printf '%s\\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }
need() { command -v "$1" >/dev/null 2>&1 || fail "$1 is not installed here; $2"; }
deadline_in() { deadline=$(($(date +%s) + $1)); }
in_time() { [ "$(date +%s)" -lt "$deadline" ]; }
started_at() { # PID: nothing for one that has ended, reaped or not
    ps -o stat= -o lstart= -p "$1" 2>/dev/null | awk '$1 !~ /^Z/ { $1 = ""; gsub(/ +/, "_"); print }'
}

# A process is remembered by its number, its start and the boot, so that a reused number is not taken for it.
boot() { cat /proc/sys/kernel/random/boot_id; }
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

INSTALL = {
    "docker": "see https://docs.docker.com/engine/install/",
    "curl": "install it with the package manager",
    "hf": "install it with: pip install -U huggingface_hub",
}


WHEEL = "dist/eyas-*.whl"  # what the Dockerfile copies
NO_WHEEL = f"the image is built from {WHEEL} next to this script; put the wheel there (in a checkout: make wheel)"
BUILD = "build it as its Dockerfile says: in a checkout, or with the files of --emit compose"
TOKEN = "HF_TOKEN"  # what `hf` reads

DOCKER_ANSWERS = """\
docker info >/dev/null 2>&1 ||
    fail 'docker does not answer; is it running, and are you in the docker group?'"""


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


def check(plan: Plan, node: int, *, builds: bool = False) -> list[str]:
    """Write lines that check what must hold before anything is touched; what will be started must not run already.

    `builds`: the format builds the images that no registry has, next to the script; else they must be there.
    """
    launches = [launch for launch in plan.emission.launches if launch.node == node]
    tools = {"docker": any(launch.container or launch.inside for launch in launches)}
    tools |= {"curl": node == 0, "hf": bool(plan.emission.downloads)}
    lines = [f"need {tool} {shell(INSTALL[tool])}" for tool, is_needed in tools.items() if is_needed]
    if tools["docker"]:
        lines.append(DOCKER_ANSWERS)
        lines += _images((launch.container for launch in launches if launch.container is not None), builds)
    for launch in launches:
        if not launch.is_once:
            test = f"runs {shell(_pid_file(plan, launch))}"
            if launch.container is not None:
                test = f"is_there {shell(launch.container.name)}"
            lines.append(f"if {test}; then fail {shell(f'{launch.name} is there already; stop it first')}; fi")
    if node == 0:
        lines += [
            "code=0",
            f"curl --silent --output /dev/null --max-time 2 {shell(base_url(plan.choice) + '/')} || code=$?",
            f"[ \"$code\" -eq 7 ] || fail 'port {plan.choice.port} is in use'",
        ]
    if plan.box.hardware.unified:
        lines.append("say 'hint: the page cache counts as used memory here; to drop it:'")
        lines.append("say \"    sudo sh -c 'sync; echo 3 >/proc/sys/vm/drop_caches'\"")
    return lines


def _images(containers: Iterable[Container], builds: bool) -> list[str]:
    lines = []
    for name, is_built in {one.image: one.is_built for one in containers}.items():
        registry = name.partition("/")[0]
        login = f"docker login {registry}" if "." in registry else "docker login"
        quoted = shell(name)
        here = f"docker image inspect {quoted} >/dev/null 2>&1"
        if is_built and builds:
            lines += [f'ls "$(dirname "$0")"/{WHEEL} >/dev/null 2>&1 ||', f"    fail {shell(NO_WHEEL)}"]
        elif is_built:
            lines += [f"{here} ||", f"    fail {shell(f'{name} is in no registry and not here; {BUILD}')}"]
        else:
            lines.append(f"{here} || docker pull {quoted} ||")
            lines.append(f"    fail {shell(f'cannot pull {name}; if the registry wants to know who you are: {login}')}")
    return lines


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
        lines.append(f'remember {shell(_pid_file(plan, launch))} "$!"')
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
    wrapper = [] if launch.is_once else ["setsid"]
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
        test = f"bash -c 'exec 3<>/dev/tcp/127.0.0.1/{wait.port}' 2>/dev/null"
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


def ask(plan: Plan) -> list[str]:
    """Write lines for the first node that wait until the server is ready, then ask it something."""
    ready = plan.emission.readiness
    url = base_url(plan.choice) + ready.path
    last = [launch for launch in plan.emission.launches if not launch.is_once and launch.node == 0][-1]
    return [
        f"say {shell(f'waiting for {url}')}",
        f"deadline_in {ready.timeout_s:.0f}",
        f"until curl --fail --silent --output /dev/null --max-time 30 {shell(url)}; do",
        f"    {_alive(plan, last)}",
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
    command = [*curl, "--fail", "--silent", "--show-error"]
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
    return [f"end {shell(_pid_file(plan, launch))}"]


def container_of(plan: Plan, name: str) -> str:
    """Return the container in which launch `name` is the main process."""
    for launch in plan.emission.launches:
        if launch.name == name and launch.container is not None:
            return launch.container.name
    raise ValueError(f"no launch {name!r} with a container")


def base_url(choice: Choice) -> str:
    """Return the URL at which the server answers on its own machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(choice.listen, choice.listen)
    return f"http://{f'[{host}]' if ':' in host else host}:{choice.port}"


def _alive(plan: Plan, launch: Launch) -> str:
    if launch.container is not None:
        name = launch.container.name
        return f"is_up {shell(name)} || fail {shell(f'{launch.name} ended; see: docker logs {name}')}"
    path = _log_file(plan, launch)
    return f"runs {shell(_pid_file(plan, launch))} || fail {shell(f'{launch.name} ended; see ')}{shell(path)}"


def _log_file(plan: Plan, launch: Launch) -> Word:
    return below(plan.choice.directory, f"logs/{launch.name}.log")


def _pid_file(plan: Plan, launch: Launch) -> Word:
    return below(plan.choice.directory, f"{launch.name}.pid")

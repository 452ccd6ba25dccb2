"""A stand-in for the `docker` command line: it records every call and really starts the commands, as plain processes.

Containers are folders below $FAKE_DOCKER. What it cannot show: images, mounts, limits, GPUs, a daemon.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HOME = Path(os.environ["FAKE_DOCKER"])
FLAGS = {"-d", "--rm", "--init", "--privileged"}  # of run, without a value
ENVIRONMENT = ("PATH", "FAKE_DOCKER")  # what an image would set


def main(argv):
    with (HOME / "calls").open("a") as file:
        file.write(json.dumps(argv) + "\n")
    if (HOME / "broken").exists():
        sys.exit("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?")
    match argv:
        case ["run", "-d", *rest]:
            run(rest)
        case ["inspect", "-f", template, name]:
            print(template_of(find(name), template))
        case ["inspect", name]:
            print(json.dumps(find(name)))
        case ["exec", *rest]:
            execute(rest)
        case ["stop", "-t", seconds, name]:
            stop(find(name), float(seconds))
        case ["logs", *options, name]:
            print(Path(find(name)["folder"], "log").read_text() if "--until" in options or not options else "", end="")
        case ["rm", "-f", name]:
            container = find(name)
            stop(container, 0)
            shutil.rmtree(container["folder"])
        case ["image", "inspect", image]:
            sys.exit(0 if (HOME / "images" / image.replace("/", "_")).exists() else 1)
        case ["pull", "-q", image]:
            (HOME / "images").mkdir(exist_ok=True)
            (HOME / "images" / image.replace("/", "_")).touch()
        case ["version" | "info", *_]:
            print("28.0.0")
        case _:
            sys.exit(f"unknown command: docker {argv}")


def options_of(words):
    """(options with their values, what follows them)."""
    options = []
    while words and words[0].startswith("-"):
        flag, *words = words
        value, words = (None, words) if flag in FLAGS else (words[0], words[1:])
        options.append((flag, value))
    return options, words


def environment(options, base):
    """Of a container: nothing of the caller's but what is named."""
    for flag, value in options:
        if flag in ("-e", "--env"):
            name, has_value, text = value.partition("=")
            base[name] = text if has_value else os.environ[name]
    return base


def run(words):
    options, (_, *command) = options_of(words)
    names = dict(options)
    folder = HOME / names["--name"]
    if folder.exists():
        sys.exit(f'docker: Error response from daemon: Conflict. The container name "{names["--name"]}" is in use.')
    folder.mkdir()
    env = environment(options, {name: os.environ[name] for name in ENVIRONMENT})
    wrapper = '"$@"; code=$?; echo $code >"$0"; exit $code'
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            ["sh", "-c", wrapper, str(folder / "exit"), *command],
            env=env,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    labels = dict(value.split("=", 1) for flag, value in options if flag == "--label")
    identity = os.urandom(32).hex()
    container = {
        "id": identity,
        "folder": str(folder),
        "labels": labels,
        "pid": process.pid,
        "env": env,
    }
    (folder / "config.json").write_text(json.dumps(container))
    process.returncode = 0  # it goes on; nobody waits
    print(identity)


def find(name):
    for config in HOME.glob("*/config.json"):
        container = json.loads(config.read_text())
        if name in (config.parent.name, container["id"]):
            return container
    sys.exit(f"Error response from daemon: No such container: {name}")


def is_running(container):
    try:
        return Path(f"/proc/{container['pid']}/stat").read_text().rsplit(") ", 1)[1][0] not in "ZX"
    except OSError:
        return False


def template_of(container, template):
    running = is_running(container)
    path = Path(container["folder"], "exit")
    code = 0 if running else int(path.read_text()) if path.exists() else 137
    return (
        template.replace('{{index .Config.Labels "eyas.deployment"}}', container["labels"].get("eyas.deployment", ""))
        .replace("{{.State.Running}}", str(running).lower())
        .replace("{{.State.ExitCode}}", str(code))
        .replace("{{.Id}}", container["id"])
    )


def execute(words):
    options, (name, *command) = options_of(words)
    container = find(name)
    if not is_running(container):
        sys.exit(f"Error response from daemon: container {name} is not running")
    env = environment(options, container["env"])
    sys.exit(subprocess.call(command, env=env, cwd="/", start_new_session=True))


def stop(container, seconds):
    for number, patience_s in ((signal.SIGTERM, seconds), (signal.SIGKILL, 60)):
        deadline = time.monotonic() + patience_s
        while is_running(container):
            if time.monotonic() < deadline:
                try:
                    os.killpg(container["pid"], number)
                except ProcessLookupError:
                    return
            elif number == signal.SIGTERM:
                break
            else:
                sys.exit("it does not end")
            time.sleep(0.02)


main(sys.argv[1:])

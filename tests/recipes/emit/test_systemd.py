"""Units: systemd itself reads the command lines back, and secrets come from a file of the person's."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recipes.support.plans import (
    HOSTILE,
    LINES,
    SECRET,
    Machine,
    container,
    hostile_plan,
    literal,
    plan,
    two_node_plan,
)

from eyas.base.errors import UserError
from eyas.recipes.emit.systemd import argument, render, setting
from eyas.recipes.knowledge.boxes import parse_box
from eyas.recipes.plan import EnvVar, Home, Launch, Node, Ref, Wait

SYSTEMD = Path("/lib/systemd/systemd")
ENVIRONMENT = {"EYAS_TEST_KEY": "key", "EYAS_TEST_TOKEN": SECRET}
ESCAPE = re.compile(r"\\(?:([0-7]{3})|(.))", re.DOTALL)
LETTERS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
HOUSE = "/home/ma%n"


def is_usable() -> bool:
    """`systemd --user --test` runs as anybody but root."""
    return SYSTEMD.exists() and (os.geteuid() != 0 or shutil.which("setpriv") is not None)


needs_systemd = pytest.mark.skipif(not is_usable(), reason="systemd is not installed")


def read_by_systemd(units: dict[str, str]) -> dict[str, dict[str, list[str]]]:
    """What systemd makes of units: {unit: {"Command Line": [...], "Environment": [...]}}; nothing is started."""
    with tempfile.TemporaryDirectory(prefix="eyas-units-") as folder:
        wants = Path(folder, "default.target.wants")
        wants.mkdir()
        Path(folder, "default.target").write_text("[Unit]\nDescription=all\n")
        for name, content in units.items():
            Path(folder, name).write_text(content, encoding="utf-8")
            (wants / name).symlink_to(f"../{name}")
        runtime = Path(folder, "run")
        runtime.mkdir(mode=0o777)
        runtime.chmod(0o777)
        Path(folder).chmod(0o755)
        wants.chmod(0o755)
        other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
        env = {"HOME": HOUSE, "XDG_RUNTIME_DIR": str(runtime), "SYSTEMD_UNIT_PATH": folder, "LANG": "C.UTF-8"}
        env |= {"PATH": os.environ["PATH"], "SYSTEMD_LOG_LEVEL": "warning"}
        done = subprocess.run(
            [*other, SYSTEMD, "--user", "--test"], env=env, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, dict[str, list[str]]] = {}
        unit = ""
        for line in done.stdout.splitlines():
            if line.startswith("\t-> Unit "):
                unit = line.removeprefix("\t-> Unit ").rstrip(":")
            for key in ("Command Line", "Environment"):
                if line.strip().startswith(f"{key}: "):
                    found.setdefault(unit, {}).setdefault(key, []).append(line.strip().removeprefix(f"{key}: "))
        assert set(units) <= set(found), done.stderr
        return found


def words(line: str) -> list[str]:
    """A command line as systemd prints it, as words."""
    return [
        unescaped(quoted[1:-1]) if quoted else bare for quoted, bare in re.findall(r'("(?:\\.|[^"\\])*")|(\S+)', line)
    ]


def unescaped(text: str) -> str:
    return ESCAPE.sub(lambda match: chr(int(match[1], 8)) if match[1] else LETTERS.get(match[2], match[2]), text)


def expanded(word: str) -> str:
    """What systemd does with `$` when it starts the command (systemd.service(5), "Command lines")."""
    return re.sub(r"\$(?:(\$)|\{(\w+)\})", lambda match: "$" if match[1] else ENVIRONMENT[match[2]], word)


def unit_of(argv, env=()):
    launch = Launch(name="x", argv=tuple(argv), env=tuple(env))
    return render(plan([launch], name="t", image=None))["eyas-t-x.service"]


@needs_systemd
def test_a_hostile_plan_arrives_word_for_word():
    made = hostile_plan(Path("/x"))
    server = made.emission.launches[1]
    files = {name: text for name, text in render(made).items() if name.endswith(".service")}
    lines = read_by_systemd(files)["eyas-one-server.service"]["Command Line"]
    remove, run, stop = ([expanded(word) for word in words(line)] for line in lines)
    assert remove == ["/usr/bin/env", "docker", "rm", "--force", "one-server"]
    assert stop == ["/usr/bin/env", "docker", "stop", "--time", "30", "one-server"]
    assert run[:5] == ["/usr/bin/env", f"OTHER={SECRET}", "docker", "run", "--rm"]
    image = run.index("registry.example/x:1")
    assert run[image + 1 :] == [literal(word, HOUSE, ENVIRONMENT) for word in server.argv]
    given = [run[place + 1] for place, word in enumerate(run) if word == "--env"]
    assert given == [f"PLAIN={LINES}", "EYAS_TEST_TOKEN", "OTHER", f"FOLDER={HOUSE}/{HOSTILE}"]


@needs_systemd
@settings(max_examples=3, deadline=None)
@given(st.lists(st.text(st.sampled_from(" a'\"\\$%{};#\n\t\x01\x7fé~-=")), min_size=15, max_size=25))
def test_any_words_arrive(texts):
    read = read_by_systemd({"t.service": unit_of(["x", *texts])})["t.service"]["Command Line"][0]
    assert [expanded(word) for word in words(read)] == ["/usr/bin/env", "x", *texts]


@needs_systemd
def test_the_environment_of_a_process_arrives():
    env = [EnvVar(name="A", value='a "b" \\ $x %h'), EnvVar(name="B", value=Home("c d"))]
    read = read_by_systemd({"t.service": unit_of(["x"], env)})["t.service"]["Environment"]
    assert read == ['A=a "b" \\ $x %h', f"B={HOUSE}/c d"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_analyze_has_nothing_to_say(tmp_path):
    first = Launch(name="first", argv=("sleep", "1"), wait=Wait(port=1), container=container())
    second = Launch(name="second one", argv=("sleep", "1"), env=(EnvVar(name="A", value="b c"),))
    names = []
    for name, text in render(plan([first, second], name="a b%c")).items():
        if name.endswith(".service"):
            (tmp_path / name).write_text(text)
            names.append(tmp_path / name)
    done = subprocess.run(["systemd-analyze", "verify", "--user", "--man=no", *names], capture_output=True, text=True)
    own = [line for line in done.stderr.splitlines() if "eyas-" in line]
    assert own == []


def test_later_units_need_earlier_ones():
    first = Launch(name="first", argv=("x",), container=container("a"), is_once=True)
    second = Launch(name="second", argv=("x",), container=container("b"))
    files = render(plan([first, second]))
    assert "Type=oneshot\nRemainAfterExit=yes" in files["eyas-one-first.service"]
    assert "Requires=eyas-one-first.service\nAfter=eyas-one-first.service" in files["eyas-one-second.service"]
    assert "Type=exec\nRestart=on-failure" in files["eyas-one-second.service"]


def test_each_machine_gets_its_own_script():
    nodes = (Node(name="a"), Node(name="b", ssh="b"))
    launches = [Launch(name=f"s{rank}", node=rank, argv=("x",), container=container(f"s{rank}")) for rank in (0, 1)]
    files = render(plan(launches, nodes=nodes))
    assert set(files) == {"install-0.sh", "install-1.sh", "eyas-one-s0.service", "eyas-one-s1.service"}
    assert "eyas-one-s1.service" in files["install-1.sh"]
    assert "eyas-one-s1.service" not in files["install-0.sh"]


def test_a_mac_has_none():
    with pytest.raises(UserError, match="a Mac has no systemd"):
        render(plan([Launch(name="server", argv=("serve",))], box=parse_box("mac"), image=None))


def test_processes_inside_another_container_are_refused():
    with pytest.raises(UserError, match="inside another's container"):
        render(two_node_plan())


def test_secrets_are_only_looked_for(tmp_path):
    machine = Machine(tmp_path)
    (machine.tools / "systemctl").write_text('#!/bin/sh\necho "$@" >>"$STAND_INS/systemctl"\n')
    (machine.tools / "systemctl").chmod(0o755)
    files = render(hostile_plan(tmp_path))
    assert SECRET not in "".join(files.values())
    assert "EnvironmentFile=%h/.config/eyas/one.env" in files["eyas-one-server.service"]

    done = machine.run(files, "install.sh")
    assert done.returncode == 1
    assert "write a line EYAS_TEST_KEY=... into" in done.stderr
    assert not machine.calls("docker")

    (machine.home / ".config/eyas").mkdir(parents=True)
    (machine.home / ".config/eyas/one.env").write_text("EYAS_TEST_KEY=a\nEYAS_TEST_TOKEN=b\n")
    done = machine.run(files, "install.sh")
    assert done.returncode == 0, done.stderr
    unit = machine.home / ".config/systemd/user/eyas-one-server.service"
    assert unit.read_text() == files["eyas-one-server.service"]
    assert (tmp_path / "systemctl").read_text().splitlines() == [
        "--user daemon-reload",
        "--user enable --now eyas-one-server.service",
    ]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say():
    made = plan([Launch(name="x", argv=("y",), env=(EnvVar(name="A", value=Ref("B")),), container=container())])
    done = subprocess.run(["shellcheck", "-"], input=render(made)["install.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("word", ["a\0b", Ref("a b")])
def test_what_systemd_cannot_hold_is_refused(word):
    with pytest.raises(ValueError, match=r"NUL|environment variable"):
        argument(word)
    with pytest.raises(ValueError, match=r"NUL|environment variable"):
        setting("A", word)

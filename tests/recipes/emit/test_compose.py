"""compose.yaml is YAML, every value survives Compose's `$NAME`, and what Compose cannot say is refused."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recipes.support.plans import HOSTILE, LINES, SECRET, Machine, container, hostile_plan, literal, plan

from eyas.base.errors import UserError
from eyas.recipes.emit.compose import render, value
from eyas.recipes.plan import Home, Launch, Mount, Node, Ref

ENVIRONMENT = {"EYAS_TEST_KEY": "key $x", "EYAS_TEST_TOKEN": SECRET, "HOME": "/home/me"}
PLACEHOLDER = re.compile(r"\$(?:(\$)|\{([A-Za-z_][A-Za-z0-9_]*)(?::\?[^}]*)?\}|(.))")


def interpolated(text: str) -> str:
    """What Compose makes of a value, after its specification ("Interpolation")."""

    def one(match: re.Match) -> str:
        assert match[3] is None, f"Compose refuses {match[0]!r} in {text!r}"
        return "$" if match[1] else ENVIRONMENT[match[2]]

    return PLACEHOLDER.sub(one, text)


def walked(node):
    if isinstance(node, dict):
        return {key: walked(one) for key, one in node.items()}
    if isinstance(node, list):
        return [walked(one) for one in node]
    return interpolated(node) if isinstance(node, str) else node


@settings(max_examples=60, deadline=None)
@given(st.text(st.sampled_from("a${}:?-'\"\\ \n\té")))
def test_text_survives_interpolation(text):
    assert interpolated(value(text)) == text
    assert interpolated(value(text, Ref("EYAS_TEST_KEY"), text)) == f"{text}key $x{text}"
    assert interpolated(value(Home(text))) == (f"/home/me/{text}" if text else "/home/me")


def test_a_hostile_plan_arrives_word_for_word():
    made = hostile_plan(Path("/x"))
    server = made.emission.launches[1]
    service = walked(yaml.safe_load(render(made)["compose.yaml"])["services"]["server"])
    assert service["command"] == [literal(word, "/home/me", ENVIRONMENT) for word in server.argv]
    assert service["environment"] == {one.name: literal(one.value, "/home/me", ENVIRONMENT) for one in server.env}
    assert [(one["source"], one["target"], one.get("read_only", False)) for one in service["volumes"]] == [
        ("./settings.yaml", "/etc/settings.yaml", True),
        ("/home/me/.cache/hub, two", "/root/.cache/hub", False),
    ]


def test_secrets_are_references():
    text = render(hostile_plan(Path("/x")))["compose.yaml"]
    assert SECRET not in text
    assert "${EYAS_TEST_TOKEN:?is not set}" in text


def test_options_of_docker_become_keys():
    service = yaml.safe_load(render(hostile_plan(Path("/x")))["compose.yaml"])["services"]["server"]
    assert service["ipc"] == service["network_mode"] == "host"
    assert service["shm_size"] == "32g"
    assert service["ulimits"] == {"memlock": -1}
    device = service["deploy"]["resources"]["reservations"]["devices"][0]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


def test_the_files_come_along_byte_for_byte():
    made = hostile_plan(Path("/x"))
    files = render(made)
    assert {file.path: file.content for file in made.emission.files}.items() <= files.items()


def test_health_is_asked_at_the_engines_own_endpoint():
    service = yaml.safe_load(render(hostile_plan(Path("/x")))["compose.yaml"])["services"]["server"]
    assert service["healthcheck"]["test"][-1] == "http://127.0.0.1:8000/health"


def test_one_container_waits_for_the_one_before():
    once = Launch(name="once", argv=("x",), container=container("once"), is_once=True)
    first = Launch(name="first", argv=("x",), container=container("first"))
    second = Launch(name="second", argv=("x",), container=container("second"))
    services = yaml.safe_load(render(plan([once, first, second]))["compose.yaml"])["services"]
    assert services["once"]["restart"] == "no"
    assert services["first"]["depends_on"] == {"once": {"condition": "service_completed_successfully"}}
    assert services["second"]["depends_on"] == {"first": {"condition": "service_started"}}


@pytest.mark.parametrize(
    "word", ["yes", "no", "on", "off", "null", "~", "1", "0o17", "1e3", "0x1f", "1:30", "", " a", "-"]
)
def test_words_stay_text_for_readers_of_yaml_1_1_and_1_2(word):
    text = render(plan([Launch(name="x", argv=(word, "y"), container=container())]))["compose.yaml"]
    assert yaml.safe_load(text)["services"]["x"]["command"] == [word, "y"]
    assert f'- "{word}"' in text


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (plan([Launch(name="x", argv=("y",))]), "x is no container"),
        (plan([Launch(name="x", argv=("y",), is_once=True)]), "nothing of this plan runs in a container"),
        (plan([Launch(name="x", argv=("y",), container=container())], nodes=(Node(name="a", ssh="a"),)), "this one"),
        (plan([Launch(name="x", argv=("y",), container=container(options=("--volume", "/a:/b")))]), "--volume"),
    ],
)
def test_what_compose_cannot_say_is_refused(made, message):
    with pytest.raises(UserError, match=re.escape(message)):
        render(made)


def test_prepare_downloads_and_writes_nothing_else(tmp_path):
    machine = Machine(tmp_path)
    made = hostile_plan(tmp_path)
    done = machine.run(render(made), "prepare.sh")
    assert done.returncode == 0, done.stderr
    assert [argv[1] for argv, _, _ in machine.calls("hf")] == ["openai/gpt-oss-120b", "org/draft"]
    assert (machine.home / "prepared").read_text() == LINES
    assert not [argv for argv, _, _ in machine.calls("docker") if argv[0] == "run"]


def has_compose() -> bool:
    found = shutil.which("docker") is not None
    return found and subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0


@pytest.mark.skipif(not has_compose(), reason="the Compose plugin of docker is not installed")
def test_compose_itself_reads_the_same(tmp_path):
    made = hostile_plan(tmp_path)
    for name, content in render(made).items():
        (tmp_path / name).write_text(content)
    command = ["docker", "compose", "--file", tmp_path / "compose.yaml", "config", "--format", "json"]
    environment = {**os.environ, **ENVIRONMENT}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    read = yaml.safe_load(done.stdout)["services"]["server"]["command"]
    # `config` prints what can be read again: with `$` doubled.
    assert [interpolated(word) for word in read][1:3] == [HOSTILE, LINES]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say():
    made = plan([Launch(name="x", argv=("y",), container=container(mounts=(Mount(source=Home("a b"), target="/a"),)))])
    done = subprocess.run(["shellcheck", "-"], input=render(made)["prepare.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout

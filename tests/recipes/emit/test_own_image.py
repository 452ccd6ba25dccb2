"""Compose files of our own engine: they build its image from the Dockerfile, for people with a checkout or a wheel."""

import json
import shutil

import pytest
import yaml
from tests.recipes.planning.test_golden import plan_for
from tests.recipes.support.plans import Machine

from eyas.base.errors import UserError
from eyas.cli import main
from eyas.recipes.emit import compose, shell
from eyas.recipes.engines import eyas_image

PLAN = "gpt-oss-120b --on h200 --engine eyas --concurrency 1"


@pytest.fixture
def folder(tmp_path, capsys):
    assert main(["plan", *PLAN.split(), "--emit", "compose", "--out", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    return tmp_path / "out"


def test_compose_builds_the_image_beside_it(folder):
    assert {path.name for path in folder.iterdir()} == {"compose.yaml", "prepare.sh", *eyas_image.NAMES}
    service = yaml.safe_load((folder / "compose.yaml").read_text())["services"]["server"]
    assert (service["image"], service["build"], service["pull_policy"]) == (eyas_image.TAG, ".", "build")
    assert service["command"][:2] == ["serve", "openai/gpt-oss-120b"] and service["network_mode"] == "host"
    assert service["healthcheck"]["test"][-1] == "http://127.0.0.1:8000/ready"
    assert service["stop_grace_period"] == "40s", "longer than answers may go on after SIGTERM"
    for name in eyas_image.NAMES:
        assert (folder / name).read_text() == next(file.content for file in eyas_image.files() if file.path == name)


def test_prepare_wants_the_wheel_and_pulls_nothing(folder, tmp_path):
    machine = Machine(tmp_path)
    machine.folder = tmp_path / "elsewhere"
    (machine.folder / "scripts").mkdir(parents=True)
    files = {path.name: path.read_text() for path in folder.iterdir()}
    environ = {"STAND_INS": str(tmp_path)}
    refused = machine.run(files, "prepare.sh", **environ)
    assert refused.returncode == 1
    assert "put the wheel there (in a checkout: make wheel)" in refused.stderr and refused.stderr.count("\n") == 1
    dist = machine.folder / "scripts" / "dist"
    dist.mkdir()
    (dist / "eyas-0.1.0-py3-none-any.whl").touch()
    done = machine.run(files, "prepare.sh", **environ)
    assert done.returncode == 0 and "now: docker compose up" in done.stderr, done.stderr
    calls = [json.loads(line)[:2] for line in (tmp_path / "calls").read_text().splitlines()]
    assert not [argv for name, argv in calls if name == "docker" and argv[0] in ("pull", "image", "run")]


def test_a_process_stays_one_where_that_is_asked_for():
    assert plan_for(PLAN).choice.image is None and plan_for(f"{PLAN} --emit shell").choice.image is None
    for asked in ("--native", "--binary /opt/eyas"):
        with pytest.raises(UserError, match="server is no container"):
            compose.render(plan_for(f"{PLAN} {asked} --emit compose"))


def test_other_formats_want_the_image_to_be_there():
    text = "\n".join(shell.render(plan_for(f"{PLAN} --image {eyas_image.TAG}")).values())
    assert f"{eyas_image.TAG} is in no registry and not here" in text and "docker pull" not in text
    text = "\n".join(shell.render(plan_for(f"{PLAN} --image registry.example/eyas:1")).values())
    assert "docker pull registry.example/eyas:1" in text


def test_nobody_is_told_that_it_was_built():
    (row,) = [row for row in plan_for(f"{PLAN} --emit compose").evidence if row.part == "image"]
    assert row.level == "emitted only"
    assert not [row for row in plan_for(PLAN).evidence if row.part == "image"]


def test_a_package_without_its_dockerfile_says_so(tmp_path, monkeypatch):
    shutil.copytree(eyas_image.PACKAGE / "recipes" / "engines", tmp_path / "src" / "eyas" / "recipes" / "engines")
    monkeypatch.setattr(eyas_image, "PACKAGE", tmp_path / "src" / "eyas")
    with pytest.raises(UserError, match=r"an image of eyas needs .*Dockerfile, which is not there; install its wheel"):
        eyas_image.files()

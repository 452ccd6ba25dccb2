"""Labels and variables of an image, from a program that answers as docker does."""

import json

import pytest

from eyas.cli import main
from eyas.fleet.machines.images import image_settings
from eyas.fleet.machines.node import LocalNode

CONFIG = {
    "Hostname": "",
    "Env": ["PATH=/usr/bin", "VLLM_VERSION=0.31.0", "EMPTY="],
    "Labels": {"org.opencontainers.image.version": "22.04", "maintainer": "x=y"},
}


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """Put a docker on the path that knows one image, `here:1`."""

    def put(answer: str) -> None:
        (tmp_path / "answer").write_text(answer)
        program = tmp_path / "docker"
        program.write_text(
            "#!/bin/sh\n"
            '[ "$*" = "image inspect --format {{json .Config}} -- here:1" ] || exit 1\n'
            f"cat '{tmp_path}/answer'\n"
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return put


def test_what_the_image_says(docker):
    docker(json.dumps(CONFIG))
    found = image_settings(LocalNode(), "here:1")
    assert found["VLLM_VERSION"] == "0.31.0" and found["EMPTY"] == ""
    assert found["org.opencontainers.image.version"] == "22.04"


@pytest.mark.parametrize("answer", ['{"Env": null, "Labels": null}', "", "nonsense", "[]"])
def test_what_cannot_be_read_says_nothing(docker, answer):
    docker(answer)
    assert image_settings(LocalNode(), "here:1") == {}


def test_an_image_that_is_not_there_says_nothing(docker, monkeypatch):
    docker(json.dumps(CONFIG))
    assert image_settings(LocalNode(), "other:1; touch x") == {}
    monkeypatch.setenv("PATH", "/nowhere:/usr/bin:/bin")
    assert image_settings(LocalNode(), "here:1") == {}


def test_a_plan_for_a_box_by_its_name_reads_the_image_that_is_here(docker, capsys):
    """Who names the box is most often on it; an image of other machines is not looked at."""
    docker(json.dumps(CONFIG))
    command = ["plan", "gpt-oss-120b", "--on", "spark", "--engine", "vllm", "--image", "here:1"]
    assert main(command) == 0
    assert "vllm 0.31.0," in capsys.readouterr().out
    assert main([*command, "--node", "me@far"]) == 0
    assert "planned as vLLM 0.14.1" in capsys.readouterr().out

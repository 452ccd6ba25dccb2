"""The wheel: all files of the package and none but those, the commit, and that it works where no checkout is."""

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import httpx
import pytest
from tests.packaging.conftest import git

import eyas
from eyas.base.commit import FILE_NAME, commit_of
from eyas.recipes.engines import eyas_image
from tools import wheel as tool

ROOT = Path(__file__).parents[2]
QUESTION = "What does shutil.rmtree do?"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_holds_the_package_and_nothing_else(checkout, wheel):
    tracked = git(checkout, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "src/eyas")
    files = {name.removeprefix("src/") for name in tracked if (checkout / name).is_file()}
    built = {f"eyas/{FILE_NAME}", *(f"eyas/{eyas_image.PACKAGED}/{name}" for name in eyas_image.NAMES)}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if not name.startswith(f"eyas-{eyas.__version__}.dist-info/")}
        assert held == files | built
        for name in files:
            assert archive.read(name) == (checkout / "src" / name).read_bytes(), name
    assert wheel.name == f"eyas-{eyas.__version__}-py3-none-any.whl"
    assert [path.name for path in wheel.parent.iterdir()] == [wheel.name]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_it_works_where_no_checkout_is(checkout, wheel, tmp_path):
    commit = commit_of(checkout / "src" / "eyas")
    assert commit and git(ROOT, "rev-parse", "HEAD")[0].startswith(commit.removesuffix("-dirty"))
    emitted = [file.content for file in eyas_image.files()]
    program = tool.install(wheel, tmp_path / "env", ["-c", str(ROOT / "constraints-cpu.txt")])
    away = checkout.rename(checkout.with_name("away"))
    try:
        assert tool.said(program, "--version") == f"eyas {eyas.__version__} (commit {commit})\n"
        assert "`shutil.rmtree` is a function" in tool.said(program, "generate", QUESTION)
        tool.said(program, "plan", "demo", "--on", "h200", "--engine", "eyas", "--emit", "compose", "--out", tmp_path)
        assert [(tmp_path / name).read_text() for name in eyas_image.NAMES] == emitted
        command = [program, "serve", "--port", "0"]
        server = subprocess.Popen(command, cwd=tmp_path, env=tool.outside(), stdout=subprocess.PIPE, text=True)
        try:
            url = next(line.split()[1] for line in server.stdout if line.startswith("ready")).removesuffix("/v1")
            assert httpx.get(f"{url}/version").json() == {"version": eyas.__version__, "commit": commit}
            assert "<title>" in httpx.get(url).text
            body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
            assert "shutil" in httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120).text
        finally:
            server.terminate()
            assert server.wait(60) == 0
            server.stdout.close()
    finally:
        away.rename(checkout)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_source_distribution_keeps_the_commit(checkout, tmp_path):
    """The wheel that is built from it, without git, names the commit too."""
    requires = tomllib.loads((checkout / "pyproject.toml").read_text())["build-system"]["requires"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", tmp_path / "backend", *requires]
    subprocess.run(pip, env=tool.outside(), check=True)
    code = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
    environ = tool.outside() | {"PYTHONPATH": str(tmp_path / "backend")}
    subprocess.run([sys.executable, "-c", code, tmp_path], cwd=checkout, env=environ, check=True, capture_output=True)
    (made,) = tmp_path.glob("eyas-*.tar.gz")
    with tarfile.open(made) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (folder,) = (tmp_path / "unpacked").iterdir()
    with zipfile.ZipFile(tool.build(folder)) as archive:
        assert archive.read(f"eyas/{FILE_NAME}").decode().strip() == commit_of(checkout / "src" / "eyas")
        assert f"eyas/{eyas_image.PACKAGED}/Dockerfile" in archive.namelist()
        code = {"eyas/kernels/cuda/moe/moe.cu", "eyas/kernels/cuda/wgmma.cuh"}
        assert code | {"eyas/demo/model.safetensors"} <= {*archive.namelist()}
